"""A decoder's layers in one native call, for steps in which no adapter changes anything in between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import torch

from kernels import native
from kernels.attention.native_attention import step_of
from kernels.attention.plan import AttentionPlan
from kernels.native.matrix import NativeMatrix
from kernels.native.stack import Stack, StackLayer
from worker_engine.layers.attention import KVCache
from worker_engine.layers.linear import LoraLinear, PackedLinear
from worker_engine.layers.norm import HeadNorm, RMSNorm
from worker_engine.layers.rotary import Angles


class StackPart(NamedTuple):
    """What one layer brings; `rope` says which of a step's angles it takes."""

    linears: dict[str, LoraLinear]
    input_norm: RMSNorm
    mlp_norm: RMSNorm
    head_norm: HeadNorm | None
    window: int
    scale: float
    rope: int


class NativeStack:
    """The layers as the native code takes them, looked up anew when weights have changed places."""

    def __init__(self, parts: Sequence[StackPart], *, heads: int) -> None:
        self._parts, self._heads = parts, heads
        kinds = list(dict.fromkeys((part.window, part.scale, part.rope) for part in parts))
        self._kinds: Final = kinds
        self._built: tuple[int, KVCache, Stack] | None = None
        self._possible = native.LIBRARY is not None and all(
            linear.matrix is not None for part in parts for linear in part.linears.values()
        )

    def takes(self, plan: AttentionPlan, cache: KVCache) -> bool:
        """Whether a step without adapters can run in one call."""
        pages = cache.layer(0)
        return self._possible and plan.graph is None and cache.memory is None and pages.shape[4] % 32 == 0

    def run_(self, x: torch.Tensor, plan: AttentionPlan, cache: KVCache, angles: Sequence[Angles]) -> None:
        """x [rows, hidden] through all layers, in place; writes their keys and values."""
        pages = cache.layer(0)
        steps = [
            step_of(plan, self._heads, pages, window, scale, angles[rope]).address
            for window, scale, rope in self._kinds
        ]
        self._stack(cache).run_(x, steps)

    def _stack(self, cache: KVCache) -> Stack:
        built = self._built
        if built is None or built[0] != PackedLinear.exchanges or built[1] is not cache:
            stack = Stack(
                [self._layer(index, part, cache) for index, part in enumerate(self._parts)],
                heads=self._heads,
                eps=self._parts[0].input_norm.eps,
            )
            built = self._built = (PackedLinear.exchanges, cache, stack)
        return built[2]

    def _layer(self, index: int, part: StackPart, cache: KVCache) -> StackLayer:
        qkv, o, gate_up, down = (part.linears[name] for name in ("qkv", "o", "gate_up", "down"))
        weights = [_blocks(linear) for linear in (qkv, o, gate_up, down)]
        return StackLayer(
            part.input_norm.gain, None if part.head_norm is None else part.head_norm.gain, part.mlp_norm.gain,
            weights[0], qkv.bias, weights[1], o.bias, weights[2], gate_up.bias, weights[3], down.bias,
            cache.layer(index), self._kinds.index((part.window, part.scale, part.rope)),
        )  # fmt: skip


def _blocks(linear: LoraLinear) -> NativeMatrix:
    if linear.matrix is None:
        raise ValueError("weights that are not in native blocks: ask `takes` first")
    return linear.matrix
