"""How `python -m kernels.tune` measures the tiles of paged attention."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch

from kernels.attention import gpu, reference
from kernels.attention.plan import AttentionPlan
from kernels.attention.tile import DECODE_ROWS, AttentionTile, block_dim, tile_for
from kernels.attention.tuned_tiles import LEVELS
from kernels.attention.worklist import Heads
from kernels.tuned import Shape

PAGE_SIZE: Final = 16
LAYERS: Final = {(128, 4): 8, (128, 8): 8, (64, 8): 8, (256, 2): 8}
"""kv heads by (head_dim, heads that share one): Llama-3.1-8B; its 70B and Qwen3-32B; GPT-OSS; Gemma 3."""

BATCHES: Final = (
    (1, 64, 2048),
    (1, 16, 2048),
    (512, 1, 2048),
    (1, 256, 1024),
    (1, 1, 2048),
    (2048, 1, 2048),
    (1, 16, 16384),
    (1, 1, 16384),
    (128, 8, 512),
    (512, 1, 16384),
)
"""(new tokens of a sequence, sequences, context), the most wanted first."""

DECODE: Final[Mapping[str, Sequence[object]]] = {
    "blocks": (256, 512, 1024, 2048),
    "part": (64, 128, 256, 512, 1024),
    "keys": (16, 32, 64, 128),
    "warps": (1, 2, 4, 8),
    "stages": (2, 3, 4, 5, 6),
}
PREFILL: Final[Mapping[str, Sequence[object]]] = {
    "rows": (32, 64, 128),
    "keys": (32, 64, 128),
    "warps": (4, 8),
    "stages": (2, 3, 4),
    "blocks": (256, 512, 1024),
    "part": (512, 1024, 2048),
}
THREAD_ELEMENTS: Final = 128
"""Elements of the scores and of the output that a thread may hold, in float32. More spill."""


@dataclass(frozen=True, slots=True)
class AttentionTrial:
    """One step's batch over keys and values of several layers.

    Attributes:
        expected: the first set's output from products in float32 (float64 on the CPU).
    """

    plan: AttentionPlan
    heads: Heads
    q: tuple[torch.Tensor, ...]
    kv_pages: tuple[torch.Tensor, ...]
    expected: torch.Tensor

    @property
    def sets(self) -> int:
        return len(self.q)

    @property
    def scale(self) -> float:
        return float(self.heads.dim**-0.5)

    def calls(self, config: AttentionTile) -> Sequence[Callable[[], object]]:
        work = gpu.DevicePlan.build(self.plan, self.heads, 0, choose=lambda *_: config)

        def call(q: torch.Tensor, kv_pages: torch.Tensor) -> Callable[[], object]:
            return partial(gpu.run, q, kv_pages, work, scale=self.scale, out=torch.empty_like(q))

        return [call(*one) for one in zip(self.q, self.kv_pages, strict=True)]

    def error(self, config: AttentionTile) -> float:
        work = gpu.DevicePlan.build(self.plan, self.heads, 0, choose=lambda *_: config)
        for part in work.parts:
            for written in (part.partial, part.peaks, part.totals):
                written.fill_(math.nan)
        out = torch.full_like(self.q[0], math.nan)
        gpu.run(self.q[0], self.kv_pages[0], work, scale=self.scale, out=out)
        return float((out.to(self.expected.dtype) - self.expected).norm() / self.expected.norm())


class AttentionTuning:
    """The kernel and the one that joins its parts in one: they share the parts. Decode and prefill apart."""

    op = "attention"
    levels = LEVELS
    tolerance = 2e-2
    """Relative; bf16 rounds the weights and the output, about 3e-3 each."""

    def shapes(self, *, quick: bool) -> Sequence[Shape]:
        if quick:
            return [self._shape(4, 16, 2, *batch) for batch in ((1, 3, 40), (18, 1, 24))]
        return [self._shape(2, dim, group, *batch) for batch in BATCHES for dim, group in LAYERS]

    def _shape(self, size: int, dim: int, group: int, queries: int, sequences: int, context: int) -> Shape:
        numbers = (size, dim, queries * group, group, sequences, context)
        return dict(zip(LEVELS, numbers, strict=True))

    def parse(self, values: Mapping[str, object]) -> AttentionTile:
        return AttentionTile.parse(values)

    def default(self, shape: Shape) -> AttentionTile:
        return tile_for(shape["rows"], shape["head_dim"], shape["element_size"])

    def axes(self, shape: Shape, *, quick: bool) -> Mapping[str, Sequence[object]]:
        if quick:
            return {"part": (16, 32), "keys": (32,)}
        return DECODE if shape["rows"] <= DECODE_ROWS else PREFILL

    def fits(self, shape: Shape, config: AttentionTile, shared_memory: int) -> bool:
        """Decode's rows are the least there are: more would be empty."""
        decode, default = shape["rows"] <= DECODE_ROWS, self.default(shape)
        keys = shape["sequences"] * shape["context"] * self._kv_heads(shape)
        chunks = max(1, shape["rows"] // config.rows)
        useful = {"rows": shape["rows"], "part": shape["context"], "blocks": keys * chunks // config.part}
        if decode != (config.rows == DECODE_ROWS) or any(
            getattr(config, name) > getattr(default, name) and getattr(config, name) >= 2 * most
            for name, most in useful.items()
        ):
            return False
        width = block_dim(shape["head_dim"])
        held = config.rows * (config.keys + width)
        # The compiler keeps about half of the stages of keys and values, and two at least.
        pairs = 2 * max(2, config.stages // 2) * config.keys
        staged = (pairs + config.rows) * width * shape["element_size"]
        return held <= THREAD_ELEMENTS * 32 * config.warps and staged <= shared_memory

    def _kv_heads(self, shape: Shape) -> int:
        return LAYERS.get((shape["head_dim"], shape["group"]), 2)

    def trial(self, shape: Shape, device: torch.device, cache: int, *, quick: bool) -> AttentionTrial:
        group, sequences, context = shape["group"], shape["sequences"], shape["context"]
        dtype = torch.bfloat16 if shape["element_size"] == 2 else torch.float32
        kv_heads = self._kv_heads(shape)
        heads = Heads(group * kv_heads, kv_heads, shape["head_dim"], shape["element_size"])
        pages = -(-context // PAGE_SIZE)
        size = (2, kv_heads, sequences * pages, PAGE_SIZE, heads.dim)
        count = 1 if quick else max(2, math.ceil(cache / (math.prod(size) * heads.element_size)))
        draw = torch.Generator(device).manual_seed(1)
        order = torch.randperm(sequences * pages, generator=torch.Generator().manual_seed(1))
        queries = [shape["rows"] // group] * sequences
        plan = AttentionPlan.build(
            queries,
            [context] * sequences,
            order.view(sequences, pages).tolist(),
            page_size=PAGE_SIZE,
            device=device,
        )
        kv_pages = tuple(torch.randn(size, generator=draw, device=device).to(dtype) for _ in range(count))
        rows = (plan.rows, heads.count, heads.dim)
        q = tuple(torch.randn(rows, generator=draw, device=device).to(dtype) for _ in range(count))
        exact = torch.float32 if device.type == "cuda" else torch.float64
        expected = reference.attend(q[0].to(exact), kv_pages[0].to(exact), plan, scale=heads.dim**-0.5)
        return AttentionTrial(plan, heads, q, kv_pages, expected)


TUNING: Final = AttentionTuning()
