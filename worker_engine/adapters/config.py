"""PEFT's adapter_config.json: what of it we serve, and each module's rank and scaling.

Standard library only: the control plane reads an adapter's configuration with this module when it is
registered, the worker when it is loaded, so that what is ready there is served here.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

_MUST_BE: Final[Mapping[str, tuple[object, ...]]] = {
    "peft_type": ("LORA",),
    "task_type": ("CAUSAL_LM", None),
    "bias": ("none", None),
    "modules_to_save": (None, []),
    "trainable_token_indices": (None, [], {}),
    "target_parameters": (None, []),
    "layer_replication": (None, []),
}
_MUST_BE_OFF: Final = (
    "use_dora", "lora_bias", "fan_in_fan_out", "use_qalora", "alora_invocation_tokens", "use_bdlora",
    "arrow_config", "kasa_config", "velora_config", "monteclora_config", "megatron_config",
)  # fmt: skip
_CHANGES_BASE: Final = ("pissa", "olora", "loftq", "corda", "lora_ga")
"""Initialisations that also alter the base weights: such an adapter is wrong on the plain base."""
_PATH: Final = re.compile(r"\^?(?:[A-Za-z0-9_-]|\\?\.){1,200}")
"""A module's name or path, dots escaped or not. PEFT takes regular expressions here, but these come from
tenants, and one that backtracks for ever would hold the interpreter, and with it every tenant's stream."""


class AdapterConfigError(ValueError):
    """A configuration that we do not serve; the text names the field and what is expected."""


@dataclass(frozen=True, slots=True)
class LoraConfig:
    """Ranks and scalings of one adapter.

    Attributes:
        target_modules: names that must occur in the model; empty for a pattern or all-linear.
        raw: the whole object, as it was written.
    """

    rank: int
    alpha: float
    use_rslora: bool
    rank_pattern: Mapping[str, int]
    alpha_pattern: Mapping[str, float]
    target_modules: tuple[str, ...]
    raw: Mapping[str, Any]

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Raises AdapterConfigError naming the field that is missing, malformed or not supported."""
        try:
            value = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise AdapterConfigError(f"adapter_config.json is not JSON: {error}") from error
        if not isinstance(value, dict):
            raise AdapterConfigError(f"adapter_config.json must hold an object, got {type(value).__name__}")
        _refuse_unsupported(value)
        ranks = _patterns(value, "rank_pattern", whole=True)
        return cls(
            rank=int(_number(value, "r", whole=True)),
            alpha=_number(value, "lora_alpha"),
            use_rslora=bool(value.get("use_rslora", False)),
            rank_pattern={path: int(number) for path, number in ranks.items()},
            alpha_pattern=_patterns(value, "alpha_pattern"),
            target_modules=_targets(value.get("target_modules")),
            raw=value,
        )

    @property
    def max_rank(self) -> int:
        """Largest rank that any module may have."""
        return max(self.rank, *self.rank_pattern.values(), 0)

    def rank_of(self, module: str) -> int:
        """Rank of a module by its full path."""
        return int(_match(self.rank_pattern, module, self.rank))

    def scaling_of(self, module: str) -> float:
        """alpha / rank, or alpha / sqrt(rank) under rsLoRA (Kalajdzievski, 2023)."""
        rank = self.rank_of(module)
        alpha = _match(self.alpha_pattern, module, self.alpha)
        return alpha / (math.sqrt(rank) if self.use_rslora else rank)


def _refuse_unsupported(value: Mapping[str, Any]) -> None:
    for name, allowed in _MUST_BE.items():
        if (name in value and value[name] not in allowed) or (name == "peft_type" and name not in value):
            raise AdapterConfigError(
                f"adapter_config.json: {name} must be {allowed[0]!r}, got {value.get(name)!r}"
            )
    for name in _MUST_BE_OFF:
        if value.get(name):
            raise AdapterConfigError(
                f"adapter_config.json: {name} is not served: train the adapter without it"
            )
    start = value.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_CHANGES_BASE):
        raise AdapterConfigError(
            f"adapter_config.json: init_lora_weights {start!r} alters the base's weights: save the adapter "
            "with path_initial_model_for_weight_conversion, which makes it a plain one"
        )


def _number(value: Mapping[str, Any], name: str, *, whole: bool = False) -> float:
    number = value.get(name)
    kinds = (int,) if whole else (int, float)
    if not isinstance(number, kinds) or isinstance(number, bool) or not 0 < number < 65536:
        kind = "a positive whole number" if whole else "a positive number"
        raise AdapterConfigError(f"adapter_config.json: {name} must be {kind}, got {number!r}")
    return number


def _patterns(value: Mapping[str, Any], name: str, *, whole: bool = False) -> dict[str, float]:
    patterns = value.get(name) or {}
    if not isinstance(patterns, dict):
        raise AdapterConfigError(f"adapter_config.json: {name} must be an object, got {patterns!r}")
    for path in patterns:
        if _PATH.fullmatch(path) is None:
            raise AdapterConfigError(
                f"adapter_config.json: {name} key {path!r} must be a module's name or path"
            )
    return {
        path.replace("\\", ""): _number({f"{name}.{path}": number}, f"{name}.{path}", whole=whole)
        for path, number in patterns.items()
    }


def _targets(value: object) -> tuple[str, ...]:
    if isinstance(value, str) or value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise AdapterConfigError(
            f"adapter_config.json: target_modules must be a text or a list of texts, got {value!r}"
        )
    return tuple(value)


def _match(patterns: Mapping[str, float], module: str, default: float) -> float:
    for path, value in patterns.items():
        if module == path.removeprefix("^") or module.endswith(f".{path}"):
            return value
    return default
