"""The running batch's adapters, per layer, on the CPU. `paged_batch` is the counterpart for other devices.

No weights are copied: the native loops read each adapter where it was loaded. Only a table of addresses
changes with the batch, which gains and loses an adapter every few steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, overload

import numpy as np
import torch

from kernels.lora import LoraWeights, Segments, native_rows
from kernels.lora.layout import Layout
from kernels.lora.native_stack import PlacedExperts, PlacedModule, StackLora
from worker_engine.adapters.adapter import Adapter, WeightAddresses
from worker_engine.adapters.extras import Extras
from worker_engine.checkpoint.experts_config import EXPERT_MODULES, ExpertsConfig, expert_keys
from worker_engine.checkpoint.model_config import ModelConfig
from worker_engine.layers.linear import LayerLora, LinearLora
from worker_engine.layers.stack import StackedLayers
from worker_engine.layers.tops import Tops

SLACK: Final = 2
"""Rebuild the tables when they hold more than this multiple of the adapters in use."""


class HeldLayers(StackedLayers):
    """Adapters' weights per decoder layer, read in place; each layer's entry is built on first access."""

    def __init__(
        self, adapters: Sequence[Adapter], extras: Extras | None, config: ModelConfig, dtype: torch.dtype
    ) -> None:
        self._adapters, self._extras, self._dtype = tuple(adapters), extras, dtype
        self._config, self._packed = config, config.packed_modules
        self._modules = {name: self._placed(name, config) for name in self._packed}
        self._experts = {} if config.experts is None else self._placed_experts(config.experts)
        self._layouts: dict[tuple[str, bytes], Layout] = {}
        self._made: list[LayerLora | None] = [None] * config.num_layers
        # Addresses of experts, too, are known by now.
        self._whole = all(weights.whole for adapter in adapters for weights in adapter.kept.values())
        stacks = self._whole and dtype == torch.bfloat16 and (extras is None or extras.only_products)
        placed, experts = list(self._modules.values()), list(self._experts.values())
        self._stacked = StackLora(placed, experts) if stacks else None

    @property
    def stacked(self) -> StackLora | None:
        return self._stacked

    def __len__(self) -> int:
        return len(self._made)

    @overload
    def __getitem__(self, index: int) -> LayerLora: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[LayerLora]: ...

    def __getitem__(self, index: int | slice) -> LayerLora | Sequence[LayerLora]:
        if isinstance(index, slice):
            return [self[layer] for layer in range(*index.indices(len(self)))]
        made = self._made[index]
        if made is None:
            made = self._made[index] = self._layer(index)
        return made

    def _layer(self, index: int) -> LayerLora:
        weights = {name: self._weights(name, index) for name in self._packed}
        if self._extras is not None:
            return self._extras.layer(index, weights) | self._layer_experts(index)
        made = {name: None if held is None else LinearLora(held) for name, held in weights.items()}
        return made | self._layer_experts(index)

    def _layer_experts(self, layer: int) -> LayerLora:
        """Return the weights on single experts: adapter by adapter, and expert by expert of each."""
        made: LayerLora = {}
        for name, product in self._experts.items():
            layout = self._expert_layout(name, product, layer)
            if layout is None:
                made[name] = None
                continue
            slices = len(layout.columns)
            keys = expert_keys(product.ranks.shape[2], name)
            pairs = tuple(
                tuple(
                    adapter.layers[layer].get(key)
                    for adapter in self._adapters
                    for key in keys[first::slices]
                )
                for first in range(slices)
            )
            weights = LoraWeights.of_pairs(pairs, layout)
            if self._whole and native_rows.serves(self._dtype):
                places = product.places[layer].reshape(layout.adapters, slices, 2)
                weights.kept["native"] = native_rows.NativeWeights.from_places(
                    places, (pairs, product), layout.inner
                )
            made[name] = LinearLora(weights)
        return made

    def _expert_layout(self, name: str, product: PlacedExperts, layer: int) -> Layout | None:
        """Return the layout of a product of all adapters' experts; layers of the same ranks share one."""
        by_pair = product.ranks[layer].reshape(-1, product.ranks.shape[-1])
        if not by_pair.any():
            return None
        key = name, by_pair.tobytes()
        if key not in self._layouts:
            widths = [product.out // by_pair.shape[1]] * by_pair.shape[1]
            ranks = tuple(map(tuple, by_pair.T.tolist()))
            self._layouts[key] = Layout.build(ranks, widths, product.inner, self._dtype)
        return self._layouts[key]

    def _placed_experts(self, experts: ExpertsConfig) -> dict[str, PlacedExperts]:
        shapes, count = experts.expert_shapes(self._config.hidden_size), experts.num_experts
        held = [adapter.expert_addresses(experts) for adapter in self._adapters]
        made = {}
        for name, modules in EXPERT_MODULES.items():
            ranks = np.stack([weights[name].ranks for weights in held], axis=1)
            places = np.stack([weights[name].addresses for weights in held], axis=1)
            by_pair = (*ranks.shape[:2], count, len(modules))
            out, inner = shapes[modules[0]]
            width = out * len(modules)
            made[name] = PlacedExperts(ranks.reshape(by_pair), places.reshape(*by_pair, 2), width, inner)
        return made

    def _addresses(self, adapter: Adapter, name: str) -> WeightAddresses:
        return adapter.weight_addresses(name, self._packed[name])

    def _weights(self, name: str, layer: int) -> LoraWeights | None:
        layout = self._modules[name].layouts[layer]
        if layout is None:
            return None
        pairs = tuple(
            tuple(adapter.layers[layer].get(module) for adapter in self._adapters)
            for module in self._packed[name]
        )
        return LoraWeights.of_pairs(pairs, layout)

    def _placed(self, name: str, config: ModelConfig) -> PlacedModule:
        held = [self._addresses(adapter, name) for adapter in self._adapters]
        ranks = np.stack([weights.ranks for weights in held], axis=1)
        shapes = [config.module_shapes[module] for module in self._packed[name]]
        widths, inner = [out for out, _ in shapes], shapes[0][1]
        # Layers of the same ranks share a layout, and thereby the plans of a batch.
        layouts: dict[bytes, Layout | None] = {}
        keys = [by_adapter.tobytes() for by_adapter in ranks]
        for key, by_adapter in zip(keys, ranks, strict=True):
            if key not in layouts:
                by_slice = tuple(map(tuple, by_adapter.T.tolist()))
                layouts[key] = (
                    Layout.build(by_slice, widths, inner, self._dtype) if by_adapter.any() else None
                )
        addresses = np.stack([weights.addresses for weights in held], axis=1)
        return PlacedModule([layouts[key] for key in keys], addresses)


class AdapterBatch:
    """Assigns each adapter of the batch its index in the per-layer tables.

    Attributes:
        layers: per decoder layer; empty without adapters.
        num_rebuilt: how often the tables were rebuilt.
    """

    def __init__(self, config: ModelConfig, *, dtype: torch.dtype) -> None:
        self._config, self._dtype = config, dtype
        self._index: Mapping[Adapter, int] = {}
        self._extras: Extras | None = None
        self.layers: Sequence[LayerLora] = ()
        self.num_rebuilt = 0

    def select(self, adapters: Sequence[Adapter | None]) -> list[int]:
        """Make the layers hold every adapter of the batch.

        Args:
            adapters: per sequence of the batch; None for the base model.

        Returns:
            Each sequence's adapter index in `layers`, -1 for none.
        """
        active = dict.fromkeys(adapter for adapter in adapters if adapter is not None)
        # The tables keep weights alive that the pool may have evicted.
        wasteful = len(self._index) > SLACK * len(active)
        if wasteful or any(adapter not in self._index for adapter in active):
            self._take(sorted(active, key=lambda adapter: adapter.sha256))
        return [-1 if adapter is None else self._index[adapter] for adapter in adapters]

    def tops(self, segments: Segments, logit_segments: Segments) -> Tops | None:
        """Return the adapters' changes to embedding, head and norms; None if there are none."""
        return None if self._extras is None else self._extras.tops(segments, logit_segments)

    def _take(self, adapters: Sequence[Adapter]) -> None:
        self._index = {adapter: index for index, adapter in enumerate(adapters)}
        self._extras = Extras.build(adapters, self._config, torch.device("cpu"))
        self.layers = HeldLayers(adapters, self._extras, self._config, self._dtype) if adapters else ()
        self.num_rebuilt += 1
