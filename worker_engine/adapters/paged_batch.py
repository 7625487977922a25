"""The running batch's adapters in pool pages: tables of row offsets; no weights are copied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import numpy as np
import torch

from kernels.lora import LoraWeights, Segments
from kernels.lora.layout import Layout
from kernels.lora.rank_rows import Bounds, RankRows
from kernels.transfer import to_device
from worker_engine.adapters.adapter import Adapter
from worker_engine.adapters.copy_stream import Arrival
from worker_engine.adapters.device_tier import DeviceTier, Resident
from worker_engine.adapters.extras import Extras
from worker_engine.adapters.page_layout import SEGMENTS, Ints
from worker_engine.checkpoint.model_config import LORA_MODULES, PACKED_MODULES, ModelConfig
from worker_engine.layers.linear import LayerLora, LinearLora
from worker_engine.layers.tops import Tops


class ArrivingLayers(Sequence[LayerLora]):
    """Adapters by decoder layer. Reading a layer makes the device wait for that layer's weights only."""

    def __init__(self, layers: Sequence[LayerLora], arrivals: Sequence[Sequence[Arrival]]) -> None:
        """arrivals: per adapter, then per layer."""
        self._layers, self._arrivals = layers, list(arrivals)

    def __len__(self) -> int:
        return len(self._layers)

    @overload
    def __getitem__(self, index: int) -> LayerLora: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[LayerLora]: ...

    def __getitem__(self, index: int | slice) -> LayerLora | Sequence[LayerLora]:
        for by_layer in self._arrivals:
            for arrival in by_layer[index] if isinstance(index, slice) else (by_layer[index],):
                arrival.wait()
        if index == len(self._layers) - 1:
            self._arrivals = []  # all weights are awaited once the last layer is read
        return self._layers[index]


class PagedAdapterBatch:
    """`AdapterBatch` over a `DeviceTier`: assigns each adapter its index in the per-layer tables.

    Attributes:
        layers: per decoder layer.
        num_rebuilt: how often the tables were rebuilt.
    """

    def __init__(self, config: ModelConfig, tier: DeviceTier) -> None:
        self._config, self._tier, self._device = config, tier, tier.memory.device
        self._places: list[Adapter] = []
        self._held: dict[Adapter, tuple[int, Resident]] = {}
        self._extras: Extras | None = None
        self.layers: Sequence[LayerLora] = []
        self.num_rebuilt = 0

    @property
    def num_resident(self) -> int:
        return len(self._held)

    def select(self, adapters: Sequence[Adapter | None]) -> list[int]:
        """As `AdapterBatch.select`. Raises KeyError for an adapter without pages."""
        active = dict.fromkeys(adapter for adapter in adapters if adapter is not None)
        # An adapter that was evicted and reloaded has new pages.
        if any(adapter not in self._held or self._stale(adapter) for adapter in active):
            self._take(sorted(active, key=lambda adapter: adapter.sha256))
        return [-1 if adapter is None else self._held[adapter][0] for adapter in adapters]

    def tops(self, segments: Segments, logit_segments: Segments) -> Tops | None:
        """Return the adapters' changes to embedding, head and norms; None if there are none."""
        return None if self._extras is None else self._extras.tops(segments, logit_segments)

    def _stale(self, adapter: Adapter) -> bool:
        return self._held[adapter][1] is not self._tier.get(adapter.sha256)

    def _take(self, adapters: list[Adapter]) -> None:
        residents = [self._tier[adapter.sha256] for adapter in adapters]
        self._held = {
            adapter: (index, resident)
            for index, (adapter, resident) in enumerate(zip(adapters, residents, strict=True))
        }
        weights = self._weights(residents)
        twins = [resident.extras for resident in residents]
        if not all(twin.pairs_only for twin in twins):
            for resident in residents:
                resident.arrivals[0].wait()
        self._extras = Extras.build(twins, self._config, self._device)
        layers = (
            [
                {name: None if held is None else LinearLora(held) for name, held in by_name.items()}
                for by_name in weights
            ]
            if self._extras is None
            else self._extras.layers(weights)
        )
        arriving = [resident.arrivals for resident in residents if not resident.arrivals[-1].done]
        self.layers = ArrivingLayers(layers, arriving)
        self.num_rebuilt += 1

    def _weights(self, residents: Sequence[Resident]) -> list[dict[str, LoraWeights | None]]:
        counts = np.stack([resident.layout.counts for resident in residents])
        totals = counts.sum(0)
        table = self._table(residents, counts)
        scale = torch.ones(int(totals.max()), dtype=torch.float32, device=self._device)
        begins = np.cumsum(totals) - totals
        aligned = all(resident.layout.aligned for resident in residents)
        shared: dict[object, tuple[Layout, Bounds] | None] = {}
        layers: list[dict[str, LoraWeights | None]] = []
        for layer in range(self._config.num_layers):
            by_name: dict[str, LoraWeights | None] = {}
            for segment, name in enumerate(SEGMENTS, layer * len(SEGMENTS)):
                key = (name, tuple(resident.layout.ranks[layer] for resident in residents))
                if key not in shared:
                    shared[key] = self._shape(name, layer, residents)
                by_name[name] = None
                if (shape := shared[key]) is not None:
                    layout, bounds = shape
                    count, begin = int(totals[segment]), int(begins[segment])
                    rows = RankRows.placed(
                        self._tier.memory,
                        table[:, begin : begin + count],
                        scale[:count],
                        bounds,
                        layout.columns,
                        layout.inner,
                        aligned=aligned,
                        b_stacked=all(resident.layout.whole[segment] for resident in residents),
                    )
                    by_name[name] = LoraWeights.of_rows(rows, layout)
            layers.append(by_name)
        return layers

    def _table(self, residents: Sequence[Resident], counts: Ints) -> torch.Tensor:
        """Return int64 [2, ranks], offsets of the rows of A and B by segment, then adapter; one copy to the
        device.
        """
        totals = counts.sum(0)
        begins = np.cumsum(totals) - totals + np.cumsum(counts, 0) - counts
        table = np.empty((2, int(totals.sum())), dtype=np.int64)
        for resident, count, begin in zip(residents, counts, begins, strict=True):
            own = np.cumsum(count) - count
            index = np.repeat(begin - own, count) + np.arange(resident.places.shape[1])
            table[:, index] = resident.places
        return to_device(table, self._device)

    def _shape(self, name: str, layer: int, residents: Sequence[Resident]) -> tuple[Layout, Bounds] | None:
        """Return a segment's layout and each adapter's rank bounds in its table; None if no adapter changes
        it.
        """
        modules = PACKED_MODULES[name]
        columns = [LORA_MODULES.index(module) for module in modules]
        ranks = np.array([[resident.layout.ranks[layer][c] for c in columns] for resident in residents])
        if not ranks.any():
            return None
        stops = np.cumsum(ranks.reshape(-1)).reshape(ranks.shape)
        bounds = tuple(
            tuple(zip(first, last, strict=True))
            for first, last in zip((stops - ranks).T.tolist(), stops.T.tolist(), strict=True)
        )
        shapes = [self._config.linear_shapes[module] for module in modules]
        by_slice = tuple(map(tuple, ranks.T.tolist()))
        widths = [out for out, _ in shapes]
        return Layout.build(by_slice, widths, shapes[0][1], self._tier.memory.dtype), bounds
