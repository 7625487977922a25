"""Several weighted adapters as one adapter."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernels.lora import LoraPair
from worker_engine.adapters.adapter import Adapter
from worker_engine.errors import AdapterRefused


def mix_adapters(sha256: str, members: Sequence[tuple[Adapter, float]]) -> Adapter:
    """`sum_i w_i B_i A_i` is the members' ranks side by side, each weight folded into its B.

    Raises:
        AdapterRefused: a member is more than LoRA on linear modules of decoder layers: gains, biases and
            replaced weights have no sum; or a weight makes one overflow.
    """
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
    return Adapter(sha256, tuple(layers), sum(pair.nbytes for pair in held))
