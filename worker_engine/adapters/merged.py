"""One hot adapter merged into the base weights, for steps in which every row uses it.

The original base weights are kept: leaving merged mode restores the same tensors, so other rows compute
bit-identical results. The merged copy doubles the memory of the decoder's linear layers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernels.lora import LoraPair
from worker_engine.adapters.adapter import Adapter
from worker_engine.checkpoint.model_config import PACKED_MODULES, ModelConfig
from worker_engine.config import EngineConfig
from worker_engine.layers.linear import LoraLinear
from worker_engine.layers.linear_weight import pack

Linears = Mapping[str, LoraLinear]
"""A decoder layer's linear layers, by name in `PACKED_MODULES`."""


@dataclass(frozen=True, slots=True)
class MergePolicy:
    """When an adapter is worth merging.

    Attributes:
        pinned: digest of the only adapter that may be merged; "" for whichever is hot.
        steps: size of the window of past steps.
        share: fraction of the window that must have used the adapter alone; it is unmerged below half of
            this.
    """

    pinned: str = ""
    steps: int = 64
    share: float = 0.9


def build_merged(
    engine: EngineConfig, layers: Sequence[Linears], config: ModelConfig
) -> MergedAdapter | None:
    """Return the merging that `merge_adapter` asks for; None for "off"."""
    if engine.merge_adapter == "off":
        return None
    return MergedAdapter(
        layers, config, MergePolicy("" if engine.merge_adapter == "auto" else engine.merge_adapter)
    )


class MergedAdapter:
    """Tracks which adapter is merged, the merge's progress, and whether merged weights are active."""

    def __init__(self, layers: Sequence[Linears], config: ModelConfig, policy: MergePolicy) -> None:
        self._layers, self._config, self._policy = layers, config, policy
        self._owners: deque[str] = deque(maxlen=policy.steps)
        self._weights: list[dict[str, LoraLinear]] = []
        self._in_place = False
        self.adapter: Adapter | None = None

    @property
    def in_place(self) -> bool:
        """True if the current step computes with merged weights."""
        return self._in_place

    @property
    def complete(self) -> bool:
        return self.adapter is not None and len(self._weights) == len(self._layers)

    def step(self, adapters: Sequence[Adapter | None]) -> bool:
        """Prepare for a step: record its adapter, merge one more layer, and activate the right weights.

        Args:
            adapters: of the step's sequences; None for the base model.

        Returns:
            True when merged weights serve every row of the step, so that no adapter is needed.
        """
        contents = {"" if adapter is None else adapter.sha256 for adapter in adapters}
        owner = adapters[0] if len(contents) == 1 else None
        self._owners.append("" if owner is None else owner.sha256)
        self._choose(owner)
        if self.adapter is not None and not self.complete:
            # Merge one layer per step, so that no step waits for all of them.
            layer = len(self._weights)
            self._weights.append(self._merge(self._layers[layer], self.adapter.layers[layer]))
        self._put(self.complete and self.adapter is not None and contents == {self.adapter.sha256})
        return self._in_place

    def clear(self) -> None:
        """Restore the base weights and release the merged ones."""
        self._put(False)
        self.adapter, self._weights = None, []

    def _choose(self, owner: Adapter | None) -> None:
        policy = self._policy
        if self.adapter is not None:
            num_steps = self._owners.count(self.adapter.sha256)
            if not policy.pinned and num_steps < policy.share / 2 * min(len(self._owners), policy.steps):
                self.clear()
        if self.adapter is not None or owner is None or not owner.pairs_only:
            return
        hot = self._owners.count(owner.sha256) >= policy.share * policy.steps
        if owner.sha256 == policy.pinned or (not policy.pinned and hot):
            self.adapter = owner

    def _put(self, merged: bool) -> None:
        if merged != self._in_place:
            for linears, others in zip(self._layers, self._weights, strict=True):
                for name, other in others.items():
                    linears[name].exchange(other)
            self._in_place = merged

    def _merge(self, linears: Linears, pairs: Mapping[str, LoraPair]) -> dict[str, LoraLinear]:
        """Compute `W + s B A` for each linear layer that the adapter changes, in float32, rounded once."""
        merged: dict[str, LoraLinear] = {}
        shapes = self._config.linear_shapes
        for name, modules in PACKED_MODULES.items():
            if not any(module in pairs for module in modules):
                continue
            linear = linears[name]
            weight = linear.weight
            wide, first = weight.float(), 0
            for module in modules:
                rows = wide[first : first + shapes[module][0]]
                first += shapes[module][0]
                if module in pairs:
                    b, a = (part.to(wide.device).float() for part in (pairs[module].b, pairs[module].a))
                    rows.addmm_(b.T, a)
            merged[name] = LoraLinear(pack(wide.to(weight.dtype)), linear.bias)
        return merged
