"""The adapters of the running batch laid side by side for every layer, rebuilt when the set changes."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernels.lora import Owners, concatenate
from worker_engine.adapters.adapter import Adapter
from worker_engine.model_config import PACKED_MODULES, ModelConfig
from worker_engine.models.decoder import LayerLora

SLACK = 2.0
"""A stack is kept while it holds at most this many times the weights that the batch uses.

Members that left cost memory, and no products unless skipping them would cost more; a rebuild copies all
weights. Twice the memory is still cheaper than a rebuild every few steps.
"""


class AdapterBatch:
    """The stack in use, and which adapter has which index in it."""

    def __init__(self, config: ModelConfig, device: torch.device) -> None:
        self._config, self._device = config, device
        self._index: dict[Adapter, int] = {}
        self.layers: list[LayerLora] = []

    def select(self, adapters: Sequence[Adapter | None]) -> list[int]:
        """Makes the stack hold every adapter of the batch.

        Args:
            adapters: by sequence of the batch; None for the base alone.

        Returns:
            Each sequence's adapter index in `layers`, -1 for none.
        """
        active = {adapter for adapter in adapters if adapter is not None}
        if active and not self._serves(active):
            self._rebuild(sorted(active, key=lambda adapter: adapter.sha256))
        return [-1 if adapter is None else self._index[adapter] for adapter in adapters]

    def _serves(self, active: set[Adapter]) -> bool:
        if not active <= self._index.keys():
            return False
        held = sum(adapter.nbytes for adapter in self._index)
        return held <= SLACK * sum(adapter.nbytes for adapter in active)

    def _rebuild(self, adapters: Sequence[Adapter]) -> None:
        self._index = {adapter: index for index, adapter in enumerate(adapters)}
        owners = Owners(self._device)
        shapes = self._config.linear_shapes
        self.layers = [
            {
                name: concatenate(
                    [[adapter.layers[layer].get(module) for adapter in adapters] for module in modules],
                    [shapes[module][0] for module in modules],
                    owners,
                )
                for name, modules in PACKED_MODULES.items()
            }
            for layer in range(self._config.num_layers)
        ]
