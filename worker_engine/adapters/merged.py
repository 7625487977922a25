"""One hot adapter merged into the base weights, for steps in which every row uses it.

The original base weights are kept: leaving merged mode restores the same tensors, so other rows compute
bit-identical results. The merged copy doubles the memory of the decoder's linear layers.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass

from kernels.lora import LoraPair
from worker_engine.adapters.adapter import Adapter
from worker_engine.adapters.merge_timings import MergeTimings
from worker_engine.checkpoint.model_config import PACKED_MODULES, ModelConfig
from worker_engine.config import EngineConfig
from worker_engine.layers.linear import LoraLinear
from worker_engine.layers.linear_weight import pack

log = logging.getLogger(__name__)
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


@dataclass(slots=True)
class MergeCounts:
    """Counts of merges since the process started.

    Attributes:
        begun, completed, dropped: merges of an adapter; a dropped one frees its memory.
        steps: steps that were computed with merged weights.
        seconds: time spent computing merged weights.
    """

    begun: int = 0
    completed: int = 0
    dropped: int = 0
    steps: int = 0
    seconds: float = 0.0


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
    """Tracks which adapter is merged, the merge's progress, and whether merged weights are active.

    Attributes:
        adapter: the adapter that is merged, or being merged; None for none.
        completed_at: Unix seconds at which all of its layers were merged; 0 before.
        timings: decode steps with its weights merged, and with the base's.
    """

    def __init__(
        self,
        layers: Sequence[Linears],
        config: ModelConfig,
        policy: MergePolicy,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`clock` measures durations in seconds."""
        self._layers, self._config, self._policy, self._clock = layers, config, policy, clock
        self.counts, self.timings = MergeCounts(), MergeTimings(clock)
        self.completed_at = 0.0
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

    @property
    def progress(self) -> tuple[int, int]:
        """(layers merged so far, layers of the model)."""
        return len(self._weights), len(self._layers)

    @property
    def nbytes(self) -> int:
        """Memory of the merged weights."""
        return sum(linear.weight.nbytes for layer in self._weights for linear in layer.values())

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
            self._merge_next(self.adapter)
        self._put(self.complete and self.adapter is not None and contents == {self.adapter.sha256})
        self.counts.steps += self._in_place
        return self._in_place

    def launched(self, requests: Set[str], adapters: Sequence[Adapter | None], *, decodes: bool) -> None:
        """Time a step that `step` prepared; only decode steps with one adapter for all rows count.

        Args:
            requests: ids of its requests.
            decodes: every row continues a sequence by one token.
        """
        owner = adapters[0]
        alike = owner is not None and all(
            adapter is not None and adapter.sha256 == owner.sha256 for adapter in adapters
        )
        timed = decodes and alike and (self.adapter is None or self.complete)
        self.timings.launched(requests, merged=self._in_place if timed else None)

    def clear(self) -> None:
        """Restore the base weights and release the merged ones."""
        self._put(False)
        if self.adapter is not None:
            log.info("adapter %s is no longer merged", self.adapter.sha256[:12])
            self.counts.dropped += 1
        self.adapter, self._weights, self.completed_at = None, [], 0.0

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
            self.counts.begun += 1
            log.info("adapter %s is being merged: every row has used it", owner.sha256[:12])

    def _merge_next(self, adapter: Adapter) -> None:
        """Merge one layer per step, so that no step waits for all of them."""
        started, layer = self._clock(), len(self._weights)
        self._weights.append(self._merge(self._layers[layer], adapter.layers[layer]))
        self.counts.seconds += self._clock() - started
        if self.complete:
            self.counts.completed += 1
            self.completed_at = time.time()
            log.info("adapter %s is merged", adapter.sha256[:12])

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
