"""LoRA adapters in host memory: loaded weights, their addresses, mixes, and packing into one buffer."""

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
from worker_engine.checkpoint.experts_config import EXPERT_MODULES, ExpertsConfig, expert_keys
from worker_engine.checkpoint.model_config import LORA_MODULES
from worker_engine.errors import AdapterRefused
from worker_engine.protocol import PoolingParams


@dataclass(frozen=True, slots=True)
class OwnRows:
    """An adapter's replacement rows for the embedding or the output head.

    Attributes:
        weight: [tokens, hidden].
        tokens: int64 [tokens], the token ids that the rows replace; None means every token.
    """

    weight: torch.Tensor
    tokens: torch.Tensor | None = None

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes + (0 if self.tokens is None else self.tokens.nbytes)


class WeightAddresses(NamedTuple):
    """Memory addresses of an adapter's weights for one packed module.

    Attributes:
        ranks: int64 [layers, slices]; 0 for modules that the adapter does not change.
        addresses: int64 [layers, slices, 2], the addresses of A and B; 0 for modules that it does not change.
        whole: True if every matrix is on the CPU in a layout that the native code reads in place.
    """

    ranks: Ints
    addresses: Ints
    whole: bool

    @classmethod
    def collect(cls, layers: Sequence[Mapping[str, LoraPair]], modules: Sequence[str]) -> WeightAddresses:
        pairs = [[layer.get(module) for module in modules] for layer in layers]
        ranks = [[0 if pair is None else pair.rank for pair in layer] for layer in pairs]
        where = [[addresses(pair) for pair in layer] for layer in pairs]
        whole = all(in_place(pair) for layer in pairs for pair in layer if pair is not None)
        return cls(np.array(ranks, dtype=np.int64), np.array(where, dtype=np.int64), whole)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Adapter:
    """An adapter's weights in host memory. Paths are PEFT's, without `base_model.model.`.

    Attributes:
        sha256: digest of the content; adapters with equal digests compute the same results.
        layers: per decoder layer, module name -> weights; modules that the adapter does not change are
            absent. A single expert's modules have the names of `experts_config.expert_key`.
        nbytes: memory of all weights.
        tops: LoRA on `model.embed_tokens` (A is [rank, vocabulary]) and on `lm_head`.
        gains: DoRA's magnitude divided by the norm of the merged columns: path -> float32 [out].
        biases: what is added to a module's output: path -> float32 [out].
        norms: replacement weights of norm layers: path -> [hidden].
        rows: replacement rows of the embedding or the head, by path.
        buffer: [elements], which `layers` are views of, in the order of `gather_layers`; None where each
            weight has memory of its own.
        kept: cache of `weight_addresses`, by packed module.
        embeds_only: True if it was trained for embeddings, so that its output head means nothing.
        pooling: its own pooling, in place of the checkpoint's; None if its files name none.
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
    kept: dict[str, WeightAddresses] = field(default_factory=dict, repr=False)
    embeds_only: bool = False
    pooling: PoolingParams | None = None

    def weight_addresses(self, name: str, modules: Sequence[str]) -> WeightAddresses:
        """Return the addresses for the packed module `name`, which stacks `modules`.

        The result is cached: collecting 240 addresses takes 0.2 ms, which every batch would pay otherwise.
        """
        if name not in self.kept:
            self.kept[name] = WeightAddresses.collect(self.layers, modules)
        return self.kept[name]

    def expert_addresses(self, experts: ExpertsConfig) -> dict[str, WeightAddresses]:
        """Return the addresses for each of `EXPERT_MODULES`; its slices are those of `expert_keys`.

        The loader calls this: collecting the 12,288 pairs of 48 layers of 128 experts takes tens of
        milliseconds, in which no step would run.
        """
        return {
            name: self.weight_addresses(name, expert_keys(experts.num_experts, name))
            for name in EXPERT_MODULES
        }

    @property
    def pairs_only(self) -> bool:
        """True if the adapter is only `x A B` in decoder layers, so that it can be mixed with others."""
        return not (self.tops or self.gains or self.biases or self.norms or self.rows)


def mix_adapters(sha256: str, members: Sequence[tuple[Adapter, float]]) -> Adapter:
    """`sum_i w_i B_i A_i` is the members' ranks side by side, each weight folded into its B.

    Raises:
        AdapterRefused: a member is more than LoRA on linear modules of decoder layers: gains, biases and
            replaced weights have no sum; two are pooled in different ways; or a weight makes one overflow.
    """
    poolings = {adapter.pooling for adapter, _ in members}
    if len(poolings) > 1:
        raise AdapterRefused(
            "adapters: the members' files name different poolings, so their embeddings have no sum",
            param="adapters",
        )
    for index, (adapter, _) in enumerate(members):
        if not adapter.pairs_only:
            raise AdapterRefused(
                f"adapters[{index}] (content {adapter.sha256[:12]}) cannot be mixed: it has more than LoRA "
                "on decoder layers' linear modules",
                param="adapters",
            )
    weights = [weight for _, weight in members]
    layers = []
    for by_member in zip(*(adapter.layers for adapter, _ in members), strict=True):
        names = dict.fromkeys(name for layer in by_member for name in layer)
        pairs = {
            name: LoraPair.mixed(list(zip([layer.get(name) for layer in by_member], weights, strict=True)))
            for name in names
        }
        layers.append({name: pair for name, pair in pairs.items() if pair is not None})
    held = [pair for layer in layers for pair in layer.values()]
    if not all(bool(torch.isfinite(pair.b).all()) for pair in held):
        raise AdapterRefused("adapters: a weight makes an adapter overflow", param="adapters")
    return Adapter(
        sha256,
        tuple(layers),
        sum(pair.nbytes for pair in held),
        embeds_only=any(adapter.embeds_only for adapter, _ in members),
        pooling=poolings.pop(),
    )


def pack_adapter(adapter: Adapter, *, pinned: bool) -> Adapter:
    """Return a copy of the adapter whose layer weights share one buffer; see `gather_layers`."""
    buffer, layers = gather_layers(adapter.layers, pinned=pinned)
    return replace(adapter, layers=layers, buffer=buffer, kept={})


def gather_layers(
    layers: Sequence[Mapping[str, LoraPair]], *, pinned: bool
) -> tuple[torch.Tensor, tuple[Mapping[str, LoraPair], ...]]:
    """Copy all weights into one tensor: layer by layer, in the order of `LORA_MODULES`, A before B.

    Weights of layers of experts follow those of `LORA_MODULES`, in the order in which they were built.

    Args:
        pinned: allocate page-locked memory, so that copies to the device run asynchronously.

    Returns:
        The tensor [elements], and the layers as views of it.
    """
    held = [
        (layer[module], index, module)
        for index, layer in enumerate(layers)
        for module in dict.fromkeys((*LORA_MODULES, *layer))
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
