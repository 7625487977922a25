"""Runs the model over one step's chunks: builds the batch's tensors, returns logits."""

from __future__ import annotations

from collections.abc import Sequence as Items

import torch

from kernels.lora import Segments
from worker_engine.adapters.batch import AdapterBatch
from worker_engine.adapters.merged import Merged, MergePolicy
from worker_engine.checkpoint import Checkpoint
from worker_engine.config import PAGE_SIZE, EngineConfig
from worker_engine.errors import ConfigError
from worker_engine.layers.attention import AttentionPlan, KVCache
from worker_engine.model_config import ModelConfig
from worker_engine.models import FAMILIES
from worker_engine.models.decoder import Batch, LayerLora
from worker_engine.scheduler import Chunk
from worker_engine.sequence import Sequence


def choose_device(name: str) -> torch.device:
    """`auto` is CUDA where there is one. Raises ConfigError when CUDA is asked for and missing."""
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda: this machine has no CUDA device that PyTorch can use")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def choose_dtype(name: str, model: ModelConfig, device: torch.device) -> torch.dtype:
    """`auto` computes bf16 checkpoints in bf16 where the device does so natively, others in fp32.

    fp16 checkpoints run in bf16 on CUDA and in fp32 on CPU, where fp16 products are emulated.
    """
    if name != "auto":
        return torch.float32 if name == "float32" else torch.bfloat16
    if device.type == "cuda":
        return torch.float32 if model.dtype == "float32" else torch.bfloat16
    native = model.dtype == "bfloat16" and torch.cpu._is_avx512_bf16_supported()
    return torch.bfloat16 if native else torch.float32


class ModelRunner:
    """The model, its KV cache and the batch's adapters on one device."""

    def __init__(
        self, engine: EngineConfig, model: ModelConfig, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Loads the checkpoint. Raises CheckpointError, or ConfigError when the KV cache has no room."""
        self.max_model_len = engine.max_model_len or model.max_position_embeddings
        if self.max_model_len > model.max_position_embeddings:
            raise ConfigError(
                f"--max-model-len {self.max_model_len} is more than the checkpoint's "
                f"{model.max_position_embeddings} positions"
            )
        token_bytes = 2 * model.num_layers * model.num_kv_heads * model.head_dim * dtype.itemsize
        self.page_bytes = token_bytes * PAGE_SIZE
        self.num_pages = 1 + int(engine.memory_gib * 2**30 / self.page_bytes)
        if self.num_pages < 2:
            raise ConfigError(f"--memory-gib {engine.memory_gib} does not hold a single page of KV cache")
        self._device = device
        with Checkpoint(engine.model, dtype=dtype, device=device) as checkpoint:
            self._model = FAMILIES[model.architecture](
                model, checkpoint, max_model_len=self.max_model_len, dtype=dtype, device=device
            )
        self._cache = KVCache(model, self.num_pages, dtype=dtype, device=device)
        self.adapters = AdapterBatch(model, dtype=dtype, device=device)
        self._last_segments: tuple[list[int], list[LayerLora], Segments] | None = None
        self.merged: Merged | None = None
        if engine.merge_adapter != "off":
            pinned = "" if engine.merge_adapter == "auto" else engine.merge_adapter
            self.merged = Merged(self._model.linears, model, MergePolicy(pinned))

    @torch.inference_mode()
    def run(self, chunks: Items[Chunk], fresh_pages: Items[int]) -> tuple[torch.Tensor, list[Sequence]]:
        """Computes the chunks and moves their sequences' `num_computed`.

        Args:
            fresh_pages: pages that changed hands since the last step; they are cleared first.

        Returns:
            Float32 logits [n, vocab], and the n sequences that they belong to.
        """
        self._cache.zero(fresh_pages)
        owners = [chunk.sequence.adapter for chunk in chunks]
        if self.merged is not None and self.merged.step(owners):
            owners = [None] * len(owners)
        adapters = self.adapters.select(owners)
        # Decode rows first, and adapters' rows in the order of their weights in the stacks.
        rows = sorted(zip(chunks, adapters, strict=True), key=lambda row: (row[0].count > 1, row[1]))
        logits = self._model.forward(self._batch(rows), self._cache)
        sampled = [chunk.sequence for chunk, _ in rows if chunk.samples]
        for chunk in chunks:
            chunk.sequence.num_computed += chunk.count
        return logits, sampled

    def _batch(self, rows: Items[tuple[Chunk, int]]) -> Batch:
        """Takes each chunk with the index of its adapter."""
        token_ids: list[int] = []
        positions: list[int] = []
        logit_rows: list[int] = []
        row_adapter: list[int] = []
        for chunk, adapter in rows:
            sequence, start = chunk.sequence, chunk.sequence.num_computed
            span = range(start, start + chunk.count)
            token_ids += sequence.token_ids[start : start + chunk.count]
            positions += span
            row_adapter += [adapter] * chunk.count
            if chunk.samples:
                logit_rows.append(len(token_ids) - 1)
        chunks = [chunk for chunk, _ in rows]
        segments = self._segments(row_adapter)
        every_row = logit_rows == list(range(len(token_ids)))
        logit_segments = (
            segments if every_row else Segments.of([row_adapter[row] for row in logit_rows], self._device)
        )
        return Batch(
            token_ids=self._tensor(token_ids),
            positions=self._tensor(positions),
            attention=AttentionPlan.of(
                [chunk.count for chunk in chunks],
                [chunk.sequence.num_computed + chunk.count for chunk in chunks],
                [chunk.sequence.pages for chunk in chunks],
                page_size=PAGE_SIZE,
                device=self._device,
            ),
            logit_rows=None if every_row else self._tensor(logit_rows),
            lora=() if segments.empty else self.adapters.layers,
            segments=segments,
            tops=None if segments.empty else self.adapters.tops(segments, logit_segments),
        )

    def _segments(self, row_adapter: list[int]) -> Segments:
        """The last step's, with the plans that were made for it, while neither rows nor weights have changed.

        Plans for 32 rows of 32 adapters take 0.3 ms of host time, and decoding changes nothing most steps.
        """
        last = self._last_segments
        if last is None or last[0] != row_adapter or last[1] is not self.adapters.layers:
            segments = Segments.of(row_adapter, self._device)
            last = self._last_segments = (row_adapter, self.adapters.layers, segments)
        return last[2]

    def _tensor(self, values: Items[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)
