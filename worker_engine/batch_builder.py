"""Builds the tensors of a step from its chunks."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass

import numpy as np
import torch

from kernels.lora import Segments
from kernels.transfer import to_device
from worker_engine.adapters.batch import AdapterBatch
from worker_engine.adapters.paged_batch import PagedAdapterBatch
from worker_engine.config import PAGE_SIZE
from worker_engine.decode_graphs import DecodeStep
from worker_engine.layers.attention import AttentionPlan
from worker_engine.layers.linear import LayerLora
from worker_engine.layers.tops import Tops
from worker_engine.models.decoder import Batch
from worker_engine.readers.base import Reader
from worker_engine.scheduler import Chunk
from worker_engine.sequence import Sequence

Rows = Items[tuple[Chunk, int]]
"""A step's chunks, each with its adapter's index in the batch, -1 for none."""


@dataclass(frozen=True, slots=True)
class ReaderRows:
    """The step's rows of one chunk whose hidden states a reader takes."""

    reader: Reader
    adapter: int
    rows: range


@dataclass(frozen=True, slots=True)
class PendingTokens:
    """Tokens sampled by the last launched step, which exist on the device only.

    Attributes:
        ids: int64 [n], -1 where the logits were not finite.
        rows: each sequence's index in `ids`.
    """

    ids: torch.Tensor
    rows: Mapping[Sequence, int]


class BatchBuilder:
    """Builds steps on one device for the adapters of the current batch."""

    def __init__(self, adapters: AdapterBatch | PagedAdapterBatch, device: torch.device) -> None:
        self._adapters, self._device = adapters, device
        self._last_segments: tuple[list[int], Items[LayerLora], Segments] | None = None

    def inputs(self, rows: Rows, pending: PendingTokens | None) -> torch.Tensor:
        """Return the token ids of all rows, int64, on the device."""
        token_ids: list[int] = []
        targets: list[int] = []
        sources: list[int] = []
        for chunk, _ in rows:
            sequence, start = chunk.sequence, chunk.sequence.num_computed
            known = sequence.token_ids[start : start + chunk.count]
            token_ids += known
            if pending is not None and len(known) < chunk.count:
                targets.append(len(token_ids))
                sources.append(pending.rows[sequence])
                token_ids.append(0)
            if chunk.drafts:
                token_ids += [draft.token_id for draft in chunk.drafts]
        inputs = self._tensor(token_ids)
        if pending is not None and targets:
            # A row with non-finite logits fails when it is collected; until then any token will do.
            sampled = pending.ids.index_select(0, self._tensor(sources)).clamp_(min=0)
            inputs.index_copy_(0, self._tensor(targets), sampled)
        return inputs

    def batch(self, rows: Rows, inputs: torch.Tensor) -> tuple[Batch, list[ReaderRows]]:
        """Build the batch. Output rows are the sampled ones, then those that readers take."""
        positions: list[int] = []
        output_rows: list[int] = []
        row_adapter: list[int] = []
        reads: list[ReaderRows] = []
        for chunk, adapter in rows:
            start = chunk.sequence.num_computed
            span = range(start, start + chunk.count + len(chunk.drafts))
            if (read := _reader_rows(chunk, adapter, len(positions))) is not None:
                reads.append(read)
            positions += span
            row_adapter += [adapter] * len(span)
            if chunk.samples:
                output_rows += range(len(positions) - 1 - len(chunk.drafts), len(positions))
        output_rows += [row for read in reads for row in read.rows]
        query_lens, contexts, pages = _queries([chunk for chunk, _ in rows])
        segments = self._segments(row_adapter)
        every_row = output_rows == list(range(len(positions)))
        batch = Batch(
            token_ids=inputs,
            positions=self._tensor(positions),
            attention=AttentionPlan.build(
                query_lens, contexts, pages, page_size=PAGE_SIZE, device=self._device
            ),
            output_rows=None if every_row else self._tensor(output_rows),
            lora=() if segments.empty else self._adapters.layers,
            segments=segments,
            tops=self.tops(segments, None if every_row else [row_adapter[row] for row in output_rows]),
        )
        return batch, reads

    def decode_step(self, rows: Rows, inputs: torch.Tensor) -> DecodeStep | None:
        """Build the step for a captured graph; None unless each sequence just decodes.

        Captures leave out adapters' gains, biases and norms.
        """
        if not all(_decodes(chunk) for chunk, _ in rows):
            return None
        _, contexts, pages = _queries([chunk for chunk, _ in rows])
        return DecodeStep(
            token_ids=inputs,
            positions=self._tensor([context - 1 for context in contexts]),
            contexts=contexts,
            pages=pages,
            row_adapter=sampled_adapters(rows),
            layers=self._adapters.layers,
        )

    def warm_up_batch(self, rows: int, context: int) -> Batch:
        """Build a batch of the last `rows` tokens of `context` on page 0, which belongs to no sequence."""
        return Batch(
            token_ids=self._tensor([0] * rows),
            positions=self._tensor(range(context - rows, context)),
            attention=AttentionPlan.build([rows], [context], [[0]], page_size=PAGE_SIZE, device=self._device),
            output_rows=None,
            lora=(),
            segments=self.segments_of([-1] * rows),
        )

    def tops(self, segments: Segments, outputs: list[int] | None) -> Tops | None:
        """Return the adapters' changes outside of linear modules; None if there are none.

        Args:
            outputs: the adapter of each output row; None where they are the batch's rows.
        """
        if segments.empty:
            return None
        return self._adapters.tops(segments, segments if outputs is None else self.segments_of(outputs))

    def segments_of(self, row_adapter: Items[int]) -> Segments:
        return Segments.group(row_adapter, self._device)

    def _segments(self, row_adapter: list[int]) -> Segments:
        """Return the segments; reuse the last step's, with its plans, while rows and weights are unchanged.

        Plans for 32 rows of 32 adapters take 0.3 ms of host time, and most decode steps change nothing.
        """
        last = self._last_segments
        if last is None or last[0] != row_adapter or last[1] is not self._adapters.layers:
            segments = self.segments_of(row_adapter)
            last = self._last_segments = (row_adapter, self._adapters.layers, segments)
        return last[2]

    def _tensor(self, values: Items[int]) -> torch.Tensor:
        return to_device(np.array(values, dtype=np.int64), self._device)


def sampled_adapters(rows: Rows) -> list[int]:
    """Return the adapter of each sampled row."""
    return [adapter for chunk, adapter in rows if chunk.samples for _ in range(1 + len(chunk.drafts))]


def _queries(chunks: Items[Chunk]) -> tuple[list[int], list[int], list[Items[int]]]:
    """Return query lengths, context lengths and pages for attention.

    Each draft is a separate query, like a decode row. So its logits are bit-identical to the decode row's,
    and a captured decode step can run it. Queries of one chunk would be summed in another order.
    """
    lens: list[int] = []
    contexts: list[int] = []
    pages: list[Items[int]] = []
    for chunk in chunks:
        end, held = chunk.sequence.num_computed + chunk.count, chunk.sequence.pages
        lens.append(chunk.count)
        contexts.append(end)
        pages.append(held)
        for draft in range(1, len(chunk.drafts) + 1):
            lens.append(1)
            contexts.append(end + draft)
            pages.append(held)
    return lens, contexts, pages


def _decodes(chunk: Chunk) -> bool:
    sequence = chunk.sequence
    simple = sequence.adapter is None or sequence.adapter.pairs_only
    return chunk.count == 1 and chunk.samples and simple and _reader_rows(chunk, -1, 0) is None


def _reader_rows(chunk: Chunk, adapter: int, first_row: int) -> ReaderRows | None:
    """Return the reader's part of a chunk whose rows begin at `first_row`; None if it reads nothing."""
    reader, start = chunk.sequence.reader, chunk.sequence.num_computed
    if reader is None:
        return None
    rows = range(max(reader.start, start), min(reader.stop, start + chunk.count))
    shift = first_row - start
    return ReaderRows(reader, adapter, range(rows.start + shift, rows.stop + shift)) if rows else None
