"""Layout of an adapter's weight rows in its pool pages, and the copies that fill them.

No row of A or B crosses a page boundary. Otherwise rows are contiguous, layer by layer, in the order of the
adapter's host buffer. So one copy per layer fills each page, and the pages need not be adjacent.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from worker_engine.adapters.adapter import Adapter
from worker_engine.checkpoint.model_config import LORA_MODULES, PACKED_MODULES, ModelConfig
from worker_engine.errors import AdapterRefused

Ints = npt.NDArray[np.int64]
Ranks = tuple[tuple[int, ...], ...]
"""Ranks by layer, then by module in the order of `LORA_MODULES`; 0 for unchanged modules."""

SEGMENTS: Final = tuple(PACKED_MODULES)
"""The packed modules of a layer, in table order."""
ALIGNMENT: Final = 8
"""In elements; see `kernels.lora.rank_rows`."""


class Cut(NamedTuple):
    """One copy: `elements` of the host buffer from `source`, to `start` in the adapter's page `page`."""

    page: int
    start: int
    source: int
    elements: int


@dataclass(frozen=True, slots=True, eq=False)
class PageLayout:
    """The layout shared by all adapters with the same ranks.

    Attributes:
        ranks: by layer and module.
        num_pages: pages that the rows take.
        cuts: by layer.
        places: int64 [2, ranks]: element offsets of the rows of A and B, as if the adapter's pages were
            adjacent; ordered by layer, `SEGMENTS`, module and rank.
        counts: int64 [layers * len(SEGMENTS)], ranks of each segment.
        whole: by segment, True if the rows of B of each slice are contiguous (no page boundary between them).
        aligned: every offset is a multiple of `ALIGNMENT`.
    """

    ranks: Ranks
    num_pages: int
    cuts: tuple[tuple[Cut, ...], ...]
    places: Ints
    counts: Ints
    whole: tuple[bool, ...]
    aligned: bool

    @classmethod
    def for_adapter(cls, adapter: Adapter, config: ModelConfig, page_elements: int) -> PageLayout:
        """Return the adapter's layout.

        Raises AdapterRefused when a single row is longer than a page, and for weights of layers of experts,
        which have no place in pages.
        """
        if any(not layer.keys() <= set(LORA_MODULES) for layer in adapter.layers):
            raise AdapterRefused("LoRA on layers of experts is served on the CPU only")
        shapes = tuple(config.linear_shapes[module] for module in LORA_MODULES)
        return _layout(ranks_of(adapter), shapes, page_elements)


def ranks_of(adapter: Adapter) -> Ranks:
    """Return the adapter's rank per layer and module; 0 for modules that it does not change."""
    return tuple(
        tuple(layer[module].rank if module in layer else 0 for module in LORA_MODULES)
        for layer in adapter.layers
    )


@lru_cache(maxsize=256)
def _layout(ranks: Ranks, shapes: tuple[tuple[int, int], ...], page_elements: int) -> PageLayout:
    filler, places, counts, whole = _Filler(page_elements), [], [], []
    cuts: list[tuple[Cut, ...]] = []
    for layer in ranks:
        by_module = {}
        for module, rank, (out, inner) in zip(LORA_MODULES, layer, shapes, strict=True):
            by_module[module] = (filler.take(rank, inner), filler.take(rank, out))
        cuts.append(filler.cuts())
        for name in SEGMENTS:
            pairs = [by_module[module] for module in PACKED_MODULES[name]]
            places.append(np.stack([np.concatenate(side) for side in zip(*pairs, strict=True)]))
            counts.append(places[-1].shape[1])
            widths = [shapes[LORA_MODULES.index(module)][0] for module in PACKED_MODULES[name]]
            steps = zip(pairs, widths, strict=True)
            whole.append(all(bool((np.diff(b) == width).all()) for (_, b), width in steps))
    every = np.concatenate(places, axis=1)
    return PageLayout(
        ranks,
        filler.num_pages,
        tuple(cuts),
        every,
        np.array(counts, dtype=np.int64),
        tuple(whole),
        not bool((every % ALIGNMENT).any()) and page_elements % ALIGNMENT == 0,
    )


class _Filler:
    """Places rows one after another; skips to the next page when a row does not fit in the current one."""

    def __init__(self, page_elements: int) -> None:
        self._size, self._page, self._at, self._source = page_elements, 0, 0, 0
        self._cuts: list[Cut] = []

    @property
    def num_pages(self) -> int:
        return self._page + (self._at > 0)

    def take(self, rank: int, length: int) -> Ints:
        """Return the start offsets of `rank` rows of `length` elements."""
        if rank and length > self._size:
            raise AdapterRefused(
                f"a row of the adapter has {length} elements, a page of this worker's memory {self._size}"
            )
        places = np.empty(rank, dtype=np.int64)
        done = 0
        while done < rank:
            count = min(rank - done, (self._size - self._at) // length)
            if not count:
                self._page, self._at = self._page + 1, 0
                continue
            places[done : done + count] = self._page * self._size + self._at + np.arange(count) * length
            self._copy(count * length)
            done += count
        return places

    def _copy(self, count: int) -> None:
        last = self._cuts[-1] if self._cuts else None
        if last is not None and last.page == self._page:
            self._cuts[-1] = last._replace(elements=last.elements + count)
        else:
            self._cuts.append(Cut(self._page, self._at, self._source, count))
        self._at, self._source = self._at + count, self._source + count

    def cuts(self) -> tuple[Cut, ...]:
        """Return the copies recorded since the last call."""
        taken, self._cuts = tuple(self._cuts), []
        return taken
