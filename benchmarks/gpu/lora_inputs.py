"""Inputs of one multi-LoRA call on random data, its necessary bytes and operations, and its call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

from benchmarks.gpu.timing import Call
from kernels.lora import LoraPair, LoraWeights, Owners, Segments, concatenate, cpu
from kernels.lora.plan import Plan
from kernels.lora.rank_rows import RankRows

MOST_SETS: Final = 4096
CACHE_TURNS: Final = 2
"""Size of all input sets together, as a multiple of the L2 cache."""


@dataclass(frozen=True, slots=True)
class LoraInputs:
    """One set: adapters by slice and index, and a batch that uses them.

    Attributes:
        pairs: by slice, then by adapter; None at rank 0.
        x: [rows, inner].
        out: [rows, sum(widths)], the base output that the op adds to.
    """

    pairs: list[list[LoraPair | None]]
    widths: tuple[int, ...]
    x: torch.Tensor
    out: torch.Tensor
    row_adapter: list[int]

    @classmethod
    def draw(
        cls,
        ranks: Sequence[int],
        widths: Sequence[int],
        inner: int,
        row_adapter: Sequence[int],
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> LoraInputs:
        """Draw normal values: A of variance 1/inner and B of 1/rank, so that outputs stay near one."""

        def normal(rows: int, columns: int, scale: float) -> torch.Tensor:
            # Draw and scale in place: a second copy of a large layer's adapters takes gigabytes.
            return torch.randn(rows, columns, device=device, dtype=dtype).mul_(scale)

        pairs: list[list[LoraPair | None]] = []
        spread = max(sum(ranks) / len(ranks), 1) ** -0.5
        for width in widths:
            a = torch.split(normal(sum(ranks), inner, inner**-0.5), list(ranks))
            b = torch.split(normal(sum(ranks), width, spread), list(ranks))
            pairs.append([LoraPair(*pair) if len(pair[0]) else None for pair in zip(a, b, strict=True)])
        x = normal(len(row_adapter), inner, 1.0)
        return cls(pairs, tuple(widths), x, normal(len(row_adapter), sum(widths), 1.0), list(row_adapter))

    @property
    def weights(self) -> LoraWeights:
        weights = concatenate(self.pairs, self.widths, Owners(self.x.device))
        if weights is None:
            raise ValueError(f"ranks of {len(self.pairs[0])} adapters are all 0; expected one that is not")
        return weights


@dataclass(frozen=True, slots=True)
class Work:
    """The necessary memory traffic and operations of a call.

    Attributes:
        nbytes: each active adapter's A and B once at their real rank, x once, the changed rows of the output
            once read and once written.
        flops: two for each product of the active ranks.
    """

    nbytes: int
    flops: int

    @classmethod
    def for_batch(
        cls,
        ranks: Sequence[int],
        widths: Sequence[int],
        inner: int,
        row_adapter: Sequence[int],
        element_size: int,
    ) -> Work:
        rows = Counter(adapter for adapter in row_adapter if adapter >= 0 and ranks[adapter])
        per_rank = sum(inner + width for width in widths)
        weights = sum(ranks[adapter] for adapter in rows) * per_rank
        activations = rows.total() * (inner + 2 * sum(widths))
        flops = 2 * per_rank * sum(ranks[adapter] * count for adapter, count in rows.items())
        return cls((weights + activations) * element_size, flops)


def sets_needed(nbytes: int, device: torch.device, *, quick: bool) -> int:
    """Return the number of input sets to rotate so that no call finds its inputs in the cache."""
    if device.type != "cuda":
        return 1 if quick else 2
    cache = torch.cuda.get_device_properties(device).L2_cache_size
    return min(max(2, -(-CACHE_TURNS * cache // max(nbytes, 1))), MOST_SETS)


def calls(sets: Sequence[LoraInputs]) -> list[Call]:
    """Return the op's call on each set: kernels on CUDA, the CPU path elsewhere; planned once for all."""
    if sets[0].x.is_cuda:
        from kernels.lora import gpu

        tables = [RankRows.stacked(one.weights) for one in sets]
        # Bounds, columns and rows are the same in every set.
        plan = Plan.build(sets[0].row_adapter, tables[0])

        def on_gpu(one: LoraInputs, rows: RankRows) -> Call:
            return lambda: gpu.run(one.out, one.x, rows, plan)

        return [on_gpu(one, rows) for one, rows in zip(sets, tables, strict=True)]
    segments = Segments.group(sets[0].row_adapter)

    def on_cpu(one: LoraInputs, weights: LoraWeights) -> Call:
        return lambda: cpu.apply_lora(one.out, one.x, weights, segments)

    return [on_cpu(one, one.weights) for one in sets]
