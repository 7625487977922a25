"""What the worker is told. What the checkpoint says is `worker_engine.model_config`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from worker_engine.adapters.config import MAX_ADAPTER_BYTES
from worker_engine.errors import ConfigError

PAGE_SIZE: Final = 16
"""Tokens per KV page."""


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
        adapters_dir: the folder that adapters registered by path may come from; each of its subfolders is
            registered at start. Left out, it is `adapters` in the model's folder, if there is one.
        adapter_cache_gib: host memory for adapters that requests may need; unused ones leave, oldest first.
        adapter_disk_gib: disk for adapters' files in `adapter_cache_dir`; those read longest ago leave it.
        max_adapter_mib: size over which an adapter's file is refused.
        merge_adapter: "off", "auto", or the content hash of the adapter that is merged into a second copy of
            the base's linear layers, for steps in which nobody else runs; "auto" finds it.
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
    adapters_dir: Path | None = None
    adapter_cache_dir: Path = Path("var/adapters")
    adapter_cache_gib: float = 1.0
    adapter_disk_gib: float = 10.0
    max_adapter_mib: int = MAX_ADAPTER_BYTES >> 20
    merge_adapter: str = "off"
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
        if self.merge_adapter not in ("off", "auto") and not re.fullmatch("[0-9a-f]{64}", self.merge_adapter):
            raise ConfigError(
                f"--merge-adapter must be off, auto or 64 lower-case hex digits, got {self.merge_adapter!r}"
            )
        for name in ("max_num_seqs", "max_adapter_mib", "memory_gib", "max_adapters_per_batch"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"--{name.replace('_', '-')} must be positive, got {getattr(self, name)}")
        for name in (
            "max_num_batched_tokens", "max_model_len", "num_threads", "max_waiting", "adapter_cache_gib",
            "max_waiting_per_tenant", "drain_seconds", "adapter_disk_gib",
        ):  # fmt: skip
            if getattr(self, name) < 0:
                raise ConfigError(f"--{name.replace('_', '-')} must not be negative")
        if 0 < self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError("--max-num-batched-tokens must be at least --max-num-seqs")
        if self.adapters_dir is not None and not self.adapters_dir.is_dir():
            raise ConfigError(f"--adapters-dir {self.adapters_dir} is not a folder")
        if not 0 <= self.port < 65536:
            raise ConfigError(f"--port must be 0 to 65535, got {self.port}")
