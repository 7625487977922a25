"""adapter_config.json: what of PEFT's LoRA we serve."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from controlplane.errors import RefusedError

_FILE: Final = "adapter_config.json"
_OFF: Final = (
    "use_dora", "lora_bias", "fan_in_fan_out", "use_qalora", "modules_to_save", "layer_replication",
    "trainable_token_indices", "target_parameters", "megatron_config", "alora_invocation_tokens",
)  # fmt: skip
_CHANGES_BASE: Final = ("pissa", "olora", "loftq", "corda", "lora_ga")
_PATH: Final = re.compile(r"\^?[A-Za-z0-9_.]{1,200}")


@dataclass(frozen=True, slots=True)
class LoraConfig:
    """Rank of each module, and the module names that must occur; empty for a pattern or all-linear."""

    raw: dict[str, Any]
    rank: int
    rank_pattern: Mapping[str, int]
    target_modules: tuple[str, ...]

    @classmethod
    def from_bytes(cls, data: bytes, *, max_rank: int) -> Self:
        """Raises RefusedError naming the field and what is served."""
        try:
            value = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise RefusedError(f"{_FILE} is not JSON: {error}") from error
        if not isinstance(value, dict):
            raise RefusedError(f"{_FILE} must hold an object, got {type(value).__name__}")
        _refuse_unserved(value)
        rank = _whole(value.get("r"), "r", max_rank)
        alpha = value.get("lora_alpha")
        if not isinstance(alpha, int | float) or isinstance(alpha, bool) or not 0 < alpha < 65536:
            raise RefusedError(f"{_FILE}: lora_alpha must be a positive number, got {alpha!r}")
        patterns = value.get("rank_pattern") or {}
        if not isinstance(patterns, dict):
            raise RefusedError(f"{_FILE}: rank_pattern must be an object")
        for key in patterns:
            # Keys are a tenant's regular expressions; only paths, which cannot backtrack, are read.
            if _PATH.fullmatch(key) is None:
                raise RefusedError(f"{_FILE}: rank_pattern key {key!r} must be a module's name or path")
        ranks = {key: _whole(item, f"rank_pattern.{key}", max_rank) for key, item in patterns.items()}
        return cls(value, rank, ranks, _targets(value.get("target_modules")))

    def rank_of(self, module: str) -> int:
        """Rank that a module's tensors must have."""
        for key, rank in self.rank_pattern.items():
            path = key.removeprefix("^")
            if module == path or module.endswith(f".{path}"):
                return rank
        return self.rank


def _refuse_unserved(value: Mapping[str, Any]) -> None:
    if value.get("peft_type") != "LORA":
        raise RefusedError(f"{_FILE}: peft_type must be 'LORA', got {value.get('peft_type')!r}")
    if value.get("bias") not in (None, "none"):
        raise RefusedError(f"{_FILE}: bias must be 'none', got {value['bias']!r}")
    if value.get("task_type") not in (None, "CAUSAL_LM"):
        raise RefusedError(f"{_FILE}: task_type must be 'CAUSAL_LM', got {value['task_type']!r}")
    for name in _OFF:
        if value.get(name):
            raise RefusedError(f"{_FILE}: {name} is not served: train the adapter without it")
    start = value.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_CHANGES_BASE):
        raise RefusedError(
            f"{_FILE}: init_lora_weights {start!r} alters the base's weights: save the adapter with"
            " path_initial_model_for_weight_conversion, which makes it a plain one"
        )


def _whole(value: object, name: str, maximum: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= maximum:
        raise RefusedError(f"{_FILE}: {name} must be a whole number from 1 to {maximum}, got {value!r}")
    return value


def _targets(value: object) -> tuple[str, ...]:
    if isinstance(value, str) or value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise RefusedError(f"{_FILE}: target_modules must be a text or a list of texts, got {value!r}")
    return tuple(value)
