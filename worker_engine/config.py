"""The worker's configuration. The checkpoint's is `worker_engine.checkpoint.model_config`."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Final

from worker_engine.errors import ConfigError

PAGE_SIZE: Final = 16
"""Tokens per KV page."""
STEP_TOKENS: Final = {"cpu": 128, "cuda": 2048}
"""Default maximum of rows in a step. It bounds how long a disconnect or a decoding sequence waits for a
prefill.

CPU time of a 135M model in bf16 at 128 against 256 rows: longest step 159 against 314 ms for a prompt of 256
tokens, 265 against 510 ms for 1,024; in total 307 against 314 and 1,650 against 1,704 ms. The cost: eight
prompts of 40 tokens with four adapters take 478 against 369 ms. A GPU needs more rows to be busy; its value
is an unmeasured guess.
"""
VERIFIED_ROWS: Final = 128
"""Rows of a step with sampled logits when draft tokens are verified, unless more sequences decode. Each of
these rows needs logits over the vocabulary in memory.
"""
CHOICES: Final = {
    "device": ("auto", "cpu", "cuda"),
    "dtype": ("auto", "float32", "bfloat16"),
    "cuda_graphs": ("start", "lazy", "off"),
    "overlap": ("auto", "on", "off"),
    "speculation": ("off", "ngram", "draft"),
    "reasoning_parser": ("auto", "off", "think", "qwen3", "deepseek_r1", "mistral", "gpt_oss"),
}


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How this process serves its model.

    Attributes:
        max_model_len: longest prompt + completion; 0 takes the checkpoint's.
        max_num_seqs: sequences that decode together.
        max_num_batched_tokens: rows of one step; longer prompts are prefilled in chunks. 0 selects the
            device's default.
        max_waiting: requests accepted beyond the running ones; more are refused with 503.
        max_waiting_per_tenant: the same limit per tenant; more are refused with 429.
        drain_seconds: how long requests may continue after SIGTERM before they are aborted.
        max_adapters_per_batch: adapters that the sequences of one batch may use; others wait.
        memory_gib: the engine's memory pool: KV pages, cached prefixes, and the adapters of the running
            batch.
        adapters_dir: the folder that adapters registered by path may come from; each of its subfolders is
            registered at start. The default is `adapters` in the model's folder, if it exists.
        adapter_cache_gib: host memory for adapters; unused ones are evicted, oldest first.
        adapter_disk_gib: disk for adapter files in `adapter_cache_dir`; least recently read ones are evicted.
        max_adapter_mib: largest accepted adapter file; 0 takes what LoRA of rank 64 on the whole base model
            needs in float32, at least 2048.
        merge_adapter: "off", "auto", or the digest of the adapter to merge into a second copy of the base's
            linear layers, for steps in which all rows use it; "auto" selects a hot one.
        weights_cache: folder of packed weights in files that copies on one host map; "auto" for `weights` in
            the native loops' cache folder, or "off".
        cuda_graphs: when decode steps are captured on CUDA: "start" before the first request, "lazy" when
            a batch size first occurs, "off" never.
        overlap: whether a step is launched before the tokens of the previous one are read; "auto" on CUDA
            without speculation.
        speculation: source of draft tokens, which steps verify while decoding: "ngram" where a sequence
            repeats itself, "draft" a smaller model.
        speculation_tokens: most draft tokens of one sequence that a step verifies.
        draft_model: the smaller model's checkpoint, of the same vocabulary.
        draft_memory_gib: memory of the smaller model's KV pages.
        reasoning_parser: how the model marks the thought before an answer; "auto" by its chat template.
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
    max_adapter_mib: int = 0
    merge_adapter: str = "off"
    weights_cache: str = "auto"
    cuda_graphs: str = "start"
    overlap: str = "auto"
    speculation: str = "off"
    speculation_tokens: int = 8
    draft_model: Path | None = None
    draft_memory_gib: float = 0.25
    reasoning_parser: str = "auto"
    num_threads: int = 0
    fleet_token: str = field(default="", repr=False)
    s3_endpoint_url: str | None = None

    def __post_init__(self) -> None:
        if not self.served_model_name:
            raise ConfigError("--served-model-name must not be empty")
        for name, (*others, last) in CHOICES.items():
            value, flag = getattr(self, name), f"--{name.replace('_', '-')}"
            if value not in (*others, last):
                raise ConfigError(f"{flag} must be {', '.join(others)} or {last}, got {value!r}")
        if self.merge_adapter not in ("off", "auto") and not re.fullmatch("[0-9a-f]{64}", self.merge_adapter):
            raise ConfigError(
                f"--merge-adapter must be off, auto or 64 lower-case hex digits, got {self.merge_adapter!r}"
            )
        for name in (
            "max_num_seqs",
            "memory_gib",
            "max_adapters_per_batch",
            "speculation_tokens",
            "draft_memory_gib",
        ):
            if getattr(self, name) <= 0:
                raise ConfigError(f"--{name.replace('_', '-')} must be positive, got {getattr(self, name)}")
        if not 0 <= self.port < 65536:
            raise ConfigError(f"--port must be 0 to 65535, got {self.port}")
        for item in fields(self):
            if isinstance(value := getattr(self, item.name), int | float) and value < 0:
                raise ConfigError(f"--{item.name.replace('_', '-')} must not be negative")
        if 0 < self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError("--max-num-batched-tokens must be at least --max-num-seqs")
        if self.adapters_dir is not None and not self.adapters_dir.is_dir():
            raise ConfigError(f"--adapters-dir {self.adapters_dir} is not a folder")
        self._check_speculation()

    def _check_speculation(self) -> None:
        if (self.speculation == "draft") != (self.draft_model is not None):
            raise ConfigError("--speculation draft and --draft-model need each other")
        if self.speculation != "off" and self.overlap == "on":
            raise ConfigError("--overlap on and --speculation exclude each other: guesses follow tokens read")

    @property
    def sampled_rows(self) -> int:
        """Most rows of a step whose next token is sampled."""
        return self.max_num_seqs if self.speculation == "off" else max(self.max_num_seqs, VERIFIED_ROWS)

    @property
    def packed_dir(self) -> Path | None:
        """The folder of `weights_cache`; None for "off"."""
        if self.weights_cache == "auto":
            return cache_folder() / "weights"
        return None if self.weights_cache == "off" else Path(self.weights_cache)


def cache_folder() -> Path:
    """Return the machine's cache folder for generated files, the same as in `kernels.native`."""
    return Path(os.environ.get("GRAFTWORK_WORKER_CACHE_DIR") or Path.home() / ".cache" / "graftwork")


def step_tokens(config: EngineConfig, device: str) -> int:
    """Return the most rows of a step on that kind of device."""
    return config.max_num_batched_tokens or max(STEP_TOKENS[device], config.max_num_seqs)
