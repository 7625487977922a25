"""All layers of a decoder in one native call, with the batch's LoRA for their linear layers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final, NamedTuple

import torch

from kernels import native
from kernels.attention.native_attention import step_of
from kernels.attention.plan import AttentionPlan
from kernels.lora import Segments
from kernels.lora.native_stack import StackLora
from kernels.moe.native_moe import NativeMoe
from kernels.native.matrix import NativeMatrix
from kernels.native.stack import Adapters, Stack, StackLayer
from worker_engine.layers.attention import KVCache
from worker_engine.layers.linear import LayerLora, LoraLinear, PackedLinear
from worker_engine.layers.norm import HeadNorm, RMSNorm
from worker_engine.layers.rotary import Angles


class StackPart(NamedTuple):
    """The modules and parameters of one layer; `rope` indexes the step's angles.

    `moe` stands in place of gate_up and down; it is None also for experts that are not in native form.
    """

    linears: dict[str, LoraLinear]
    input_norm: RMSNorm
    mlp_norm: RMSNorm
    head_norm: HeadNorm | None
    window: int
    scale: float
    rope: int
    moe: NativeMoe | None = None


class StackedLayers(Sequence[LayerLora], ABC):
    """A batch's adapters by decoder layer that can also be passed to native code for all layers at once."""

    @property
    @abstractmethod
    def stacked(self) -> StackLora | None:
        """The stacked weights; None if an adapter has more than LoRA pairs, or native code cannot read it."""


class NativeStack:
    """The layers in the native code's form, rebuilt when layers have swapped weights."""

    def __init__(self, parts: Sequence[StackPart], *, heads: int) -> None:
        self._parts, self._heads = parts, heads
        kinds = list(dict.fromkeys((part.window, part.scale, part.rope) for part in parts))
        self._kinds: Final = kinds
        self._built: tuple[int, KVCache, Stack] | None = None
        self._possible = native.LIBRARY is not None and all(map(_fits, parts))

    def takes(self, plan: AttentionPlan, cache: KVCache, lora: Sequence[LayerLora]) -> bool:
        """Return True if one native call can run a step with these adapters (by layer; empty for none)."""
        pages = cache.layer(0)
        if not self._possible or plan.graph is not None or cache.memory is not None or pages.shape[4] % 32:
            return False
        return not lora or _stacked(lora, self._stack(cache)) is not None

    def run_(
        self,
        x: torch.Tensor,
        plan: AttentionPlan,
        cache: KVCache,
        angles: Sequence[Angles],
        lora: Sequence[LayerLora],
        segments: Segments,
    ) -> None:
        """Run x [rows, hidden] through all layers, in place; writes their keys and values to the cache."""
        pages, stack = cache.layer(0), self._stack(cache)
        steps = [
            step_of(plan, self._heads, pages, window, scale, angles[rope]).address
            for window, scale, rope in self._kinds
        ]
        held = _stacked(lora, stack)
        if held is None:
            stack.run_(x, steps)
        else:
            rows = len(segments.adapters)
            products, owners = held.products(segments), segments.row_adapter
            stack.run_(x, steps, Adapters(rows, held.layers, held.address, products, owners))

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
        qkv, o = part.linears["qkv"], part.linears["o"]
        gate_up, down = part.linears.get("gate_up"), part.linears.get("down")
        return StackLayer(
            part.input_norm.gain,
            None if part.head_norm is None else part.head_norm.gain,
            part.mlp_norm.gain,
            _blocks(qkv),
            qkv.bias,
            _blocks(o),
            o.bias,
            None if gate_up is None else _blocks(gate_up),
            None if gate_up is None else gate_up.bias,
            None if down is None else _blocks(down),
            None if down is None else down.bias,
            cache.layer(index),
            self._kinds.index((part.window, part.scale, part.rope)),
            part.moe,
        )


def _stacked(lora: Sequence[LayerLora], stack: Stack) -> StackLora | None:
    """Return the stacked adapters, if any. Raises ValueError for adapters of other layer shapes."""
    held = lora.stacked if isinstance(lora, StackedLayers) else None
    if held is not None:
        held.demand_shapes(stack.shapes)
    return held


def _fits(part: StackPart) -> bool:
    whole = part.moe is not None or "gate_up" in part.linears
    return whole and all(linear.packed.matrix is not None for linear in part.linears.values())


def _blocks(linear: LoraLinear) -> NativeMatrix:
    if linear.packed.matrix is None:
        raise ValueError("weights that are not in native blocks: ask `takes` first")
    return linear.packed.matrix
