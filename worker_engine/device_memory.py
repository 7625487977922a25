"""Whether a CUDA device has room for the pool and for what steps take beside it, told before there is a pool.

Out of memory in the middle of serving ends everybody's requests; a refusal to start says what to set.
"""

from __future__ import annotations

from typing import Final

import torch

from kernels.lora.graph import GraphTables
from worker_engine.checkpoint.model_config import PACKED_MODULES, ModelConfig
from worker_engine.errors import ConfigError

SPARE_BYTES: Final = 512 << 20
"""Workspaces of libraries, and what the allocator rounds up; a guess that nothing has measured."""
RECORDING_BYTES: Final = 16 << 20
"""Of one recorded decode step: its nodes, worklists and block tables; a guess that nothing has measured."""
COPIES_OF_LOGITS: Final = 6
"""Float32 [rows, vocab] that the sampler holds at a time where a request cuts its distribution."""


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
    """Bytes that steps take beside weights and pool, estimated from above.

    Args:
        rows: of the largest step.
        adapters: of the largest batch.
        recordings: of decode steps; 0 for none.
        merges: whether the linear layers have a second copy.
    """
    wide = model.hidden_size + sum(out for out, _ in model.linear_shapes.values())
    # A layer's inputs and outputs, those of the layer before it, and scores of attention in between.
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
    """What the device has left, with what PyTorch keeps of an engine that was closed."""
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0]) + kept


def demand_room(pool: int, beside: int, free: int) -> None:
    """Raises ConfigError, with the pool that would fit, when both take more than `free` bytes."""
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
