"""Decode steps captured once per batch size and kind of adapters, and replayed.

A step of one token per sequence consists of the same few hundred launches every time; only the tensors'
contents differ. A capture is for a number of rows (`buckets`), and smaller batches are padded. Padding rows
write their keys and values to page 0, which belongs to no sequence, and their logits are not read. Each size
has a capture without adapters and one for adapters of attention layers alone (`KINDS`), so that a batch
launches nothing for layers that none of its adapters changes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from kernels.attention.graph import capture_plan
from kernels.capture import Captures
from kernels.lora import Segments
from kernels.lora.graph import MAX_RANK, CapturedLora, GraphLora, GraphTables, LinearShape
from worker_engine.checkpoint.model_config import PACKED_MODULES, ModelConfig
from worker_engine.config import PAGE_SIZE, EngineConfig
from worker_engine.layers.attention import AttentionPlan, KVCache
from worker_engine.layers.linear import LayerLora, LinearLora
from worker_engine.models.decoder import Batch, Decoder

log = logging.getLogger(__name__)

KINDS: Final[tuple[tuple[str, ...], ...]] = (tuple(PACKED_MODULES), ("qkv", "o"), ())
"""Where the captures of a size launch adapters' kernels: linear layers by name in `PACKED_MODULES`."""

TOLERANCE = 0.02
"""Tolerance of a replay, relative to the step's largest logit: the kernels are equal, and bf16 has eight
bits.
"""


def buckets(most: int) -> list[int]:
    """Return the numbers of rows of the captures, the last one `most`."""
    return sorted({size for size in (1, 2, 4, *range(8, most, 8)) if size < most} | {most})


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """Sequences with one new token each.

    Attributes:
        token_ids, positions: int64 [rows] on the device.
        contexts: tokens of each sequence, including the new one.
        row_adapter: index in `layers` of each row's adapter, -1 for none.
        layers: the current `AdapterBatch.layers`.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    contexts: Sequence[int]
    pages: Sequence[Sequence[int]]
    row_adapter: Sequence[int]
    layers: Sequence[LayerLora]


@dataclass(frozen=True, slots=True)
class _Recording:
    """A capture: tensors with fixed addresses, and the step on them.

    Attributes:
        inputs: int64 [2, rows], token ids and positions.
        logits: float32 [rows, vocab].
    """

    inputs: torch.Tensor
    attention: AttentionPlan
    lora: GraphLora | None
    logits: torch.Tensor
    replay: Callable[[], None]


class DecodeGraphs:
    """The captures of one model and cache.

    Attributes:
        num_replays: steps that ran as a replay.
        num_refused: decode steps that no capture could run.
        problem: why capturing failed; all later steps are launched operation by operation.
    """

    def __init__(
        self,
        model: Decoder,
        cache: KVCache,
        config: ModelConfig,
        engine: EngineConfig,
        captures: Captures,
        *,
        max_model_len: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Capture all sizes now if `cuda_graphs` says so, otherwise each at its first step."""
        self._model, self._cache, self._captures, self._device = model, cache, captures, device
        self._max_context, self.buckets = max_model_len, buckets(engine.max_num_seqs)
        shapes = {
            name: LinearShape(
                config.linear_shapes[modules[0]][1],
                tuple(config.linear_shapes[module][0] for module in modules),
            )
            for name, modules in PACKED_MODULES.items()
        }
        self._tables = GraphTables(
            shapes,
            config.num_layers,
            adapters=engine.max_adapters_per_batch,
            rank=MAX_RANK,
            dtype=dtype,
            device=device,
        )
        self._loaded: Sequence[LayerLora] | None = None
        self._recordings: dict[tuple[int, tuple[str, ...]], _Recording] = {}
        self.num_replays = self.num_refused = 0
        self.problem = ""
        if engine.cuda_graphs == "start":
            self._record_all()

    def _record_all(self) -> None:
        """Capture every size, the largest first, so that the others reuse its memory."""
        for rows in reversed(self.buckets):
            for names in KINDS:
                if self._recording(rows, names) is None:
                    return

    @torch.inference_mode()
    def run(self, step: DecodeStep) -> torch.Tensor | None:
        """Return float32 logits [rows, vocab], valid until the next step; None when no capture fits."""
        count = len(step.contexts)
        rows = next((size for size in self.buckets if size >= count), None)
        if rows is None:
            return None
        try:
            recording = self._recording(rows, self._load_adapters(step))
            if recording is None:
                return None
            self._load(recording, step, rows)
        except ValueError as error:
            self.num_refused += 1
            log.debug("a decode step of %d rows runs launch by launch: %s", count, error)
            return None
        recording.replay()
        self.num_replays += 1
        return recording.logits[:count]

    def _load_adapters(self, step: DecodeStep) -> tuple[str, ...]:
        """Load the step's adapters into the tables and return the smallest of `KINDS` that covers them.

        Raises:
            ValueError: captured launches cannot process the adapters.
        """
        active = {adapter for adapter in step.row_adapter if adapter >= 0}
        if not active:
            return ()
        if step.layers is not self._loaded:
            self._loaded = None
            # Reading a layer makes the device wait for its weights. A recording cannot wait within
            # itself for copies that begin later, so all layers are waited for in front of the replay.
            self._tables.load(
                [
                    {name: None if held is None else held.weights for name, held in by_name.items()}
                    for by_name in step.layers
                ]
            )
            self._loaded = step.layers
        changed = {name for name in self._tables.shapes if self._tables.changes(name, active)}
        return next(names for names in reversed(KINDS) if changed <= set(names))

    def _load(self, recording: _Recording, step: DecodeStep, rows: int) -> None:
        count = len(step.contexts)
        if recording.lora is not None:
            recording.lora.load([*step.row_adapter, *[-1] * (rows - count)])
        if recording.attention.graph is None:
            raise ValueError("attention.graph is None; expected the plan of a captured step")
        recording.attention.graph.load(self._plan(rows, step.contexts, step.pages))
        recording.inputs[0, :count] = step.token_ids
        recording.inputs[1, :count] = step.positions

    def _plan(
        self, rows: int, contexts: Sequence[int] = (), pages: Sequence[Sequence[int]] = ()
    ) -> AttentionPlan:
        """Pad the plan with sequences of one token in page 0."""
        padding = rows - len(contexts)
        return AttentionPlan.build(
            [1] * rows,
            [*contexts, *[1] * padding],
            [*pages, *[(0,)] * padding],
            page_size=PAGE_SIZE,
            device=self._device,
        )

    @torch.inference_mode()
    def _recording(self, rows: int, names: tuple[str, ...]) -> _Recording | None:
        """Return a capture, made on first use with padding only; None once that has failed.

        Capturing may fail for lack of memory, or at an operation that the driver cannot capture. The worker
        then decodes without captures, which is slower than replays but better than ending.
        """
        key = (rows, names)
        if key not in self._recordings and not self.problem:
            try:
                self._recordings[key] = self._record(rows, names)
            except Exception as error:
                log.exception("a decode step of %d rows could not be recorded; none is replayed", rows)
                self.problem = f"{type(error).__name__}: {error}"
        return None if self.problem else self._recordings[key]

    def _record(self, rows: int, names: tuple[str, ...]) -> _Recording:
        inputs = torch.zeros((2, rows), dtype=torch.int64, device=self._device)
        attention = capture_plan(self._plan(rows), max_context=self._max_context)
        lora = GraphLora(self._tables, rows) if names else None
        batch = Batch(
            token_ids=inputs[0],
            positions=inputs[1],
            attention=attention,
            output_rows=None,
            lora=() if lora is None else self._layers(lora, names),
            segments=Segments.group([-1 if lora is None else 0] * rows, self._device),
        )

        def step() -> torch.Tensor:
            return self._model.predict(self._model.forward(batch, self._cache), None)

        logits, replay = self._captures.capture(step)
        _verify(step(), logits, replay)
        return _Recording(inputs, attention, lora, logits, replay)

    def _layers(self, lora: GraphLora, names: tuple[str, ...]) -> list[LayerLora]:
        return [
            {name: LinearLora(None, captured=CapturedLora(lora, layer, name)) for name in names}
            for layer in range(self._tables.num_layers)
        ]


def _verify(expected: torch.Tensor, logits: torch.Tensor, replay: Callable[[], None]) -> None:
    """Replay a new capture once, on the batch that it was captured with.

    Raises:
        RuntimeError: its `logits` differ from `expected`, those of the same step without replay.
    """
    replay()
    apart = float((logits - expected).abs().max())
    if not apart <= TOLERANCE * float(expected.abs().max()):
        raise RuntimeError(f"replayed logits differ from those of the step itself by {apart:.3g}")
