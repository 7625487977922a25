"""A loaded adapter."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch

from kernels.lora import LoraPair
from kernels.lora.layout import Ints
from kernels.lora.native_rows import addresses, in_place
from worker_engine.checkpoint.model_config import LORA_MODULES, PACKED_MODULES


@dataclass(frozen=True, slots=True)
class OwnRows:
    """Rows of the embedding or the head that an adapter has of its own.

    Attributes:
        weight: [tokens, hidden].
        tokens: int64 [tokens], whose rows they are; None for all.
    """

    weight: torch.Tensor
    tokens: torch.Tensor | None = None

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes + (0 if self.tokens is None else self.tokens.nbytes)


class Places(NamedTuple):
    """Where an adapter's weights of one packed module lie.

    Attributes:
        ranks: int64 [layers, slices].
        addresses: int64 [layers, slices, 2], of A and B; 0 for modules left alone.
        whole: every matrix lies in one piece on the CPU.
    """

    ranks: Ints
    addresses: Ints
    whole: bool

    @classmethod
    def of(cls, layers: Sequence[Mapping[str, LoraPair]], modules: Sequence[str]) -> Places:
        pairs = [[layer.get(module) for module in modules] for layer in layers]
        ranks = [[0 if pair is None else pair.rank for pair in layer] for layer in pairs]
        where = [[addresses(pair) for pair in layer] for layer in pairs]
        whole = all(in_place(pair) for layer in pairs for pair in layer if pair is not None)
        return cls(np.array(ranks, dtype=np.int64), np.array(where, dtype=np.int64), whole)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Adapter:
    """An adapter's weights in host memory. Paths are PEFT's, without `base_model.model.`.

    Attributes:
        sha256: identity of the content: two adapters with the same one compute the same.
        layers: for each decoder layer, module name -> weights; modules left alone are absent.
        nbytes: memory of all weights.
        tops: LoRA on `model.embed_tokens` (A is [rank, vocabulary]) and on `lm_head`.
        gains: DoRA's magnitude over the norm of the merged columns: path -> float32 [out].
        biases: what is added to a module's output: path -> float32 [out].
        norms: weights in place of a norm's: path -> [hidden].
        rows: rows in place of the embedding's or the head's.
        buffer: [elements], what `layers` are views of, in the order of `gathered`; None where each weight has
            memory of its own.
        kept: what was worked out of the weights.
    """

    sha256: str
    layers: tuple[Mapping[str, LoraPair], ...]
    nbytes: int
    tops: Mapping[str, LoraPair] = field(default_factory=dict)
    gains: Mapping[str, torch.Tensor] = field(default_factory=dict)
    biases: Mapping[str, torch.Tensor] = field(default_factory=dict)
    norms: Mapping[str, torch.Tensor] = field(default_factory=dict)
    rows: Mapping[str, OwnRows] = field(default_factory=dict)
    buffer: torch.Tensor | None = None
    kept: dict[str, Places] = field(default_factory=dict, repr=False)

    def places(self, name: str) -> Places:
        """Of the packed module `name`, looked up once: what is 0.2 ms for 240 matrices goes by batch else."""
        if name not in self.kept:
            self.kept[name] = Places.of(self.layers, PACKED_MODULES[name])
        return self.kept[name]

    @property
    def pairs_only(self) -> bool:
        """Whether it is nothing but `x A B` in decoder layers: such adapters can be added up."""
        return not (self.tops or self.gains or self.biases or self.norms or self.rows)


def packed(adapter: Adapter, *, pinned: bool) -> Adapter:
    """The same with its layers' weights in one piece; see `gathered`."""
    buffer, layers = gathered(adapter.layers, pinned=pinned)
    return replace(adapter, layers=layers, buffer=buffer, kept={})


def gathered(
    layers: Sequence[Mapping[str, LoraPair]], *, pinned: bool
) -> tuple[torch.Tensor, tuple[Mapping[str, LoraPair], ...]]:
    """Copies all weights into one tensor: layer by layer, in the order of `LORA_MODULES`, A before B.

    Args:
        pinned: in memory that the device copies from while it and the host go on.

    Returns:
        The tensor [elements], and the layers as views of it.
    """
    held = [
        (layer[module], index, module)
        for index, layer in enumerate(layers)
        for module in LORA_MODULES
        if module in layer
    ]
    matrices = [matrix for pair, _, _ in held for matrix in (pair.a, pair.b)]
    sizes = [matrix.numel() for matrix in matrices]
    dtype = matrices[0].dtype if matrices else torch.float32
    buffer = torch.empty(sum(sizes), dtype=dtype, pin_memory=pinned)
    views: list[torch.Tensor] = []
    for matrix, stop in zip(matrices, itertools.accumulate(sizes), strict=True):
        views.append(buffer[stop - matrix.numel() : stop].view(matrix.shape))
    if views:
        torch._foreach_copy_(views, matrices)
    moved: list[dict[str, LoraPair]] = [{} for _ in layers]
    for (_, index, module), a, b in zip(held, views[::2], views[1::2], strict=True):
        moved[index][module] = LoraPair(a, b)
    return buffer, tuple(moved)
