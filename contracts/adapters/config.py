"""PEFT's adapter_config.json: which of its fields are read, which modules it changes, ranks and scalings.

This module, `pattern`, `targets` and `tensors` need only the standard library and RE2. The control plane
checks an adapter with them at registration and the worker at load. They hold what is true of every engine;
`bundled_worker` says which of these adapters the bundled worker serves.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from contracts.adapters.foreign_weights import MLX_REFUSAL
from contracts.adapters.module_names import PLAIN, Layout, aligned, layout_of
from contracts.adapters.pattern import PatternError, SuffixTable
from contracts.adapters.reference import POOLING_FILES
from contracts.adapters.renames import renames_of
from contracts.adapters.targets import Targets
from contracts.strict_json import find_fault

MAX_ADAPTER_BYTES: Final = 2 << 30
"""Largest adapter_model.safetensors that the worker takes by default. Registration takes larger ones for some
bases (`file_limit`). Rank 64 on every linear layer of a 70B model is 1.7 GB in bf16."""
MAX_CONFIG_BYTES: Final = 1 << 20

FEATURE_EXTRACTION: Final = "FEATURE_EXTRACTION"
"""PEFT's task_type of adapters that were trained for embeddings."""

_SERVED: Final = frozenset(
    {
        "peft_type",
        "task_type",
        "r",
        "lora_alpha",
        "use_rslora",
        "use_dora",
        "lora_bias",
        "bias",
        "rank_pattern",
        "alpha_pattern",
        "target_modules",
        "target_parameters",
        "fan_in_fan_out",
        "exclude_modules",
        "layers_to_transform",
        "layers_pattern",
        "modules_to_save",
        "trainable_token_indices",
        "init_lora_weights",
        "ensure_weight_tying",
    }
)
_HARMLESS: Final = frozenset(
    {
        "auto_mapping",
        "base_model_name_or_path",
        "revision",
        "peft_version",
        "inference_mode",
        "lora_dropout",
        "megatron_core",
        "qalora_group_size",
        "runtime_config",
        "loftq_config",
        "eva_config",
        "corda_config",
        "lora_ga_config",
        "velora_config",
    }
)
"""Fields about origin and training. Their values are not read, since the trained weights are in the file.
init_lora_weights says if an initialisation altered the base as well."""
_MUST_BE: Final[Mapping[str, tuple[object, ...]]] = {
    "peft_type": ("LORA",),
    "task_type": ("CAUSAL_LM", "SEQ_CLS", "TOKEN_CLS", FEATURE_EXTRACTION, "SEQ_2_SEQ_LM", None),
    "bias": ("none", "all", "lora_only", None),
}
_CHANGES_BASE: Final = ("pissa", "olora", "corda", "lora_ga")
"""Initialisations that also alter the base weights: such an adapter is wrong on the plain base."""
_OF_MLX: Final = ("lora_parameters", "fine_tune_type")

_MAX_NAMES: Final = 64
"""Most names of modules_to_save and the like: each is compared with every module's path."""
_MAX_PATH: Final = 1000
"""Most characters of a tensor's name; the longest published ones have 150."""
_PART: Final = re.compile(
    r"(?:\.base_layer)*\.(?:lora_(?:embedding_)?[AB]|lora_magnitude_vector|token_adapter|weight|bias)(?:\.|$).*"
)
"""From the module's path to the end of the name of a tensor."""
PREFIX: Final = "base_model.model."
"""Of every tensor's name in an adapter's file: PEFT's model around the trained one."""
EMBEDDING: Final = "model.embed_tokens"
HEAD: Final = "lm_head"


class AdapterConfigError(ValueError):
    """An adapter that is broken or cannot be served; the text names the field or tensor at fault."""


@dataclass(frozen=True, slots=True)
class LoraConfig:
    """The LoRA settings of an adapter: changed modules, ranks and scalings.

    Attributes:
        bias: True if the file may hold trained biases that replace the base's.
        lora_bias: True if B has a bias.
        modules_to_save: names of modules whose weights the adapter replaces as a whole.
        ties_head: True if changes to the embedding also apply to the head of a tied base.
        token_indices: module's name -> tokens whose rows the adapter replaces.
        raw: the whole object as written; unread fields with values that are not JSON become null.
        task: task_type; "" where the configuration leaves it out.
        fan_in_fan_out: True if the trainer's layers hold weights as (in, out), as GPT-2's.
        parameters: target_parameters: ends of the names of parameters that have LoRA of their own.
        layout: how the trainer called the modules. The methods take common names (`module_names`), and
            compare the trainer's names with the patterns of the configuration.
    """

    rank: int
    alpha: float
    use_rslora: bool
    use_dora: bool
    lora_bias: bool
    bias: bool
    targets: Targets
    modules_to_save: tuple[str, ...]
    ties_head: bool
    token_indices: Mapping[str, tuple[int, ...]]
    ranks: Numbers
    alphas: Numbers
    raw: Mapping[str, Any]
    task: str = ""
    fan_in_fan_out: bool = False
    parameters: tuple[str, ...] = ()
    layout: Layout = PLAIN

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Parse adapter_config.json.

        Raises:
            AdapterConfigError: names the field that is missing, malformed or not supported.
        """
        try:
            value = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise AdapterConfigError(f"adapter_config.json is not JSON: {error}") from error
        if not isinstance(value, dict):
            raise AdapterConfigError(f"adapter_config.json must hold an object, got {type(value).__name__}")
        _refuse_unsupported(value)
        _refuse_faults(value)
        saved = _texts(value, "modules_to_save")
        try:
            targets = Targets.read(value, saved=saved)
        except ValueError as error:
            raise AdapterConfigError(f"adapter_config.json: {error}") from error
        return cls(
            rank=int(_number(value, "r", whole=True)),
            alpha=_number(value, "lora_alpha"),
            use_rslora=_flag(value, "use_rslora"),
            use_dora=_flag(value, "use_dora"),
            lora_bias=_flag(value, "lora_bias"),
            bias=value.get("bias") not in ("none", None),
            targets=targets,
            modules_to_save=saved,
            ties_head=_flag(value, "ensure_weight_tying"),
            token_indices=_token_indices(value.get("trainable_token_indices")),
            ranks=Numbers.read(value, "rank_pattern", whole=True),
            alphas=Numbers.read(value, "alpha_pattern"),
            raw=value,
            task=value.get("task_type") or "",
            fan_in_fan_out=_flag(value, "fan_in_fan_out"),
            parameters=_texts(value, "target_parameters"),
        )

    @property
    def embeds_only(self) -> bool:
        """True if the adapter was trained for embeddings, on a model without an output head."""
        return self.task == FEATURE_EXTRACTION

    @property
    def extra_files(self) -> tuple[str, ...]:
        """Files that the adapter may have beside `ADAPTER_FILES`, and that are part of its identity."""
        return POOLING_FILES if self.embeds_only else ()

    @property
    def max_rank(self) -> int:
        """Largest rank that any module may have."""
        return max(self.rank, *(int(number) for number in self.ranks.numbers), 0)

    def for_tensors(
        self, names: Iterable[str], base: Mapping[str, tuple[int, ...]] | None = None, architecture: str = ""
    ) -> Self:
        """Return this configuration with the layout of the adapter's tensors.

        Args:
            names: of the adapter's tensors.
            base: the base model's tensors by common name; aligns names that no layout translates.
            architecture: the base model's, whose checkpoint may have other names than transformers.

        Raises:
            AdapterConfigError: a tensor's name is too long.
        """
        paths = [name.removeprefix(PREFIX) for name in names]
        if longest := next((path for path in paths if len(path) > _MAX_PATH), None):
            raise AdapterConfigError(
                f"tensor {longest[:100]}... has a name of more than {_MAX_PATH} characters"
            )
        layout = layout_of(paths)
        if base is not None:
            modules = dict.fromkeys(_PART.sub("", path) for path in paths)
            layout = aligned(layout, modules, base, renames_of(architecture))
        return replace(self, layout=layout)

    def adapts(self, module: str) -> bool:
        """Return True if PEFT puts LoRA on the module."""
        is_head = module == HEAD
        if self.targets.match(self.layout.path_of(module), is_head=is_head):
            return True
        if self.targets_parameter(f"{module}.weight"):
            return True
        embedding = self.layout.path_of(EMBEDDING)
        return is_head and self.ties_head and self.targets.match(embedding, is_head=False)

    def targets_parameter(self, name: str) -> bool:
        """Return True if target_parameters names the parameter at this full path."""
        module = name.removesuffix(".weight")
        path = self.layout.path_of(module) + name.removeprefix(module)
        return any(path == end or path.endswith(f".{end}") for end in self.parameters)

    def replaces(self, module: str) -> bool:
        """Return True if modules_to_save names the module, one around it, or a tied head's embedding."""
        modules = (module, EMBEDDING) if module == HEAD and self.ties_head else (module,)
        return any(
            is_saved(self.layout.path_of(item), name) for item in modules for name in self.modules_to_save
        )

    def rank_of(self, module: str) -> int:
        """Return the rank of the module at this full path."""
        return int(self.ranks.get(self._pattern_path(module), self.rank))

    def scaling_of(self, module: str) -> float:
        """Return alpha / rank, or alpha / sqrt(rank) under rsLoRA (Kalajdzievski, 2023)."""
        rank = self.rank_of(module)
        return self.alphas.get(self._pattern_path(module), self.alpha) / (
            math.sqrt(rank) if self.use_rslora else rank
        )

    def _pattern_path(self, module: str) -> str:
        """Return the path with which PEFT compares rank_pattern and alpha_pattern."""
        path = self.layout.path_of(module)
        return f"{path}.weight" if self.parameters and self.targets_parameter(f"{module}.weight") else path


@dataclass(frozen=True, slots=True)
class Numbers:
    """rank_pattern or alpha_pattern: values by name, path or regular expression; the first match applies."""

    numbers: tuple[float, ...]
    table: SuffixTable

    @classmethod
    def read(cls, value: Mapping[str, Any], field: str, *, whole: bool = False) -> Self:
        patterns = value.get(field) or {}
        if not isinstance(patterns, dict):
            raise AdapterConfigError(f"adapter_config.json: {field} must be an object, got {patterns!r}")
        numbers = [
            _number({f"{field}.{key}": item}, f"{field}.{key}", whole=whole) for key, item in patterns.items()
        ]
        try:
            return cls(tuple(numbers), SuffixTable(patterns))
        except PatternError as error:
            raise AdapterConfigError(f"adapter_config.json: {field} key {error}") from error

    def get(self, module: str, default: float) -> float:
        """Return the value for a module; `default` if no pattern matches."""
        index = self.table.find(module)
        return default if index is None else self.numbers[index]


def is_saved(path: str, name: str) -> bool:
    """Return True if PEFT replaces the module at this path for a name of modules_to_save.

    PEFT compares the ends of paths. Of a container it saves all modules inside.
    """
    return f"{name}." in f"{path}."


def _refuse_unsupported(value: Mapping[str, Any]) -> None:
    if "peft_type" not in value and any(name in value for name in _OF_MLX):
        raise AdapterConfigError(f"adapter_config.json: {MLX_REFUSAL}")
    for name, allowed in _MUST_BE.items():
        if (name in value and value[name] not in allowed) or (name == "peft_type" and name not in value):
            raise AdapterConfigError(
                f"adapter_config.json: {name} must be {allowed[0]!r}, got {value.get(name)!r}"
            )
    for name in sorted(value.keys() - _SERVED - _HARMLESS):
        if value[name] not in (None, False, "", [], {}):
            raise AdapterConfigError(
                f"adapter_config.json: {name[:80]} is not served: train the adapter without it"
            )
    start = value.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith("loftq"):
        raise AdapterConfigError(
            f"adapter_config.json: init_lora_weights {start!r} changed the base's weights before training:"
            " save that base as well (`model.unload().save_pretrained(...)` right after the initialisation),"
            " have it registered as a base model, and set init_lora_weights to true"
        )
    if isinstance(start, str) and start.lower().startswith(_CHANGES_BASE):
        raise AdapterConfigError(
            f"adapter_config.json: init_lora_weights {start!r} alters the base's weights: save the adapter "
            "with path_initial_model_for_weight_conversion, which makes it a plain one"
        )


def _refuse_faults(value: dict[str, Any]) -> None:
    """Refuse values that no database stores, naming the field; in an unread field they become null."""
    for name in list(value):
        if (fault := find_fault({name: value[name]})) is None:
            continue
        if name not in _HARMLESS:
            raise AdapterConfigError(f"adapter_config.json {fault}")
        value[name] = None


def _number(value: Mapping[str, Any], name: str, *, whole: bool = False) -> float:
    number = value.get(name)
    kinds = (int,) if whole else (int, float)
    if not isinstance(number, kinds) or isinstance(number, bool) or not 0 < number < 65536:
        kind = "a positive whole number" if whole else "a positive number"
        raise AdapterConfigError(f"adapter_config.json: {name} must be {kind}, got {number!r}")
    return number


def _flag(value: Mapping[str, Any], name: str) -> bool:
    flag = value.get(name) or False
    if not isinstance(flag, bool):
        raise AdapterConfigError(f"adapter_config.json: {name} must be true or false, got {flag!r}")
    return flag


def _texts(value: Mapping[str, Any], name: str) -> tuple[str, ...]:
    texts = value.get(name) or []
    if isinstance(texts, list) and len(texts) > _MAX_NAMES:
        raise AdapterConfigError(f"adapter_config.json: {name} has more than {_MAX_NAMES} names")
    if not isinstance(texts, list) or not all(isinstance(item, str) and item for item in texts):
        raise AdapterConfigError(f"adapter_config.json: {name} must be a list of texts, got {texts!r}")
    return tuple(texts)


def _token_indices(value: object) -> dict[str, tuple[int, ...]]:
    """Return token indices by module; a list means the input embedding, as in PEFT."""
    by_module = {"embed_tokens": value} if isinstance(value, list) and value else value or {}
    if isinstance(by_module, dict) and len(by_module) <= _MAX_NAMES:
        indices = {str(name): item for name, item in by_module.items()}
        if all(_are_tokens(item) for item in indices.values()):
            return {name: tuple(item) for name, item in indices.items()}
    raise AdapterConfigError(
        "adapter_config.json: trainable_token_indices must be a list of different tokens, "
        f"or an object of such lists by at most {_MAX_NAMES} modules"
    )


def _are_tokens(value: object) -> bool:
    if not isinstance(value, list) or not value or len(set(map(repr, value))) < len(value):
        return False
    return all(isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in value)
