"""The matrices of one kind of linear layer, a row per rank, and which adapter has which rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import torch

from kernels.lora import LoraWeights
from kernels.lora.layout import Layout
from kernels.lora.weights import RankMatrices
from worker_engine.adapters.adapter import Adapter
from worker_engine.model_config import PACKED_MODULES, ModelConfig

GROWTH: Final = 1.5
"""Rows made over those that are needed: when they run out, all weights are copied."""


class RowRanges:
    """Ranges of rows, given to the first gap that is wide enough."""

    def __init__(self, capacity: int) -> None:
        self.capacity: Final = capacity
        self._gaps = [(0, capacity)]

    def find(self, count: int) -> int | None:
        """Where `count` free rows begin; 0 rows are free anywhere."""
        if not count:
            return 0
        return next((first for first, stop in self._gaps if stop - first >= count), None)

    def take(self, count: int) -> int:
        """Raises ValueError when there is no gap of `count` rows."""
        for index, (first, stop) in enumerate(self._gaps if count else ()):
            if stop - first >= count:
                self._gaps[index : index + 1] = [(first + count, stop)] if stop - first > count else []
                return first
        if not count:
            return 0
        raise ValueError(f"no gap of {count} rows among {self.capacity}")

    def give_back(self, first: int, count: int) -> None:
        gaps = sorted([*self._gaps, (first, first + count)])
        self._gaps = []
        for begin, stop in gaps:
            if self._gaps and self._gaps[-1][1] == begin:
                begin = self._gaps.pop()[0]
            if stop > begin:
                self._gaps.append((begin, stop))


@dataclass(frozen=True, slots=True)
class _Rows:
    """One adapter's rows: of A one range over all slices, of each slice's B its own."""

    ranks: tuple[tuple[int, ...], ...]
    widest: tuple[int, ...]
    a: int
    b: tuple[int, ...]


class RankStore:
    """All layers' matrices of one packed module. An adapter has the same rows in every layer.

    Where its ranks differ among layers it has rows for the highest, and the others leave some unused.
    """

    def __init__(self, name: str, config: ModelConfig, dtype: torch.dtype, rows: Sequence[int]) -> None:
        """rows: of each slice's B; A has as many as all of them."""
        shapes = [config.linear_shapes[module] for module in PACKED_MODULES[name]]
        self._modules, self._dtype = PACKED_MODULES[name], dtype
        self._widths, self._inner = [out for out, _ in shapes], shapes[0][1]
        self._a, self._b = RowRanges(sum(rows)), [RowRanges(count) for count in rows]
        self._held: dict[int, _Rows] = {}
        self._matrices = [
            RankMatrices(
                torch.empty(sum(rows), self._inner, dtype=dtype),
                tuple(
                    torch.empty(count, width, dtype=dtype)
                    for count, width in zip(rows, self._widths, strict=True)
                ),
            )
            for _ in range(config.num_layers)
        ]
        self.nbytes: Final = sum(m.a.nbytes + sum(b.nbytes for b in m.b) for m in self._matrices)

    @classmethod
    def for_adapters(
        cls, name: str, adapters: Sequence[Adapter], config: ModelConfig, dtype: torch.dtype
    ) -> Self:
        """With room for the adapters and, when there are several, some more; nothing is copied yet."""
        growth = GROWTH if len(adapters) > 1 else 1.0
        widest = [_widest(_ranks(adapter, PACKED_MODULES[name])) for adapter in adapters]
        return cls(name, config, dtype, [int(growth * sum(ranks)) for ranks in zip(*widest, strict=True)])

    def has_room(self, adapter: Adapter) -> bool:
        widest = _widest(_ranks(adapter, self._modules))
        if self._a.find(sum(widest)) is None:
            return False
        return all(rows.find(rank) is not None for rows, rank in zip(self._b, widest, strict=True))

    def add(self, index: int, adapter: Adapter) -> None:
        """Copies the adapter's weights. Raises ValueError without room."""
        ranks = _ranks(adapter, self._modules)
        widest = _widest(ranks)
        b = tuple(rows.take(rank) for rows, rank in zip(self._b, widest, strict=True))
        held = self._held[index] = _Rows(ranks, widest, self._a.take(sum(widest)), b)
        targets: list[torch.Tensor] = []
        sources: list[torch.Tensor] = []
        for layer, matrices in zip(adapter.layers, self._matrices, strict=True):
            first = held.a
            for module, rank, rows, begin in zip(self._modules, widest, matrices.b, held.b, strict=True):
                if (pair := layer.get(module)) is not None:
                    targets += (matrices.a[first : first + pair.rank], rows[begin : begin + pair.rank])
                    sources += (pair.a, pair.b)
                first += rank
        if targets:
            torch._foreach_copy_(targets, sources)

    def remove(self, index: int) -> None:
        held = self._held.pop(index)
        self._a.give_back(held.a, sum(held.widest))
        for rows, first, rank in zip(self._b, held.b, held.widest, strict=True):
            rows.give_back(first, rank)

    def weights(self, adapters: int) -> list[LoraWeights | None]:
        """By layer, for adapters 0 to `adapters` - 1; layers of the same ranks share a layout."""
        layouts: dict[object, Layout | None] = {}
        weights: list[LoraWeights | None] = []
        for layer, matrices in enumerate(self._matrices):
            key = tuple(held.ranks[layer] for held in self._held.values())
            if key not in layouts:
                layouts[key] = self._layout(layer, adapters)
            layout = layouts[key]
            weights.append(None if layout is None else LoraWeights.of_matrices(matrices, layout))
        return weights

    def _layout(self, layer: int, adapters: int) -> Layout | None:
        slices = range(len(self._modules))
        ranks = [[0] * adapters for _ in slices]
        a: list[list[np.ndarray[tuple[int], np.dtype[np.int64]]]] = [[] for _ in slices]
        b: list[list[np.ndarray[tuple[int], np.dtype[np.int64]]]] = [[] for _ in slices]
        for index, held in sorted(self._held.items()):
            first = held.a
            for piece in slices:
                rank = ranks[piece][index] = held.ranks[layer][piece]
                a[piece].append(np.arange(first, first + rank))
                b[piece].append(np.arange(held.b[piece], held.b[piece] + rank))
                first += held.widest[piece]
        if not any(map(any, ranks)):
            return None
        places = tuple(map(np.concatenate, a)), tuple(map(np.concatenate, b))
        return Layout.of(tuple(map(tuple, ranks)), self._widths, self._inner, self._dtype, places=places)


def _ranks(adapter: Adapter, modules: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """By layer, then by module."""
    return tuple(
        tuple(layer[module].rank if module in layer else 0 for module in modules) for layer in adapter.layers
    )


def _widest(ranks: Sequence[Sequence[int]]) -> tuple[int, ...]:
    return tuple(map(max, zip(*ranks, strict=True)))
