"""A batch's adapter weights other than `x A B` in decoder layers, stacked for the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import torch

from contracts.adapters.tensors import EMBEDDING, HEAD
from kernels.lora import LoraWeights, Owners, Segments, concatenate
from worker_engine.adapters.adapter import Adapter
from worker_engine.checkpoint.model_config import PATHS, ModelConfig
from worker_engine.layers.linear import LayerLora, LinearLora
from worker_engine.layers.tops import RowsOfTokens, Tops, own_norms, rows_of

LAST_NORM = "model.norm"


@dataclass(frozen=True, slots=True)
class Extras:
    """Gains, biases, norms and embedding or head changes of a batch's adapters. An empty slot is None."""

    adapters: Sequence[Adapter | None]
    config: ModelConfig
    device: torch.device
    embedding: LinearLora | None
    head: LinearLora | None

    @classmethod
    def build(
        cls, adapters: Sequence[Adapter | None], config: ModelConfig, device: torch.device
    ) -> Self | None:
        """Build the extras; None if all adapters only have LoRA pairs in decoder layers, which is usual."""
        if all(adapter is None or adapter.pairs_only for adapter in adapters):
            return None
        extras = cls(adapters, config, device, None, None)
        vocabulary, hidden = config.embedding_shape
        owners = Owners(device)
        embedding = extras._top(EMBEDDING, hidden, owners)
        return cls(adapters, config, device, embedding, extras._top(HEAD, vocabulary, owners))

    def layers(self, weights: Sequence[Mapping[str, LoraWeights | None]]) -> list[LayerLora]:
        """Add gains and biases to the weights of all layers."""
        return [self.layer(index, by_name) for index, by_name in enumerate(weights)]

    def layer(self, index: int, weights: Mapping[str, LoraWeights | None]) -> LayerLora:
        """Add gains and biases to the weights of layer `index`."""
        return {name: self._linear(index, name, held) for name, held in weights.items()}

    @property
    def only_products(self) -> bool:
        """True if linear layers only add LoRA products: no gain and no bias."""
        return not any(a is not None and (a.gains or a.biases) for a in self.adapters)

    def tops(self, segments: Segments, logit_segments: Segments) -> Tops:
        norms = {i: a.norms for i, a in enumerate(self.adapters) if a is not None and a.norms}
        return Tops(
            segments,
            logit_segments,
            self.embedding,
            self.head,
            self._rows(EMBEDDING, segments),
            self._rows(HEAD, logit_segments),
            own_norms(norms, segments, logit_segments, LAST_NORM),
        )

    def _rows(self, path: str, segments: Segments) -> list[RowsOfTokens]:
        found: list[RowsOfTokens] = []
        for index, adapter in enumerate(self.adapters):
            if adapter is not None and path in adapter.rows:
                rows = rows_of(segments, index)
                if len(rows):
                    own = adapter.rows[path]
                    found.append(RowsOfTokens(rows, own.tokens, own.weight))
        return found

    def _top(self, path: str, width: int, owners: Owners) -> LinearLora | None:
        pairs = [None if adapter is None else adapter.tops.get(path) for adapter in self.adapters]
        weights = concatenate([pairs], [width], owners)
        return None if weights is None else LinearLora(weights, self._gain([path], [width]))

    def _linear(self, layer: int, name: str, weights: LoraWeights | None) -> LinearLora | None:
        modules = self.config.packed_modules[name]
        paths = [f"model.layers.{layer}.{PATHS[module]}" for module in modules]
        widths = [self.config.module_shapes[module][0] for module in modules]
        gain = self._gain(paths, widths)
        bias = self._stack([a.biases if a else {} for a in self.adapters], paths, widths, 0.0)
        return None if weights is None and bias is None else LinearLora(weights, gain, bias)

    def _gain(self, paths: Sequence[str], widths: Sequence[int]) -> torch.Tensor | None:
        return self._stack([a.gains if a else {} for a in self.adapters], paths, widths, 1.0)

    def _stack(
        self,
        tensors: Sequence[Mapping[str, torch.Tensor]],
        paths: Sequence[str],
        widths: Sequence[int],
        default: float,
    ) -> torch.Tensor | None:
        """Stack one tensor per adapter: float32 [adapters, sum(widths)]; None when no adapter has any of
        `paths`.
        """
        if not any(path in by_path for by_path in tensors for path in paths):
            return None
        stacked = torch.full((len(tensors), sum(widths)), default, device=self.device)
        for row, by_path in zip(stacked, tensors, strict=True):
            for path, columns in zip(paths, row.split(list(widths)), strict=True):
                if path in by_path:
                    columns.copy_(by_path[path])
        return stacked
