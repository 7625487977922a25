"""Sizes the memory pool, and checks that a CUDA device has room for it and for the memory of steps.

Running out of memory while serving would end every request; a refusal at start says what to set.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Self

import torch

from kernels.lora.graph import GraphTables
from worker_engine.checkpoint.model_config import PACKED_MODULES, ModelConfig
from worker_engine.config import PAGE_SIZE, EngineConfig, step_tokens
from worker_engine.decode_graphs import KINDS, buckets
from worker_engine.errors import ConfigError

SPARE_BYTES: Final = 512 << 20
"""Library workspaces and allocator rounding; an unmeasured guess."""
RECORDING_BYTES: Final = 16 << 20
"""Memory of one captured decode step: its nodes, worklists and block tables; an unmeasured guess."""
COPIES_OF_LOGITS: Final = 6
"""Float32 [rows, vocab] tensors that the sampler holds at once when a request truncates its distribution."""


@dataclass(frozen=True, slots=True)
class PoolSize:
    """Pages of the memory pool; page 0 belongs to no sequence."""

    num_pages: int
    page_bytes: int

    @classmethod
    def for_model(cls, engine: EngineConfig, model: ModelConfig, dtype: torch.dtype) -> Self:
        """Return the pages that `memory_gib` holds. Raises ConfigError if that is none."""
        token_bytes = model.num_layers * math.prod(model.cache_shape) * dtype.itemsize
        page_bytes = token_bytes * PAGE_SIZE
        num_pages = 1 + int(engine.memory_gib * 2**30 / page_bytes)
        if num_pages < 2:
            raise ConfigError(f"--memory-gib {engine.memory_gib} does not hold a single page of KV cache")
        return cls(num_pages, page_bytes)


def check_room(
    engine: EngineConfig,
    model: ModelConfig,
    pool: PoolSize,
    *,
    captured: bool,
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    """Raise ConfigError if the device, which holds the weights, has too little room for pool and steps."""
    beside = beside_pool(
        model,
        rows=step_tokens(engine, device.type),
        sequences=engine.sampled_rows,
        adapters=engine.max_adapters_per_batch,
        recordings=len(KINDS) * len(buckets(engine.max_num_seqs)) if captured else 0,
        merges=engine.merge_adapter != "off",
        dtype=dtype,
    )
    demand_room(pool.num_pages * pool.page_bytes, beside, free_bytes(device))


def beside_pool(
    model: ModelConfig,
    *,
    rows: int,
    sequences: int,
    adapters: int,
    recordings: int,
    merges: bool,
    dtype: torch.dtype,
) -> int:
    """Return an upper estimate of the bytes that steps need in addition to weights and pool.

    Args:
        rows: of the largest step.
        adapters: of the largest batch.
        recordings: number of captured decode steps; 0 for none.
        merges: True if the linear layers have a second, merged copy.
    """
    wide = model.hidden_size + sum(out for out, _ in model.linear_shapes.values())
    # A layer's inputs and outputs, those of the previous layer, and the attention scores between them.
    activations = 2 * rows * wide * dtype.itemsize
    logits = COPIES_OF_LOGITS * 4 * sequences * model.vocab_size
    tables = GraphTables.bytes_for(
        [len(modules) for modules in PACKED_MODULES.values()], model.num_layers, adapters=adapters
    )
    recorded = recordings * RECORDING_BYTES + tables if recordings else 0
    linear = sum(out * inner for out, inner in model.linear_shapes.values())
    merged = merges * model.num_layers * linear * dtype.itemsize
    return activations + logits + recorded + merged + SPARE_BYTES


def free_bytes(device: torch.device) -> int:
    """Return the device's free bytes, including memory that PyTorch still reserves from a closed engine."""
    reserved = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0]) + reserved


def demand_room(pool: int, beside: int, free: int) -> None:
    """Raise ConfigError, naming the pool size that fits, if pool and steps need more than `free` bytes."""
    if pool + beside <= free:
        return
    fitting = (free - beside) / 2**30
    advice = (
        f"set it to {fitting:.1f}"
        if fitting >= 0.1
        else "this model leaves no room for a pool: take a smaller one or a larger device, or lower "
        "--max-num-batched-tokens"
    )
    raise ConfigError(
        f"--memory-gib {pool / 2**30:.1f}: beside the weights {free / 2**30:.1f} GiB are free, "
        f"of which steps take about {beside / 2**30:.1f}; {advice}"
    )
