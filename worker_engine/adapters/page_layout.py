"""Where an adapter's rows lie in the pages that the pool lends it, and how they come there in few copies.

A row of A or B never straddles two pages; beyond that rows follow one another without gaps, layer by layer,
as they do in the adapter's host buffer. So each page is filled by one copy a layer, and nothing depends on
which pages these are: none need be neighbours.
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
"""By layer, then by module in the order of `LORA_MODULES`."""

SEGMENTS: Final = tuple(PACKED_MODULES)
"""A layer's tables, in order."""
ALIGNMENT: Final = 8
"""Elements; see `kernels.lora.rank_rows`."""


class Cut(NamedTuple):
    """One copy: a piece of the host buffer, and where it goes; the page is counted among the adapter's."""

    page: int
    start: int
    source: int
    elements: int


@dataclass(frozen=True, slots=True, eq=False)
class PageLayout:
    """Of all adapters with the same ranks.

    Attributes:
        ranks: by layer and module.
        num_pages: pages that the rows take.
        cuts: by layer.
        places: int64 [2, ranks]: element offsets of A's rows and B's, as if the adapter's pages were
            neighbours; layer by layer, there by `SEGMENTS`, module and rank.
        counts: int64 [layers * len(SEGMENTS)], ranks of each segment.
        whole: by segment, whether no slice's rows of B are parted by a page's end.
        aligned: every place is a multiple of `ALIGNMENT`.
    """

    ranks: Ranks
    num_pages: int
    cuts: tuple[tuple[Cut, ...], ...]
    places: Ints
    counts: Ints
    whole: tuple[bool, ...]
    aligned: bool

    @classmethod
    def of(cls, adapter: Adapter, config: ModelConfig, page_elements: int) -> PageLayout:
        """Raises AdapterRefused when a single row is longer than a page."""
        shapes = tuple(config.linear_shapes[module] for module in LORA_MODULES)
        return _layout(ranks_of(adapter), shapes, page_elements)


def ranks_of(adapter: Adapter) -> Ranks:
    """0 where the adapter leaves a module alone."""
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
    """Lays rows down one after another; a page's last elements stay empty where the next row is longer."""

    def __init__(self, page_elements: int) -> None:
        self._size, self._page, self._at, self._source = page_elements, 0, 0, 0
        self._cuts: list[Cut] = []

    @property
    def num_pages(self) -> int:
        return self._page + (self._at > 0)

    def take(self, rank: int, length: int) -> Ints:
        """Where `rank` rows of `length` elements begin."""
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
        """Since the last call."""
        taken, self._cuts = tuple(self._cuts), []
        return taken
