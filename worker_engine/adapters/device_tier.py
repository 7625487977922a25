"""Adapters in device memory: pages of the engine's pool, filled by copies that overlap with computation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from kernels.lora import LoraPair
from worker_engine.adapters.adapter import Adapter, OwnRows, gather_layers
from worker_engine.adapters.copy_stream import Arrival, CopyStream, copies_to
from worker_engine.adapters.page_layout import Ints, PageLayout
from worker_engine.checkpoint.model_config import ModelConfig
from worker_engine.histogram import Histogram


def adapters_in_pages(device: torch.device) -> bool:
    """Return True if the device stores adapter weights in pool pages; the CPU reads them where they were
    loaded.
    """
    return device.type != "cpu"


@dataclass(frozen=True, slots=True, eq=False)
class Resident:
    """An adapter with allocated pages; its weights may still be in flight.

    Attributes:
        extras: the adapter on the device, without its layers.
        places: int64 [2, ranks], element offsets in the pool of the rows of A and B, in the order of
            `layout`.
        arrivals: per layer, the point at which its weights are complete; `extras` is complete before the
            first.
    """

    extras: Adapter
    layout: PageLayout
    places: Ints
    arrivals: tuple[Arrival, ...]


class DeviceTier:
    """Tracks which adapters have pages, and the offsets of their weight rows. Not thread-safe.

    Decoder-layer weights are stored in the pages at their real rank. Other weights (LoRA on the embedding or
    the head, gains, biases, norms, rows) are copied to separate tensors. Their bytes are still accounted for:
    pages are reserved for them and stay empty.

    Attributes:
        load_seconds: how long the device took for the copies of each load.
        num_bytes: bytes copied so far.
    """

    def __init__(
        self, memory: torch.Tensor, config: ModelConfig, *, copies: CopyStream[Any] | None = None
    ) -> None:
        """memory: the pool's tensor, [pages, elements per page]."""
        self.memory = memory
        self._config, self._copies = config, copies or copies_to(memory.device)
        self._layouts: WeakKeyDictionary[Adapter, PageLayout] = WeakKeyDictionary()
        self._resident: dict[str, Resident] = {}
        self._timed: list[tuple[Arrival, Arrival]] = []
        self.load_seconds = Histogram()
        self.num_bytes = self.num_loads = 0

    def pages_of(self, adapter: Adapter) -> int:
        """Return how many pages the adapter needs. Raises AdapterRefused when a row exceeds a page."""
        layout, size = self._layout(adapter), self.memory.element_size()
        rest = adapter.nbytes - size * sum(cut.elements for cuts in layout.cuts for cut in cuts)
        return layout.num_pages - (-rest // (self.memory.shape[1] * size))

    def load(self, adapter: Adapter, pages: Sequence[int]) -> None:
        """Queue the copies of the adapter's weights into `pages`, in the order of the layers."""
        self._observe()
        layout = self._layout(adapter)
        begun = self._copies.begin()
        try:
            extras, arrivals = self._copy(adapter, layout, pages)
        except BaseException:
            # The caller frees the pages, so later writes to them must wait for copies in flight.
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
        """Forget an adapter whose pages are given to another user.

        Later device work waits for copies still in flight, because it may write to these pages. An adapter
        that was prefetched for a waiting sequence can be dropped before anything reads it.
        """
        self._resident.pop(sha256).arrivals[-1].wait()

    def close(self) -> None:
        """Release the pool's memory, after making later device work wait for copies in flight."""
        try:
            self._copies.mark().wait()
        finally:
            self._resident.clear()
            self._timed.clear()
            # Keep the page size, so that `pages_of` still answers.
            self.memory = torch.empty((0, self.memory.shape[1]), dtype=self.memory.dtype)

    def _copy(
        self, adapter: Adapter, layout: PageLayout, pages: Sequence[int]
    ) -> tuple[Adapter, tuple[Arrival, ...]]:
        """Queue all copies; return the `extras` and `arrivals` of `Resident`."""
        extras = replace(adapter, layers=(), buffer=None)
        if not adapter.pairs_only:
            extras = _on_device(extras, self.memory.device, self._copies)
        source = adapter.buffer
        if source is None:
            source, _ = gather_layers(adapter.layers, pinned=self.memory.is_cuda)
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
            layout = self._layouts[adapter] = PageLayout.for_adapter(
                adapter, self._config, self.memory.shape[1]
            )
        return layout

    def _observe(self) -> None:
        """Record the durations of finished copies; the device reports them only afterwards."""
        done = [times for times in self._timed if times[1].done]
        for begun, ended in done:
            self.load_seconds.observe(ended.seconds_since(begun))
        self._timed = [times for times in self._timed if times not in done]


def _on_device(adapter: Adapter, device: torch.device, copies: CopyStream[Any]) -> Adapter:
    def move(tensor: torch.Tensor) -> torch.Tensor:
        # Allocate on the computing stream, which owns the memory again when the tensor is freed.
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
