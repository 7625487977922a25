"""The layers, ranks and batches that the kernels are measured on."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Layer:
    """A linear layer of a served model.

    Attributes:
        widths: output columns of its packed slices.
        copies: decoder layers of the model, each of which has one.
    """

    model: str
    name: str
    inner: int
    widths: tuple[int, ...]
    copies: int


PACKED: Final = 4
"""Packed linear layers of one decoder layer."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model's sizes."""

    name: str
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    num_layers: int
    head_dim: int = 128

    @property
    def layers(self) -> tuple[Layer, ...]:
        query, key = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return (
            Layer(self.name, "qkv", self.hidden, (query, key, key), self.num_layers),
            Layer(self.name, "o", query, (self.hidden,), self.num_layers),
            Layer(self.name, "gate_up", self.hidden, (self.intermediate,) * 2, self.num_layers),
            Layer(self.name, "down", self.intermediate, (self.hidden,), self.num_layers),
        )


MODELS: Final = (
    Model("Llama-3.1-8B", 4096, 14336, 32, 8, 32),
    Model("Llama-3.1-70B", 8192, 28672, 64, 8, 80),
    Model("Qwen3-32B", 5120, 25600, 64, 8, 64),
)
QUICK_MODELS: Final = (Model("tiny", 64, 96, 4, 2, 2, 16),)

RANKS: Final = ("8", "16", "32", "64", "mixed")
QUICK_RANKS: Final = ("4", "mixed")
MIXED: Final = (8, 16, 32, 64)


def ranks_of(name: str, adapters: int, *, quick: bool = False) -> list[int]:
    """Ranks by adapter: all alike, or 8, 16, 32, 64 in turn."""
    if name != "mixed":
        return [int(name)] * adapters
    cycle = (2, 4, 8) if quick else MIXED
    return [cycle[index % len(cycle)] for index in range(adapters)]


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows and whose they are.

    Attributes:
        spread: how requests draw their adapter: distinct (one request each), uniform, zipf (the k-th with
            weight 1/k) or identical (all the same).
        rows_per_request: 1 in decode; consecutive rows of one prompt in prefill.
    """

    rows: int
    adapters: int
    spread: str
    rows_per_request: int = 1

    @property
    def phase(self) -> str:
        return "decode" if self.rows_per_request == 1 else "prefill"

    def row_adapter(self) -> list[int]:
        """Adapter index of each row; the same at every call."""
        requests = -(-self.rows // self.rows_per_request)
        draw = random.Random(f"{self.rows} {self.adapters} {self.spread}")
        if self.spread == "distinct":
            owners = [request % self.adapters for request in range(requests)]
            draw.shuffle(owners)
        elif self.spread == "identical":
            owners = [self.adapters - 1] * requests
        else:
            weights = [1 / (k + 1) if self.spread == "zipf" else 1.0 for k in range(self.adapters)]
            owners = draw.choices(range(self.adapters), weights, k=requests)
        return [owner for owner in owners for _ in range(self.rows_per_request)][: self.rows]


BATCHES: Final = (
    Batch(64, 64, "distinct"),
    Batch(16, 8, "uniform"),
    Batch(2048, 4, "uniform", 512),
    Batch(128, 128, "distinct"),
    Batch(1, 1, "distinct"),
    Batch(64, 16, "zipf"),
    Batch(4096, 8, "distinct", 512),
    Batch(256, 256, "distinct"),
    Batch(64, 1, "identical"),
    Batch(8, 8, "distinct"),
    Batch(512, 1, "identical", 512),
    Batch(256, 64, "zipf"),
    Batch(4096, 256, "distinct", 16),
    Batch(32, 32, "distinct"),
    Batch(4096, 1, "identical", 4096),
    Batch(128, 64, "uniform"),
    Batch(1024, 16, "zipf", 128),
    Batch(256, 1, "identical"),
)
QUICK_BATCHES: Final = (Batch(4, 4, "distinct"), Batch(24, 2, "uniform", 12), Batch(6, 3, "zipf"))


def grid(quick: bool) -> Iterator[tuple[Layer, str, Batch]]:
    """Every layer, rank and batch, those first that together cover all pairs of two of them.

    The first fifth has each pair of layer and batch once, with the ranks dealt out so that each rank meets
    each layer and each batch; within it the first rows already meet every layer and every batch.
    """
    models, ranks, batches = (QUICK_MODELS, QUICK_RANKS, QUICK_BATCHES) if quick else (MODELS, RANKS, BATCHES)
    layers = [layer for model in models for layer in model.layers]
    places = itertools.product(range(len(layers)), range(len(ranks)), range(len(batches)))

    def wave(place: tuple[int, int, int]) -> tuple[int, int, int]:
        layer, rank, batch = place
        return ((layer + rank + batch) % len(ranks), (layer + batch) % len(layers), batch)

    for layer, rank, batch in sorted(places, key=wave):
        yield layers[layer], ranks[rank], batches[batch]
