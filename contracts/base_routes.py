"""The part of the route table that says where base models run."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from contracts.adapters.reference import AdapterRef
from contracts.capabilities.capability import missing_text
from contracts.image_tokens import ImageTokens
from contracts.known_fields import known_fields

PROTECTED_PARAMETERS: Final = frozenset(
    {
        "model",
        "messages",
        "prompt",
        "input",
        "instructions",
        "suffix",
        "echo",
        "previous_response_id",
        "conversation",
        "stream",
        "stream_options",
        "max_tokens",
        "max_completion_tokens",
        "max_output_tokens",
        "min_tokens",
        "n",
        "best_of",
        "stop",
        "stop_token_ids",
        "ignore_eos",
        "truncate_prompt_tokens",
        "user",
        "safety_identifier",
    }
)
"""Parameters that `BaseRoute.dropped_parameters` must not name.

They are the prompt, the form of the response, the bounds of billed and limited tokens, and the user, who
keeps a caller on one arm of a split.
"""

UNBOUNDED_CONTEXT: Final = (1 << 31) - 1
"""`BaseRoute.max_model_len` of a model without a bound, or whose configuration states none."""


@dataclass(frozen=True, slots=True)
class SageMakerTarget:
    """A copy's place on SageMaker, and how to call it.

    Attributes:
        component: inference component of the base model; "" for an endpoint without components.
        adapters: how an adapter is named: `components` (each is an inference component, see
            `adapter_component`), `reference` (the bundled worker takes the whole AdapterRef in the body)
            or `name` (a container that has it registered under its engine name).
        api: `invocations` (signed); `openai`, the endpoint's OpenAI path (bearer token), for chats; or
            `routes` (signed, for containers that read a route of theirs in the custom attributes).
        container: form of the container's requests: `lmi` (also the bundled worker's), `vllm`, `tgi`,
            `triton` or `pytorch`.
        loaded: engine names of the adapters that every container has, where a container would serve the base
            model for an unknown one; None where it refuses.
    """

    region: str
    endpoint: str
    component: str = ""
    adapters: str = "components"
    api: str = "invocations"
    container: str = "lmi"
    loaded: tuple[str, ...] | None = None

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        loaded = value.get("loaded")
        return cls(**{**known_fields(cls, value), "loaded": None if loaded is None else tuple(loaded)})


def adapter_component(component: str, engine_name: str) -> str:
    """Name of the inference component that holds adapter `engine_name` over base component `component`.

    Such names have at most 63 letters, digits and inner hyphens, so an engine name cannot be one.
    """
    digest = hashlib.sha256(f"{component}\0{engine_name}".encode()).hexdigest()
    return f"{component[:40].rstrip('-')}-{digest[:20]}"


@dataclass(frozen=True, slots=True)
class CopyRoute:
    """One copy of a base model on compute: where requests for it go.

    Attributes:
        id: deployment copy id, `endpoint` in usage events.
        kind: backend that calls it: `worker`, `openai_http` or `sagemaker`.
        url: base URL without `/v1`; for `sagemaker`, "" means the region's public endpoint.
        loads_adapters: `openai_http` only: True if vLLM's `/v1/load_lora_adapter` may load an adapter that
            the copy lacks.
        sagemaker: set for a copy of kind `sagemaker`, else None.
        merged: engine name of the adapter that is merged into its weights; "" for none. Such a copy serves
            that adapter alone, whose requests name no adapter there.
        engine: the engine that runs it, in words such as `vLLM 0.32.0`; "" if it is not known.
        traits: traits of adapters that it serves (`contracts.capabilities.traits.Trait`); None if they are
            not known, and then every adapter is tried.
        max_rank: largest rank that it serves; None if there is no limit, or none is known.
        credentials: `openai_http` only: sealed ServerCredentials, see CREDENTIALS_INFO; "" for none.
        max_adapters: `openai_http` only: most adapters that gateways leave loaded; 0 for no bound.
        images: True if it reads images, False if not; None if that is not known, and then they are tried.
        max_images: most images of one prompt that it was started for; None if that is not known.
    """

    id: str
    kind: str
    url: str
    loads_adapters: bool = False
    sagemaker: SageMakerTarget | None = None
    merged: str = ""
    engine: str = ""
    traits: tuple[str, ...] | None = None
    max_rank: int | None = None
    credentials: str = field(default="", repr=False)
    max_adapters: int = 0
    images: bool | None = None
    max_images: int | None = None

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        target, traits = value.get("sagemaker"), value.get("traits")
        return cls(
            **{
                **known_fields(cls, value),
                "sagemaker": None if target is None else SageMakerTarget.from_dict(target),
                "traits": None if traits is None else tuple(traits),
            }
        )

    def may_read_images(self, count: int) -> bool:
        """Return False if it surely does not read so many images of one prompt."""
        return self.images is not False and (self.max_images is None or count <= self.max_images)

    def can_serve(self, adapter: AdapterRef | None) -> bool:
        """Return False if it surely cannot serve this adapter, or the base model for None."""
        if self.merged:
            return adapter is not None and self.merged == adapter.name
        if adapter is None:
            return True
        loaded = None if self.sagemaker is None else self.sagemaker.loaded
        return (loaded is None or adapter.name in loaded) and not self.lacks(adapter)

    def lacks(self, adapter: AdapterRef) -> str:
        """Return in words what the adapter needs and the copy does not serve; "" for nothing."""
        missing = () if self.traits is None else set(adapter.traits).difference(self.traits)
        fits = self.max_rank is None or adapter.rank <= self.max_rank
        # Older control planes publish adapters with rank 0, and a copy with limit 0 serves none.
        if not missing and fits and self.max_rank != 0:
            return ""
        return missing_text(missing, adapter.rank, self.max_rank)


@dataclass(frozen=True, slots=True)
class AdapterHomes:
    """The placement of one adapter version, as ids of copies.

    Attributes:
        at: copies that keep it loaded; they get its requests while they have capacity.
        away: copies that get its requests only while no other copy accepts any.
    """

    at: tuple[str, ...] = ()
    away: tuple[str, ...] = ()

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        return cls(tuple(value.get("at", ())), tuple(value.get("away", ())))


@dataclass(frozen=True, slots=True)
class CanaryRoute:
    """Copies that a rollout tries with an exact share of a base model's callers.

    Attributes:
        name: the rollout's name; it seeds the order in which callers join the share.
        percent: share of callers whose requests go to `copies`; the other callers' go to the other copies.
            Where no copy of one side accepts requests, the other side does.
        copies: their ids.
    """

    name: str
    percent: int
    copies: tuple[str, ...]

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        return cls(str(value["name"]), int(value["percent"]), tuple(value["copies"]))


@dataclass(frozen=True, slots=True)
class BaseRoute:
    """A base model and its copies; `served_name` is what the copies call it.

    Attributes:
        max_model_len: context length in tokens; UNBOUNDED_CONTEXT if it is not known.
        copies: all of them, also those with a merged adapter.
        hold_seconds: how long to hold a request without a running copy while one starts; 0: none will start.
        homes: placements by engine name; adapters without one are routed by hashing and residency.
        canary: set while a rollout gives new copies an exact share; older gateways route by load instead.
        dropped_parameters: parameters that the gateway removes from requests for this base model and its
            adapters before it checks them.
        created: Unix seconds of its registration; 0 in entries of an older control plane.
        architecture: of the checkpoint; "" in entries of an older control plane.
        quantization: method of its weights; "" for none.
        absent: what a copy of each deployment without a copy would serve; ids are the deployments' names.
            They are starting, broken or scaled to zero, and get no requests.
        image_tokens: bound of an image's tokens; None if the checkpoint was registered by an older release.
    """

    served_name: str
    max_model_len: int
    copies: tuple[CopyRoute, ...] = ()
    hold_seconds: int = 0
    homes: Mapping[str, AdapterHomes] = field(default_factory=dict)
    canary: CanaryRoute | None = None
    dropped_parameters: tuple[str, ...] = ()
    created: int = 0
    architecture: str = ""
    quantization: str = ""
    absent: tuple[CopyRoute, ...] = ()
    image_tokens: ImageTokens | None = None

    def copies_for(self, adapter: AdapterRef | None) -> tuple[CopyRoute, ...]:
        """Return every copy that can serve an adapter, or the base model for None, in no order."""
        return tuple(copy for copy in self.copies if copy.can_serve(adapter))

    def may_get_copy(self, adapter: AdapterRef | None) -> bool:
        """Return False if no deployment without a copy would serve the adapter when it has one."""
        return not self.absent or any(copy.can_serve(adapter) for copy in self.absent)

    def excludes(self, adapter: AdapterRef) -> bool:
        """Return True if there are copies or deployments of the base model, and all lack what it needs."""
        known = (*self.copies, *self.absent)
        shared = [copy for copy in known if not copy.merged]
        merged = any(copy.merged == adapter.name for copy in known)
        return bool(shared) and not merged and all(copy.lacks(adapter) for copy in shared)

    def placed_on(self, copy_id: str) -> frozenset[str]:
        """Return the engine names that are placed on a copy."""
        return frozenset(name for name, homes in self.homes.items() if copy_id in homes.at)

    def merged_copies(self, engine_name: str) -> tuple[CopyRoute, ...]:
        """Return the copies that have this adapter merged into their weights; none for ""."""
        return tuple(copy for copy in self.copies if copy.merged and copy.merged == engine_name)

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        copies = tuple(CopyRoute.from_dict(copy) for copy in value.get("copies", ()))
        homes = {name: AdapterHomes.from_dict(item) for name, item in value.get("homes", {}).items()}
        told = value.get("canary")
        canary = None if told is None else CanaryRoute.from_dict(told)
        return cls(
            value["served_name"],
            value["max_model_len"],
            copies,
            value.get("hold_seconds", 0),
            homes,
            canary,
            tuple(value.get("dropped_parameters", ())),
            value.get("created", 0),
            value.get("architecture", ""),
            value.get("quantization", ""),
            tuple(CopyRoute.from_dict(copy) for copy in value.get("absent", ())),
            ImageTokens.from_dict(rule) if (rule := value.get("image_tokens")) else None,
        )
