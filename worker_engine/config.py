"""What the worker is told (EngineConfig) and what the checkpoint says (ModelConfig). Both are frozen."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from worker_engine.errors import CheckpointError, ConfigError

PAGE_SIZE: Final = 16
"""Tokens per KV page."""
LORA_MODULES: Final = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""Linear layers that an adapter may change."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How this process serves its model.

    Attributes:
        max_model_len: longest prompt + completion; 0 takes the checkpoint's.
        max_num_seqs: sequences that decode together.
        max_num_batched_tokens: rows of one step; longer prompts are prefilled in chunks. 0 takes what suits
            the device.
        max_waiting: requests accepted beyond the running ones; more are refused with 503.
        max_waiting_per_tenant: as many of one tenant; more are refused with 429.
        drain_seconds: how long requests may go on after SIGTERM before they are cut.
        max_adapters_per_batch: adapters that sequences of one batch may use; others wait their turn.
        memory_gib: the engine's one pool: KV pages, cached prefixes, and the adapters of the running batch.
        adapter_cache_gib: host memory for adapters that requests may need; unused ones leave, oldest first.
        max_adapter_mib: size over which an adapter's file is refused.
        num_threads: CPU threads of the model; 0 takes all cores that this process may use.
    """

    model: Path
    served_model_name: str
    host: str = "127.0.0.1"
    port: int = 8002
    device: str = "auto"
    dtype: str = "auto"
    max_model_len: int = 0
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 0
    max_waiting: int = 1024
    max_waiting_per_tenant: int = 256
    drain_seconds: float = 20.0
    max_adapters_per_batch: int = 32
    memory_gib: float = 1.0
    adapter_cache_dir: Path = Path("var/adapters")
    adapter_cache_gib: float = 1.0
    max_adapter_mib: int = 2048
    num_threads: int = 0
    fleet_token: str = field(default="", repr=False)
    s3_endpoint_url: str | None = None

    def __post_init__(self) -> None:
        if not self.served_model_name:
            raise ConfigError("--served-model-name must not be empty")
        if self.device not in ("auto", "cpu", "cuda"):
            raise ConfigError(f"--device must be auto, cpu or cuda, got {self.device!r}")
        if self.dtype not in ("auto", "float32", "bfloat16"):
            raise ConfigError(f"--dtype must be auto, float32 or bfloat16, got {self.dtype!r}")
        for name in ("max_num_seqs", "max_adapter_mib", "memory_gib", "max_adapters_per_batch"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"--{name.replace('_', '-')} must be positive, got {getattr(self, name)}")
        for name in (
            "max_num_batched_tokens", "max_model_len", "num_threads", "max_waiting", "adapter_cache_gib",
            "max_waiting_per_tenant", "drain_seconds",
        ):  # fmt: skip
            if getattr(self, name) < 0:
                raise ConfigError(f"--{name.replace('_', '-')} must not be negative")
        if 0 < self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError("--max-num-batched-tokens must be at least --max-num-seqs")
        if not 0 <= self.port < 65536:
            raise ConfigError(f"--port must be 0 to 65535, got {self.port}")


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Llama 3's frequency scaling."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of a Llama checkpoint, from its config.json and generation_config.json."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    max_position_embeddings: int
    tie_word_embeddings: bool
    dtype: str
    eos_token_ids: tuple[int, ...]

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Reads a checkpoint's folder.

        Raises:
            CheckpointError: naming the file or field that is missing, malformed or not supported.
        """
        value = _read_json(folder / "config.json")
        generation = folder / "generation_config.json"
        eos = _read_json(generation).get("eos_token_id") if generation.is_file() else None
        try:
            return cls._parse(value, value.get("eos_token_id") if eos is None else eos)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(f"{folder}/config.json: missing or malformed field: {error!r}") from error

    @classmethod
    def _parse(cls, value: Mapping[str, Any], eos: object) -> Self:
        _refuse_unsupported(value)
        heads = int(value["num_attention_heads"])
        kv_heads = int(value.get("num_key_value_heads") or heads)
        if heads % kv_heads:
            raise CheckpointError("config.json: num_attention_heads is no multiple of num_key_value_heads")
        rope = value.get("rope_parameters") or {}
        scaling = value.get("rope_scaling") or (
            rope if rope.get("rope_type", "default") != "default" else None
        )
        ids: list[Any] = eos if isinstance(eos, list) else [] if eos is None else [eos]
        return cls(
            vocab_size=int(value["vocab_size"]),
            hidden_size=int(value["hidden_size"]),
            intermediate_size=int(value["intermediate_size"]),
            num_layers=int(value["num_hidden_layers"]),
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=int(value.get("head_dim") or int(value["hidden_size"]) // heads),
            rms_norm_eps=float(value["rms_norm_eps"]),
            rope_theta=float(value.get("rope_theta") or rope.get("rope_theta") or 10000.0),
            rope_scaling=_rope_scaling(scaling),
            max_position_embeddings=int(value["max_position_embeddings"]),
            tie_word_embeddings=bool(value.get("tie_word_embeddings", False)),
            dtype=str(value.get("dtype") or value.get("torch_dtype") or "float32"),
            eos_token_ids=tuple(int(item) for item in ids),
        )

    @property
    def linear_shapes(self) -> dict[str, tuple[int, int]]:
        """(out, in) of every module that an adapter may change."""
        hidden, inner = self.hidden_size, self.intermediate_size
        query, key = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        return {
            "q_proj": (query, hidden),
            "k_proj": (key, hidden),
            "v_proj": (key, hidden),
            "o_proj": (hidden, query),
            "gate_proj": (inner, hidden),
            "up_proj": (inner, hidden),
            "down_proj": (hidden, inner),
        }


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot read {path}: {error}. Is --model a Hugging Face folder?") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} must hold a JSON object")
    return value


def _refuse_unsupported(value: Mapping[str, Any]) -> None:
    architectures = value.get("architectures") or []
    if value.get("model_type") != "llama" or architectures not in ([], ["LlamaForCausalLM"]):
        raise CheckpointError(
            f"config.json: model_type {value.get('model_type')!r} with architectures {architectures} "
            "is not served; this worker serves LlamaForCausalLM"
        )
    for name, expected in (("hidden_act", "silu"), ("attention_bias", False), ("mlp_bias", False)):
        if value.get(name, expected) != expected:
            raise CheckpointError(f"config.json: {name} {value[name]!r} is not served, only {expected!r}")
    if value.get("quantization_config"):
        raise CheckpointError("config.json: quantization_config is not served; give unquantized weights")


def _rope_scaling(value: Mapping[str, Any] | None) -> RopeScaling | None:
    if value is None:
        return None
    kind = value.get("rope_type", value.get("type"))
    if kind == "default":
        return None
    if kind != "llama3":
        raise CheckpointError(f"config.json: rope scaling {kind!r} is not served, only 'llama3'")
    return RopeScaling(
        factor=float(value["factor"]),
        low_freq_factor=float(value["low_freq_factor"]),
        high_freq_factor=float(value["high_freq_factor"]),
        original_max_position_embeddings=int(value["original_max_position_embeddings"]),
    )
