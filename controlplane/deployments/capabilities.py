"""Which engine runs a copy or a deployment, and what that engine serves.

A worker and a container of ours are known by what was started. A running server tells its version, and what
it does not tell is unknown: then every adapter is tried there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final, Self

from contracts.adapters.reference import AdapterRef
from contracts.base_routes import CopyRoute
from contracts.capabilities.capability import BaseNeeds, Capability
from contracts.capabilities.engines import ENGINES, base_offers, capability
from contracts.capabilities.vllm import version_of
from controlplane.catalog.models import BaseModel
from controlplane.deployments.containers.image_limit import image_limit
from controlplane.deployments.containers.images import DEFAULT_IMAGE, Family, Image
from controlplane.deployments.containers.options import LmiOptions
from controlplane.deployments.models import Copy, Deployment, Target
from controlplane.errors import InvalidInputError

NOT_YET: Final = "no backend can serve this yet"


@dataclass(frozen=True, slots=True)
class RunningEngine:
    """An engine as it was started.

    Attributes:
        engine: one of ENGINES; "" if it is not known, as its version.
        max_rank: largest LoRA rank that it was started with; None for no limit, or none that is known.
    """

    engine: str = ""
    version: str = ""
    max_rank: int | None = None

    @classmethod
    def of_copy(cls, copy: Copy) -> Self:
        """Return the engine of a copy; rows of an earlier release state none."""
        if copy.engine:
            return cls(copy.engine, copy.engine_version, copy.max_rank)
        if copy.kind == Copy.Kind.WORKER or copy.adapter_naming == Copy.AdapterNaming.REFERENCE:
            return cls("worker", "", copy.max_rank)
        if copy.container == Copy.Container.TGI:
            return cls("tgi", "", copy.max_rank)
        return cls("", "", copy.max_rank)

    @classmethod
    def of_deployment(cls, deployment: Deployment) -> Self:
        """Return the engine that a deployment runs; of running servers the one that all of them told."""
        if deployment.target.kind == Target.Kind.LOCAL:
            is_vllm = deployment.image_family == Family.VLLM
            return cls("vllm", max_rank=_max_rank(deployment)) if is_vllm else cls("worker")
        if deployment.target.kind == Target.Kind.SAGEMAKER:
            return cls._of_image(deployment)
        rows = Copy.objects.filter(deployment_id=deployment.pk) if deployment.pk else ()
        told = {cls.of_copy(copy) for copy in rows}
        return told.pop() if len(told) == 1 else cls()

    @classmethod
    def _of_image(cls, deployment: Deployment) -> Self:
        image = Image.from_name(deployment.image or DEFAULT_IMAGE, family=_family(deployment))
        engine, version = image.engine_version
        if engine != "vllm":
            return cls(engine, version)
        return cls(engine, version, _max_rank(deployment))

    @property
    def capability(self) -> Capability | None:
        """Capability of this version; None if it is not known."""
        return capability(self.engine, self.version)

    @property
    def name(self) -> str:
        """Its name in messages; "" if it is not known."""
        found = self.capability
        unversioned = "vLLM" if self.engine == "vllm" else self.engine
        return found.engine if found is not None else " ".join((unversioned, self.version)).strip()

    def problem(self, base: BaseNeeds, ref: AdapterRef) -> str:
        """Return why it cannot serve an adapter; "" if it can, or if that is not known."""
        lacks = self.route(base).lacks(ref)
        return f"{self.name or 'the copy'} does not serve {lacks}" if lacks else ""

    def base_problem(self, base: BaseNeeds) -> str:
        """Return why it cannot serve a base model; "" if it can, or if that is not known."""
        found = self.capability
        return "" if found is None else found.base_problem(base)

    def route(self, base: BaseNeeds) -> CopyRoute:
        """Return a route without a place that says what a copy serves over `base`.

        An architecture that a running copy serves though the table does not list it has unknown traits.
        """
        found, nowhere = self.capability, CopyRoute("", Copy.Kind.WORKER, "", engine=self.name)
        if found is None:
            return replace(nowhere, max_rank=self.max_rank)
        nowhere = replace(nowhere, images=found.images)
        if found.architectures is not None and base.architecture not in found.architectures:
            return replace(nowhere, max_rank=self.max_rank)
        traits = found.adapter_traits(base.architecture)
        if traits is None:
            return replace(nowhere, traits=(), max_rank=0)
        limits = [limit for limit in (self.max_rank, found.max_rank) if limit is not None]
        return replace(nowhere, traits=tuple(sorted(traits)), max_rank=min(limits, default=None))


UNKNOWN_ENGINE: Final = RunningEngine()


def base_needs(base_model: BaseModel, variant: str = "") -> BaseNeeds:
    """Return what a base model needs of an engine; a variant's method is not one of config.json."""
    return BaseNeeds(base_model.architecture, "" if variant else base_model.quantization)


def capable_route(copy: Copy, base: BaseNeeds) -> dict[str, Any]:
    """Return the fields of a copy's route that say what it serves."""
    route = RunningEngine.of_copy(copy).route(base)
    if copy.container == Copy.Container.TRITON:
        route = replace(route, images=False)  # the repository's chat model reads texts
    if copy.deployment is not None:
        route = replace(route, max_images=image_limit(copy.deployment.environment))
    return _fields(route)


def absent_routes(base_model: BaseModel) -> tuple[CopyRoute, ...]:
    """Return what the copies of each wanted deployment without a copy will serve; see `BaseRoute.absent`."""
    rows = Deployment.objects.filter(
        base_model_id=base_model.pk, removal_asked_at=None, removed_at=None, copies=None
    )
    found = []
    for row in rows.select_related("target").order_by("name"):
        engine = RunningEngine.of_deployment(row)
        kind = row.target.kind
        if kind == Target.Kind.LOCAL:
            kind = Copy.Kind.OPENAI_HTTP if engine.engine == "vllm" else Copy.Kind.WORKER
        route = engine.route(base_needs(base_model, row.variant))
        limit = image_limit(row.environment)
        found.append(replace(route, id=row.name, kind=str(kind), merged=row.merged_adapter, max_images=limit))
    return tuple(found)


def _max_rank(deployment: Deployment) -> int | None:
    """Return the largest rank that vLLM is started with."""
    values = deployment.options if isinstance(deployment.options, dict) else {}
    rank = values.get("max_lora_rank", LmiOptions().max_lora_rank)
    return rank if isinstance(rank, int) else None


def base_check(deployment: Deployment) -> None:
    """Raise InvalidInputError if the deployment's engine cannot serve its base model; says what would.

    Running servers know best. vLLM serves architectures that it does not list, by its Transformers backend.
    """
    base, engine = (
        base_needs(deployment.base_model, deployment.variant),
        RunningEngine.of_deployment(deployment),
    )
    problem = engine.base_problem(base)
    listed = engine.capability.architectures if engine.capability else None
    is_open = engine.engine == "vllm" and listed is not None and base.architecture not in listed
    if not problem or is_open or deployment.target.kind == Target.Kind.OPENAI_HTTP:
        return
    offers = ", ".join(base_offers(base))
    remedy = f"engines that do: {offers}" if offers else NOT_YET
    field = "image" if deployment.target.kind == Target.Kind.SAGEMAKER else "target"
    raise InvalidInputError(f"{problem}: {remedy}", field=field)


def engine_check(engine: str, version: str, max_rank: int | None) -> None:
    """Check the engine that an operator states for a copy. Raises InvalidInputError."""
    if engine and engine not in ENGINES:
        raise InvalidInputError(f"engine must be one of {', '.join(ENGINES)}, or empty", field="engine")
    if version and engine != "vllm":
        raise InvalidInputError("engine_version is valid only for engine vllm", field="engine_version")
    if version and version_of(version) is None:
        text = f"engine_version must be a version such as 0.32.0, got {version!r}"
        raise InvalidInputError(text, field="engine_version")
    if max_rank is not None and not 1 <= max_rank <= 512:
        raise InvalidInputError("max_rank must be from 1 to 512", field="max_rank")


def _fields(route: CopyRoute) -> dict[str, Any]:
    return {name: getattr(route, name) for name in ("engine", "traits", "max_rank", "images", "max_images")}


def _family(deployment: Deployment) -> str:
    """Return the family to read the image by: an image of the table has its own."""
    return deployment.image_family if "/" in (deployment.image or "") else ""
