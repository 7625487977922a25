"""The adapters of the running batch for every layer, on the CPU; elsewhere `paged_batch` has them.

Weights are copied into matrices with a row per rank, which layers of a kind lay out alike. A batch
gains and loses an adapter every few steps: a newcomer takes rows that are free, or those of an adapter that
nobody uses, and only its own weights are copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from kernels.lora import LoraWeights, Segments
from worker_engine.adapters.adapter import Adapter
from worker_engine.adapters.extras import Extras
from worker_engine.adapters.rank_store import RankStore
from worker_engine.layers.linear import LayerLora, LinearLora
from worker_engine.layers.tops import Tops
from worker_engine.model_config import PACKED_MODULES, ModelConfig

SLACK: Final = 2.0
"""Matrices that hold more than this many times the weights that the batch uses become smaller."""
PATIENCE: Final = 256
"""Steps after which they do: a batch that empties for a moment would have them copied twice."""


class AdapterBatch:
    """The weights in use, and which adapter has which index in them.

    Attributes:
        layers: by decoder layer.
        num_copied: adapters whose weights were copied.
        num_rebuilt: times that all weights were.
    """

    def __init__(self, config: ModelConfig, *, dtype: torch.dtype) -> None:
        self._config, self._dtype = config, dtype
        self._stores: dict[str, RankStore] = {}
        self._places: list[Adapter | None] = []
        self._index: dict[Adapter, int] = {}
        self._used: dict[Adapter, int] = {}
        self._extras: Extras | None = None
        self._steps = self._wasteful = 0
        self.layers: list[LayerLora] = []
        self.num_copied = self.num_rebuilt = 0

    @property
    def num_resident(self) -> int:
        return len(self._index)

    @property
    def nbytes(self) -> int:
        """Of the matrices, rows that nobody uses among them."""
        return sum(store.nbytes for store in self._stores.values())

    def select(self, adapters: Sequence[Adapter | None]) -> list[int]:
        """Makes the layers hold every adapter of the batch.

        Args:
            adapters: by sequence of the batch; None for the base alone.

        Returns:
            Each sequence's adapter index in `layers`, -1 for none.
        """
        self._steps += 1
        active = dict.fromkeys(adapter for adapter in adapters if adapter is not None)
        missing = [adapter for adapter in active if adapter not in self._index]
        self._wasteful = self._wasteful + 1 if active and self._holds_too_much(active) else 0
        if missing or self._wasteful > PATIENCE:
            self._take_in(missing, active)
        self._used.update(dict.fromkeys(active, self._steps))
        return [-1 if adapter is None else self._index[adapter] for adapter in adapters]

    def tops(self, segments: Segments, logit_segments: Segments) -> Tops | None:
        """What the batch's adapters change outside of linear modules."""
        return None if self._extras is None else self._extras.tops(segments, logit_segments)

    def _take_in(self, missing: Sequence[Adapter], active: dict[Adapter, None]) -> None:
        if self._wasteful > PATIENCE or not all(self._add(adapter, active) for adapter in missing):
            self._rebuild(list(active))
        weights = self._laid_out()
        self._extras = Extras.of(self._places, self._config, torch.device("cpu"))
        if self._extras is not None:
            self.layers = self._extras.layers(weights)
            return
        self.layers = [
            {name: None if held is None else LinearLora(held) for name, held in by_name.items()}
            for by_name in weights
        ]

    def _holds_too_much(self, active: dict[Adapter, None]) -> bool:
        return self.nbytes > SLACK * sum(adapter.nbytes for adapter in active)

    def _add(self, adapter: Adapter, active: dict[Adapter, None]) -> bool:
        """Copies a newcomer's weights, if need be over the longest unused adapters'; False without room."""
        idle = sorted((other for other in self._index if other not in active), key=self._used.__getitem__)
        while not all(store.has_room(adapter) for store in self._stores.values()) or not self._stores:
            if not idle:
                return False
            self._drop(idle.pop(0))
        index = self._places.index(None) if None in self._places else len(self._places)
        self._places[index : index + 1] = [adapter]
        self._index[adapter] = index
        for store in self._stores.values():
            store.add(index, adapter)
        self.num_copied += 1
        return True

    def _drop(self, adapter: Adapter) -> None:
        index = self._index.pop(adapter)
        self._places[index] = None
        del self._used[adapter]
        for store in self._stores.values():
            store.remove(index)

    def _hold(self, adapters: list[Adapter]) -> None:
        adapters.sort(key=lambda adapter: adapter.sha256)
        self._places = list(adapters)
        self._index = {adapter: index for index, adapter in enumerate(adapters)}
        self._used = dict.fromkeys(adapters, self._steps)

    def _rebuild(self, adapters: list[Adapter]) -> None:
        """Makes room for the batch's adapters and some more, and copies them."""
        self._hold(adapters)
        self._stores = {
            name: RankStore.for_adapters(name, adapters, self._config, self._dtype) for name in PACKED_MODULES
        }
        for store in self._stores.values():
            for index, adapter in enumerate(adapters):
                store.add(index, adapter)
        self.num_copied += len(adapters)
        self.num_rebuilt += 1

    def _laid_out(self) -> list[dict[str, LoraWeights | None]]:
        by_name = {name: store.weights(len(self._places)) for name, store in self._stores.items()}
        return [
            {name: layers[layer] for name, layers in by_name.items()}
            for layer in range(self._config.num_layers)
        ]
