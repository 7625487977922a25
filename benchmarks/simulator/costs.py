"""The time of one step on an accelerator, by the bytes that it reads and the operations that it does.

The formulas are those of a roofline: a step takes as long as the slower of its memory traffic and its
products, and the gaps between its launches on top. Routing to experts is taken as uniform, so of E experts
with k active ones n rows use E (1 - (1 - k/E)^n); real routing is skewed and uses fewer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from benchmarks.simulator.sizes import MXFP4_BITS, ModelSizes, unpacked

_PADDED_RANK: Final = 64
_SMALL_TILE: Final = 16
_LARGE_TILE: Final = 64
_ATTENTION_LAUNCHES: Final = 4
"""Launches of one layer outside its experts: norm with q, k and v, rotary with the cache, attention, o."""
_EXPERT_LAUNCHES: Final = 4
"""Routing, gate and up, down, and the sum."""
_SEPARATE_LAUNCHES: Final = 2
"""The activation and the residual sum, where they have launches of their own."""


@dataclass(frozen=True, slots=True)
class Accelerator:
    """A device by its data sheet.

    Attributes:
        bandwidth: bytes per second of its memory.
        operations: bf16 operations per second of dense products.
        memory: bytes.
        copy_bandwidth: bytes per second from host memory.
        attainable: share of bandwidth and operations that kernels reach, an assumption until the GPU report
            has measured it.
    """

    name: str
    bandwidth: float
    operations: float
    memory: float
    copy_bandwidth: float = 50e9
    attainable: float = 0.8


H100: Final = Accelerator("H100", 3.35e12, 989e12, 80e9)
H200: Final = Accelerator("H200", 4.8e12, 989e12, 141e9)


@dataclass(frozen=True, slots=True)
class Optimizations:
    """Ways in which the engine saves time; each can be off, to show its gain.

    Attributes:
        packed_experts: 4-bit experts stay packed in memory instead of being widened to bf16 at load.
        small_tiles: products of few rows use tiles of 16 rows instead of 64.
        real_rank: adapters are read at their own rank instead of padded to 64.
        early_exit: experts' products skip adapters that have no pairs there, instead of reading zeros.
        fused: LoRA's two products, the base's and the activation share launches: 8 a layer instead of 18.
        graphs: a step's launches are captured; else the host starts each in 5 microseconds.
        dependent_launch: launches overlap with the end of the ones before, so that gaps halve.
        windows: layers with a window read only its keys and values.
    """

    packed_experts: bool = True
    small_tiles: bool = True
    real_rank: bool = True
    early_exit: bool = True
    fused: bool = True
    graphs: bool = True
    dependent_launch: bool = True
    windows: bool = True


@dataclass(slots=True)
class StepLoad:
    """Rows and contexts of one step.

    Attributes:
        rows: rows by adapter digest; "" for the base model.
        contexts: of each chunk, its rows and the tokens up to its last row.
        sampled: rows whose next token is chosen.
        small: True if every chunk is a decode row with its drafts.
    """

    rows: Counter[str] = field(default_factory=Counter)
    contexts: list[tuple[int, int]] = field(default_factory=list)
    sampled: int = 0
    small: bool = True

    def add(self, adapter: str, rows: int, context: int, *, sampled: int, decodes: bool) -> None:
        self.rows[adapter] += rows
        self.contexts.append((rows, context))
        self.sampled += sampled
        self.small = self.small and decodes


@dataclass(frozen=True, slots=True)
class AdapterShape:
    """Rank and modules of the adapters of a run.

    Attributes:
        experts: True if they have pairs on all experts (the MLP of a dense model).
    """

    rank: int = 32
    experts: bool = True


@dataclass(frozen=True, slots=True)
class StepCosts:
    """The times of steps of one model on one accelerator."""

    model: ModelSizes
    accelerator: Accelerator
    adapters: AdapterShape = AdapterShape()
    on: Optimizations = Optimizations()

    @property
    def served(self) -> ModelSizes:
        """The model as it lies in memory."""
        packed = self.on.packed_experts or self.model.expert_bits != MXFP4_BITS
        return self.model if packed else unpacked(self.model)

    def seconds(self, load: StepLoad) -> float:
        """Return the duration of one step."""
        accelerator = self.accelerator
        memory = self.num_bytes(load) / (accelerator.bandwidth * accelerator.attainable)
        products = self.num_operations(load) / (accelerator.operations * accelerator.attainable)
        return max(memory, products) + self._gaps(load)

    def num_bytes(self, load: StepLoad) -> float:
        """Return the bytes that the step reads from memory."""
        model, total = self.served, sum(load.rows.values())
        weights = 2.0 * model.attention_weights
        weights += 2.0 * model.head_weights * bool(load.sampled)
        weights += model.layers * self._experts_read(total) * model.expert_bytes
        attended = sum(model.attended(context, windowed=self.on.windows) for _, context in load.contexts)
        return weights + attended * model.layer_token_bytes + self.lora_bytes(load)

    def lora_bytes(self, load: StepLoad) -> float:
        """Return the bytes of adapters' weights that the step reads."""
        model, shape = self.model, self.adapters
        rank = shape.rank if self.on.real_rank else max(shape.rank, _PADDED_RANK)
        own = [rows for adapter, rows in load.rows.items() if adapter]
        read = float(len(own) * model.attention_pair_bytes(rank))
        if shape.experts or not self.on.early_exit:
            pairs = sum(self._experts_read(rows) for rows in own)
            read += model.layers * pairs * model.expert_pair_bytes(rank)
        return read

    def num_operations(self, load: StepLoad) -> float:
        """Return the floating-point operations of the step's products, with the rows that tiles pad."""
        model, total = self.model, sum(load.rows.values())
        dense = model.attention_weights * total + model.head_weights * load.sampled
        tile = _SMALL_TILE if self.on.small_tiles else _LARGE_TILE
        segments = self._experts_read(total)
        routed = max(total * model.active, segments * tile)
        attended = sum(
            rows * model.attended(context, windowed=self.on.windows) for rows, context in load.contexts
        )
        scores = 2 * model.heads * model.head_dim * attended
        return 2.0 * (dense + model.layers * routed * model.expert_weights + scores)

    def _experts_read(self, rows: int) -> float:
        """Return the expected number of different experts of a layer that `rows` rows use."""
        unused = 1 - self.model.active / self.model.experts
        return float(self.model.experts * (1 - unused**rows))

    def _gaps(self, load: StepLoad) -> float:
        """Return the seconds in which the device waits for launches."""
        adapted = any(load.rows) or not self.on.early_exit
        experts = adapted and (self.adapters.experts or not self.on.early_exit)
        launches = _ATTENTION_LAUNCHES + _EXPERT_LAUNCHES
        if not self.on.fused:
            launches += _SEPARATE_LAUNCHES + adapted * _ATTENTION_LAUNCHES + experts * _EXPERT_LAUNCHES
        gap = 0.75e-6 if self.on.dependent_launch else 1.5e-6
        if not (self.on.graphs and load.small):
            gap = 5e-6
        return self.model.layers * launches * gap


def load_of(chunks: Iterable[tuple[str, int, int, int]]) -> StepLoad:
    """Return the load of chunks, each as adapter, rows, context and sampled rows."""
    load = StepLoad()
    for adapter, rows, context, sampled in chunks:
        load.add(adapter, rows, context, sampled=sampled, decodes=rows == max(sampled, 1))
    return load
