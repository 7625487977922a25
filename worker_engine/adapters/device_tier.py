"""Adapters in the device's memory: in pages of the engine's pool, copied there beside the computing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from kernels.lora import LoraPair
from worker_engine.adapters.adapter import Adapter, OwnRows, gathered
from worker_engine.adapters.copy_stream import Arrival, CopyStream, copies_to
from worker_engine.adapters.page_layout import Ints, PageLayout
from worker_engine.checkpoint.model_config import ModelConfig
from worker_engine.histogram import Histogram


def lends_pages(device: torch.device) -> bool:
    """Whether adapters' weights lie in the pool's pages there; the CPU keeps them in matrices of its own."""
    return device.type != "cpu"


@dataclass(frozen=True, slots=True, eq=False)
class Resident:
    """An adapter with pages; its weights may still be on their way.

    Attributes:
        extras: the adapter on the device, without its layers.
        places: int64 [2, ranks], element offsets in the pool of A's rows and B's, as `layout` orders them.
        arrivals: by layer, when its weights are there; what `extras` holds is there before the first.
    """

    extras: Adapter
    layout: PageLayout
    places: Ints
    arrivals: tuple[Arrival, ...]


class DeviceTier:
    """Which adapters have pages, and where in them each row of their weights lies. One thread's alone.

    Weights of decoder layers lie in the pages, at their real rank. What else an adapter has (LoRA on the
    embedding or the head, gains, biases, norms, rows) is copied to tensors of its own: pages are held for
    it, so that the budget is kept, and stay empty.

    Attributes:
        load_seconds: how long copies took on the device.
        num_bytes: copied so far.
    """

    def __init__(
        self, memory: torch.Tensor, config: ModelConfig, *, copies: CopyStream[Any] | None = None
    ) -> None:
        """memory: [pages, elements of a page], the pool's."""
        self.memory = memory
        self._config, self._copies = config, copies or copies_to(memory.device)
        self._layouts: WeakKeyDictionary[Adapter, PageLayout] = WeakKeyDictionary()
        self._resident: dict[str, Resident] = {}
        self._timed: list[tuple[Arrival, Arrival]] = []
        self.load_seconds = Histogram()
        self.num_bytes = self.num_loads = 0

    def pages_of(self, adapter: Adapter) -> int:
        """Raises AdapterRefused when a row is longer than a page."""
        layout, size = self._layout(adapter), self.memory.element_size()
        rest = adapter.nbytes - size * sum(cut.elements for cuts in layout.cuts for cut in cuts)
        return layout.num_pages - (-rest // (self.memory.shape[1] * size))

    def load(self, adapter: Adapter, pages: Sequence[int]) -> None:
        """Queues the copies of its weights into `pages`, in the order in which layers are computed."""
        self._observe()
        layout = self._layout(adapter)
        begun = self._copies.begin()
        try:
            extras, arrivals = self._copy(adapter, layout, pages)
        except BaseException:
            # The pages are given back: what is under way comes before whatever is written there next.
            self._copies.mark().wait()
            raise
        size = self.memory.shape[1]
        owned = np.array(pages, dtype=np.int64)
        places = owned[layout.places // size] * size + layout.places % size
        self._resident[adapter.sha256] = Resident(extras, layout, places, arrivals)
        self._timed.append((begun, arrivals[-1]))
        self.num_bytes += adapter.nbytes
        self.num_loads += 1

    def drop(self, sha256: str) -> None:
        """Its pages are somebody else's from now on.

        Whatever is computed next may write to them, and so waits for copies that are still on their way
        there: an adapter that was brought for a waiting sequence may leave before anything reads it.
        """
        self._resident.pop(sha256).arrivals[-1].wait()

    def close(self) -> None:
        """Lets go of the pool, which the computing stream may give to others from now on."""
        try:
            self._copies.mark().wait()
        finally:
            self._resident.clear()
            self._timed.clear()
            # Of the same pages, so that whoever still asks how many an adapter takes gets an answer.
            self.memory = torch.empty((0, self.memory.shape[1]), dtype=self.memory.dtype)

    def _copy(
        self, adapter: Adapter, layout: PageLayout, pages: Sequence[int]
    ) -> tuple[Adapter, tuple[Arrival, ...]]:
        """Queues all copies; see `Resident`."""
        extras = replace(adapter, layers=(), buffer=None)
        if not adapter.pairs_only:
            extras = _on_device(extras, self.memory.device, self._copies)
        source = adapter.buffer
        if source is None:
            source, _ = gathered(adapter.layers, pinned=self.memory.is_cuda)
        arrivals = []
        for cuts in layout.cuts:
            for cut in cuts:
                target = self.memory[pages[cut.page]].narrow(0, cut.start, cut.elements)
                self._copies.copy(target, source.narrow(0, cut.source, cut.elements))
            arrivals.append(self._copies.mark())
        return extras, tuple(arrivals)

    def __getitem__(self, sha256: str) -> Resident:
        """Raises KeyError for an adapter without pages."""
        return self._resident[sha256]

    def __len__(self) -> int:
        return len(self._resident)

    def get(self, sha256: str) -> Resident | None:
        return self._resident.get(sha256)

    def _layout(self, adapter: Adapter) -> PageLayout:
        layout = self._layouts.get(adapter)
        if layout is None:
            layout = self._layouts[adapter] = PageLayout.of(adapter, self._config, self.memory.shape[1])
        return layout

    def _observe(self) -> None:
        """Takes down how long finished copies took: the device tells once they are done."""
        done = [times for times in self._timed if times[1].done]
        for begun, ended in done:
            self.load_seconds.observe(ended.seconds_since(begun))
        self._timed = [times for times in self._timed if times not in done]


def _on_device(adapter: Adapter, device: torch.device, copies: CopyStream[Any]) -> Adapter:
    def move(tensor: torch.Tensor) -> torch.Tensor:
        # Not made on the copies' stream: when it is freed, the memory is the computing stream's again.
        target = torch.empty_like(tensor, device=device, memory_format=torch.contiguous_format)
        copies.copy(target, tensor.pin_memory() if device.type == "cuda" else tensor)
        return target

    def each(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {path: move(tensor) for path, tensor in tensors.items()}

    return replace(
        adapter,
        tops={path: LoraPair(move(pair.a), move(pair.b)) for path, pair in adapter.tops.items()},
        gains=each(adapter.gains),
        biases=each(adapter.biases),
        norms=each(adapter.norms),
        rows={
            path: OwnRows(move(rows.weight), None if rows.tokens is None else move(rows.tokens))
            for path, rows in adapter.rows.items()
        },
    )
