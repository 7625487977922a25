"""Runs the model on one step's chunks: builds the batch's tensors, returns logits."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch

from kernels import native
from kernels.capture import Captures, captures_for
from kernels.lora import Segments
from kernels.transfer import to_device
from worker_engine.adapters.batch import AdapterBatch
from worker_engine.adapters.device_tier import DeviceTier, lends_pages
from worker_engine.adapters.merged import Merged, MergePolicy
from worker_engine.adapters.paged_batch import PagedAdapterBatch
from worker_engine.checkpoint.model_config import ModelConfig
from worker_engine.config import PAGE_SIZE, EngineConfig, step_tokens
from worker_engine.decode_graphs import DecodeGraphs, DecodeStep, buckets
from worker_engine.device_memory import beside_pool, demand_room, free_bytes
from worker_engine.errors import ConfigError
from worker_engine.kernel_choice import TRITON, choose_kernels
from worker_engine.layers.attention import AttentionPlan, KVCache
from worker_engine.layers.linear import LayerLora
from worker_engine.layers.tops import Tops
from worker_engine.models import load_model
from worker_engine.models.decoder import Batch
from worker_engine.readers.base import Reader
from worker_engine.sampling.truncation import most_likely
from worker_engine.scheduler import Chunk
from worker_engine.sequence import Sequence

log = logging.getLogger(__name__)


def choose_device(name: str) -> torch.device:
    """Return the device; `auto` is CUDA if available. Raises ConfigError if requested CUDA is missing."""
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda: this machine has no CUDA device that PyTorch can use")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def choose_dtype(name: str, model: ModelConfig, device: torch.device) -> torch.dtype:
    """Return the compute dtype; `auto` is bf16 for bf16 checkpoints on suitable hardware, else fp32.

    fp16 checkpoints run in bf16 on CUDA and in fp32 on CPU, where fp16 products are emulated. Quantized ones
    run in bf16 wherever the native loops are available.
    """
    if name != "auto":
        return torch.float32 if name == "float32" else torch.bfloat16
    if device.type == "cuda":
        return torch.float32 if model.dtype == "float32" else torch.bfloat16
    if native.LIBRARY is not None and (model.quantization is not None or model.dtype == "bfloat16"):
        return torch.bfloat16
    fast = model.dtype == "bfloat16" and torch.cpu._is_avx512_bf16_supported()
    return torch.bfloat16 if fast else torch.float32


@dataclass(frozen=True, slots=True)
class Read:
    """The step's rows of one chunk whose hidden states a reader takes."""

    reader: Reader
    adapter: int
    rows: range


@dataclass(frozen=True, slots=True)
class Unread:
    """Tokens sampled by the last launched step, which exist on the device only.

    Attributes:
        ids: int64 [n], -1 where the logits were not finite.
        rows: each sequence's index in `ids`.
    """

    ids: torch.Tensor
    rows: Mapping[Sequence, int]


class ModelRunner:
    """The model, its KV cache and the batch's adapters on one device.

    Attributes:
        kernels: see `choose_kernels`.
        tier: the adapters in pool pages; None on the CPU.
    """

    def __init__(
        self,
        engine: EngineConfig,
        model: ModelConfig,
        *,
        dtype: torch.dtype,
        device: torch.device,
        captures: Captures | None = None,
    ) -> None:
        """Load the checkpoint. Raises CheckpointError, or ConfigError when the KV cache has no room.

        Args:
            captures: how decode steps are captured; by default CUDA graphs on CUDA, nothing elsewhere.
        """
        self.max_model_len = engine.max_model_len or model.max_position_embeddings
        if self.max_model_len > model.max_position_embeddings:
            raise ConfigError(
                f"--max-model-len {self.max_model_len} is more than the checkpoint's "
                f"{model.max_position_embeddings} positions"
            )
        if engine.merge_adapter != "off" and model.quantization is not None:
            raise ConfigError(
                f"--merge-adapter {engine.merge_adapter} needs unquantized weights, and {engine.model} is "
                "quantized: leave merging off, or serve the checkpoint that it was made of"
            )
        token_bytes = 2 * model.num_layers * model.num_kv_heads * model.head_dim * dtype.itemsize
        self.page_bytes = token_bytes * PAGE_SIZE
        self.num_pages = 1 + int(engine.memory_gib * 2**30 / self.page_bytes)
        if self.num_pages < 2:
            raise ConfigError(f"--memory-gib {engine.memory_gib} does not hold a single page of KV cache")
        self._device = device
        self.kernels: Final = choose_kernels(model, dtype, device)
        self._model = load_model(
            engine.model,
            model,
            max_model_len=self.max_model_len,
            dtype=dtype,
            device=device,
            packed_in=engine.packed_dir,
        )
        if device.type == "cuda":
            self._demand_room(engine, model, dtype)
        self._cache = KVCache(model, self.num_pages, dtype=dtype, device=device, by_page=lends_pages(device))
        memory = self._cache.memory
        self.tier = None if memory is None else DeviceTier(memory, model)
        self.adapters: AdapterBatch | PagedAdapterBatch = (
            AdapterBatch(model, dtype=dtype) if self.tier is None else PagedAdapterBatch(model, self.tier)
        )
        self._last_segments: tuple[list[int], Items[LayerLora], Segments] | None = None
        self.merged: Merged | None = None
        if engine.merge_adapter != "off":
            pinned = "" if engine.merge_adapter == "auto" else engine.merge_adapter
            self.merged = Merged(self._model.linears, model, MergePolicy(pinned))
        self.graphs: DecodeGraphs | None = None
        if captures is None and device.type == "cuda" and engine.cuda_graphs != "off" and self._capturable:
            captures = captures_for(device)
        if captures is not None:
            self.graphs = DecodeGraphs(
                self._model,
                self._cache,
                model,
                captures,
                max_num_seqs=engine.max_num_seqs,
                max_adapters=engine.max_adapters_per_batch,
                max_context=self.max_model_len,
                dtype=dtype,
                device=device,
            )
            if engine.cuda_graphs == "start":
                self.graphs.record_all()

    def _demand_room(self, engine: EngineConfig, model: ModelConfig, dtype: torch.dtype) -> None:
        """Check device memory once the weights are loaded. Raises ConfigError."""
        recorded = engine.cuda_graphs != "off" and self._capturable
        beside = beside_pool(
            model,
            rows=step_tokens(engine, self._device.type),
            sequences=engine.sampled_rows,
            adapters=engine.max_adapters_per_batch,
            recordings=2 * len(buckets(engine.max_num_seqs)) if recorded else 0,
            merges=engine.merge_adapter != "off",
            dtype=dtype,
        )
        demand_room(self.num_pages * self.page_bytes, beside, free_bytes(self._device))

    @torch.inference_mode()
    def warm_up(self) -> None:
        """On the CPU, run a prefill and a decode step on page 0, which belongs to no sequence."""
        if self._device.type != "cpu":
            return
        for rows, context in ((2, 2), (1, 2)):
            batch = Batch(
                token_ids=self._tensor([0] * rows),
                positions=self._tensor(range(context - rows, context)),
                attention=AttentionPlan.of(
                    [rows], [context], [[0]], page_size=PAGE_SIZE, device=self._device
                ),
                output_rows=None,
                lora=(),
                segments=self._segments_of([-1] * rows),
            )
            most_likely(self._model.predict(self._model.forward(batch, self._cache), None))
        self._cache.zero([0])

    def close(self) -> None:
        """Wait for the device: copies or steps in flight write to memory that is about to be freed."""
        try:
            if self.tier is not None:
                self.tier.close()
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
        except RuntimeError:
            log.exception("the device failed before this engine's last step was done")

    @property
    def _capturable(self) -> bool:
        """True if attention and LoRA run as Triton kernels; PyTorch's versions cannot be captured."""
        return self.kernels["attention_graph"] == self.kernels["lora_graph"] == TRITON

    @torch.inference_mode()
    def run(
        self, chunks: Items[Chunk], fresh_pages: Items[int], unread: Unread | None = None
    ) -> tuple[torch.Tensor, list[Sequence]]:
        """Compute the chunks, pass hidden states to their readers, and advance their `num_computed`.

        Args:
            fresh_pages: pages with a new owner since the last step; they are cleared first.
            unread: tokens of sequences with `num_pending_tokens`, which are this step's input.

        Returns:
            Float32 logits [n, vocab], and the sequences that they belong to: one row of each, followed by one
                for each of its chunk's drafts.
        """
        self._cache.zero(fresh_pages)
        owners = [chunk.sequence.adapter for chunk in chunks]
        merged = self.merged is not None and self.merged.step(owners)
        if merged:
            owners = [None] * len(owners)
        adapters = self.adapters.select(owners)
        # Decode rows first, then sorted by the adapter's index in the stacks.
        rows = sorted(zip(chunks, adapters, strict=True), key=lambda row: (row[0].count > 1, row[1]))
        inputs = self._inputs(rows, unread)
        logits = None if merged else self._replay(rows, inputs)
        if logits is None:
            logits = self._launch(rows, inputs)
        sampled = [chunk.sequence for chunk, _ in rows if chunk.samples]
        for chunk in chunks:
            chunk.sequence.num_computed += chunk.count
        return logits, sampled

    def _replay(self, rows: Items[tuple[Chunk, int]], inputs: torch.Tensor) -> torch.Tensor | None:
        """Return the logits of a pure decode step from a captured graph; None if no capture applies.

        Merged weights lie at other addresses than the captured ones. Captures also leave out adapters' gains,
        biases and norms.
        """
        if self.graphs is None or not all(_decodes(chunk) for chunk, _ in rows):
            return None
        _, contexts, pages = _queries([chunk for chunk, _ in rows])
        step = DecodeStep(
            token_ids=inputs,
            positions=self._tensor([context - 1 for context in contexts]),
            contexts=contexts,
            pages=pages,
            row_adapter=_sampled_adapters(rows),
            layers=self.adapters.layers,
        )
        return self.graphs.run(step)

    def _inputs(self, rows: Items[tuple[Chunk, int]], unread: Unread | None) -> torch.Tensor:
        """Return the token ids of all rows, int64, on the device."""
        token_ids: list[int] = []
        places: list[int] = []
        sources: list[int] = []
        for chunk, _ in rows:
            sequence, start = chunk.sequence, chunk.sequence.num_computed
            known = sequence.token_ids[start : start + chunk.count]
            token_ids += known
            if unread is not None and len(known) < chunk.count:
                places.append(len(token_ids))
                sources.append(unread.rows[sequence])
                token_ids.append(0)
            if chunk.drafts:
                token_ids += [draft.token_id for draft in chunk.drafts]
        inputs = self._tensor(token_ids)
        if unread is not None and places:
            # A row with non-finite logits fails when it is collected; until then any token will do.
            chosen = unread.ids.index_select(0, self._tensor(sources)).clamp_(min=0)
            inputs.index_copy_(0, self._tensor(places), chosen)
        return inputs

    def _launch(self, rows: Items[tuple[Chunk, int]], inputs: torch.Tensor) -> torch.Tensor:
        """Return the logits of any step, launched operation by operation."""
        batch, reads = self._batch(rows, inputs)
        hidden = self._model.forward(batch, self._cache)
        num_sampled = len(hidden) - sum(len(read.rows) for read in reads)
        if reads:
            self._read(reads, hidden[num_sampled:])
            hidden = hidden[:num_sampled]
            batch = replace(batch, tops=self._tops(batch.segments, _sampled_adapters(rows)))
        return self._model.predict(hidden, batch.tops)

    def _batch(self, rows: Items[tuple[Chunk, int]], inputs: torch.Tensor) -> tuple[Batch, list[Read]]:
        """Build the batch. Output rows are the sampled ones, then those that readers take."""
        positions: list[int] = []
        output_rows: list[int] = []
        row_adapter: list[int] = []
        reads: list[Read] = []
        for chunk, adapter in rows:
            start = chunk.sequence.num_computed
            span = range(start, start + chunk.count + len(chunk.drafts))
            if (read := _reading_of(chunk, adapter, len(positions))) is not None:
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
            attention=AttentionPlan.of(query_lens, contexts, pages, page_size=PAGE_SIZE, device=self._device),
            output_rows=None if every_row else self._tensor(output_rows),
            lora=() if segments.empty else self.adapters.layers,
            segments=segments,
            tops=self._tops(segments, None if every_row else [row_adapter[row] for row in output_rows]),
        )
        return batch, reads

    def _read(self, reads: Items[Read], hidden: torch.Tensor) -> None:
        """Pass hidden states to the readers. `hidden`: all rows that are read, in their order."""
        parts = torch.split(hidden, [len(read.rows) for read in reads])
        for read, part in zip(reads, parts, strict=True):

            def predict(x: torch.Tensor, adapter: int = read.adapter) -> torch.Tensor:
                own = [adapter] * len(x)
                return self._model.predict(x, self._tops(self._segments_of(own), own))

            read.reader.take(part, predict)

    def _tops(self, segments: Segments, outputs: list[int] | None) -> Tops | None:
        """`outputs`: the adapter of each output row; None where they are the batch's rows."""
        if segments.empty:
            return None
        return self.adapters.tops(segments, segments if outputs is None else self._segments_of(outputs))

    def _segments_of(self, row_adapter: Items[int]) -> Segments:
        return Segments.of(row_adapter, self._device)

    def _segments(self, row_adapter: list[int]) -> Segments:
        """Return the segments; reuse the last step's, with its plans, while rows and weights are unchanged.

        Plans for 32 rows of 32 adapters take 0.3 ms of host time, and most decode steps change nothing.
        """
        last = self._last_segments
        if last is None or last[0] != row_adapter or last[1] is not self.adapters.layers:
            segments = Segments.of(row_adapter, self._device)
            last = self._last_segments = (row_adapter, self.adapters.layers, segments)
        return last[2]

    def _tensor(self, values: Items[int]) -> torch.Tensor:
        return to_device(np.array(values, dtype=np.int64), self._device)


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
        for place in range(1, len(chunk.drafts) + 1):
            lens.append(1)
            contexts.append(end + place)
            pages.append(held)
    return lens, contexts, pages


def _sampled_adapters(rows: Items[tuple[Chunk, int]]) -> list[int]:
    """Return the adapter of each sampled row."""
    return [adapter for chunk, adapter in rows if chunk.samples for _ in range(1 + len(chunk.drafts))]


def _decodes(chunk: Chunk) -> bool:
    sequence = chunk.sequence
    simple = sequence.adapter is None or sequence.adapter.pairs_only
    return chunk.count == 1 and chunk.samples and simple and _reading_of(chunk, -1, 0) is None


def _reading_of(chunk: Chunk, adapter: int, first_row: int) -> Read | None:
    """Return the reader's part of a chunk whose rows begin at `first_row`; None if it reads nothing."""
    reader, start = chunk.sequence.reader, chunk.sequence.num_computed
    if reader is None:
        return None
    rows = range(max(reader.start, start), min(reader.stop, start + chunk.count))
    shift = first_row - start
    return Read(reader, adapter, range(rows.start + shift, rows.stop + shift)) if rows else None
