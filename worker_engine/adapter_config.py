"""PEFT's adapter_config.json: what of it we serve, and each module's scaling."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from worker_engine.errors import AdapterRefused

_MUST_BE: Final[Mapping[str, tuple[object, ...]]] = {
    "peft_type": ("LORA",),
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
_PATTERN: Final = re.compile(r"[\w.\\|()^$*+-]{1,200}")


@dataclass(frozen=True, slots=True)
class LoraConfig:
    """Ranks and scalings of one adapter."""

    rank: int
    alpha: float
    use_rslora: bool
    rank_pattern: Mapping[str, int]
    alpha_pattern: Mapping[str, float]

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Raises AdapterRefused naming the field that is missing, malformed or not supported."""
        try:
            value = json.loads(data)
        except ValueError as error:
            raise AdapterRefused(f"adapter_config.json is not JSON: {error}") from error
        if not isinstance(value, dict):
            raise AdapterRefused("adapter_config.json must hold an object")
        _refuse_unsupported(value)
        rank = _number(value, "r", whole=True)
        alpha = _number(value, "lora_alpha")
        ranks = _patterns(value, "rank_pattern", whole=True)
        return cls(
            int(rank),
            alpha,
            bool(value.get("use_rslora", False)),
            {pattern: int(number) for pattern, number in ranks.items()},
            _patterns(value, "alpha_pattern"),
        )

    def rank_of(self, module: str) -> int:
        """Rank of a module by its full path, as PEFT matches `rank_pattern`."""
        return int(_match(self.rank_pattern, module, self.rank))

    def scaling_of(self, module: str) -> float:
        """alpha / rank, or alpha / sqrt(rank) under rsLoRA (Kalajdzievski, 2023)."""
        rank = self.rank_of(module)
        alpha = _match(self.alpha_pattern, module, self.alpha)
        return alpha / (math.sqrt(rank) if self.use_rslora else rank)


def _refuse_unsupported(value: Mapping[str, Any]) -> None:
    for name, allowed in _MUST_BE.items():
        if (name in value and value[name] not in allowed) or (name == "peft_type" and name not in value):
            raise AdapterRefused(
                f"adapter_config.json: {name} {value.get(name)!r} is not served, only {allowed[0]!r}"
            )
    for name in _MUST_BE_OFF:
        if value.get(name):
            raise AdapterRefused(f"adapter_config.json: {name} is not served; train the adapter without it")
    start = value.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_CHANGES_BASE):
        raise AdapterRefused(
            f"adapter_config.json: init_lora_weights {start!r} alters the base weights; save the adapter "
            "with path_initial_model_for_weight_conversion, which turns it into a plain one"
        )


def _number(value: Mapping[str, Any], name: str, *, whole: bool = False) -> float:
    number = value.get(name)
    kinds = (int,) if whole else (int, float)
    if not isinstance(number, kinds) or isinstance(number, bool) or not 0 < number < 65536:
        kind = "a positive integer" if whole else "a positive number"
        raise AdapterRefused(f"adapter_config.json: {name} must be {kind}, got {number!r}")
    return number


def _patterns(value: Mapping[str, Any], name: str, *, whole: bool = False) -> dict[str, float]:
    patterns = value.get(name) or {}
    if not isinstance(patterns, dict):
        raise AdapterRefused(f"adapter_config.json: {name} must be an object, got {patterns!r}")
    for pattern in patterns:
        # Patterns are a tenant's regular expressions: none that can backtrack for ever is compiled.
        nested = re.search(r"\)[*+?{]", pattern) or len(re.findall(r"[*+]", pattern)) > 4
        if _PATTERN.fullmatch(pattern) is None or nested:
            raise AdapterRefused(
                f"adapter_config.json: {name} key {pattern!r} must be a module path or a simple pattern"
            )
        try:
            re.compile(pattern)
        except re.error as error:
            raise AdapterRefused(f"adapter_config.json: {name} key {pattern!r}: {error}") from error
    return {pattern: _number(patterns, pattern, whole=whole) for pattern in patterns}


def _match(patterns: Mapping[str, float], module: str, default: float) -> float:
    for pattern, value in patterns.items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return value
    return default
