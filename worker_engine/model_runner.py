"""Runs the model on one step's chunks and returns logits."""

from __future__ import annotations

import logging
from collections.abc import Sequence as Items
from dataclasses import replace
from typing import Final

import torch

from kernels import native
from kernels.capture import Captures, captures_for
from worker_engine.adapters.adapter import Adapter
from worker_engine.adapters.batch import AdapterBatch
from worker_engine.adapters.device_tier import DeviceTier, adapters_in_pages
from worker_engine.adapters.merged import MergedAdapter, build_merged
from worker_engine.adapters.paged_batch import PagedAdapterBatch
from worker_engine.batch_builder import BatchBuilder, PendingTokens, ReaderRows, Rows, sampled_adapters
from worker_engine.checkpoint.model_config import ModelConfig
from worker_engine.config import EngineConfig
from worker_engine.decode_graphs import DecodeGraphs
from worker_engine.device_memory import PoolSize, check_room
from worker_engine.errors import ConfigError
from worker_engine.kernel_choice import TRITON, choose_kernels
from worker_engine.layers.attention import KVCache
from worker_engine.models import load_model
from worker_engine.sampling.truncation import most_likely
from worker_engine.scheduler import Chunk
from worker_engine.sequence import Sequence

log = logging.getLogger(__name__)


def choose_device(name: str, model: ModelConfig) -> torch.device:
    """Return the device; `auto` is CUDA if it is available and serves the model.

    Raises:
        ConfigError: CUDA is asked for, and missing.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda: this machine has no CUDA device that PyTorch can use")
    if name == "auto" and model.experts is not None:
        return torch.device("cpu")
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


def _check(engine: EngineConfig, model: ModelConfig, device: torch.device) -> None:
    """Raise ConfigError for options that the checkpoint rules out."""
    if engine.max_model_len > model.max_position_embeddings:
        raise ConfigError(
            f"--max-model-len {engine.max_model_len} is more than the checkpoint's "
            f"{model.max_position_embeddings} positions"
        )
    if engine.merge_adapter != "off" and model.quantization is not None:
        raise ConfigError(
            f"--merge-adapter {engine.merge_adapter} needs unquantized weights, and {engine.model} is "
            "quantized: leave merging off, or serve the checkpoint that it was made of"
        )
    if engine.merge_adapter != "off" and model.experts is not None:
        raise ConfigError(
            f"--merge-adapter {engine.merge_adapter} is not served for {model.architecture}, which has "
            "experts: leave merging off"
        )
    if model.experts is not None and adapters_in_pages(device):
        raise ConfigError(
            f"--device {device.type}: {model.architecture} has experts, which this worker serves on the CPU "
            "only: set --device cpu, or deploy the model with vLLM"
        )


class ModelRunner:
    """The model, its KV cache and the batch's adapters on one device.

    Attributes:
        pool: the size of the KV cache.
        kernels: see `choose_kernels`.
        tier: the adapters in pool pages; None on the CPU.
        graphs: captured decode steps; None where none are captured.
    """

    adapters: AdapterBatch | PagedAdapterBatch
    graphs: DecodeGraphs | None = None

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
        _check(engine, model, device)
        self.max_model_len = engine.max_model_len or model.max_position_embeddings
        self.pool: Final = PoolSize.for_model(engine, model, dtype)
        self._device = device
        self.kernels: Final = choose_kernels(model, dtype, device)
        captures = captures or self._captures(engine)
        self._model = load_model(
            engine.model,
            model,
            max_model_len=self.max_model_len,
            dtype=dtype,
            device=device,
            packed_in=engine.packed_dir,
        )
        if device.type == "cuda":
            check_room(engine, model, self.pool, captured=captures is not None, dtype=dtype, device=device)
        by_page = adapters_in_pages(device)
        self._cache = KVCache(model, self.pool.num_pages, dtype=dtype, device=device, by_page=by_page)
        memory = self._cache.memory
        self.tier = tier = None if memory is None else DeviceTier(memory, model)
        self.adapters = AdapterBatch(model, dtype=dtype) if tier is None else PagedAdapterBatch(model, tier)
        self._builder = BatchBuilder(self.adapters, device)
        self.merged = build_merged(engine, self._model.linears, model)
        if captures is not None:
            self.graphs = DecodeGraphs(
                self._model,
                self._cache,
                model,
                engine,
                captures,
                max_model_len=self.max_model_len,
                dtype=dtype,
                device=device,
            )

    def _captures(self, engine: EngineConfig) -> Captures | None:
        """Return CUDA graphs if `cuda_graphs` and the kernels allow: PyTorch's ops cannot be captured."""
        captured = self.kernels["attention_graph"] == self.kernels["lora_graph"] == TRITON
        allowed = self._device.type == "cuda" and engine.cuda_graphs != "off"
        return captures_for(self._device) if captured and allowed else None

    @torch.inference_mode()
    def warm_up(self) -> None:
        """On the CPU, run a prefill and a decode step on page 0, which belongs to no sequence."""
        if self._device.type != "cpu":
            return
        for rows, context in ((2, 2), (1, 2)):
            batch = self._builder.warm_up_batch(rows, context)
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

    @torch.inference_mode()
    def run(
        self, chunks: Items[Chunk], fresh_pages: Items[int], pending: PendingTokens | None = None
    ) -> tuple[torch.Tensor, list[Sequence]]:
        """Compute the chunks, pass hidden states to their readers, and advance their `num_computed`.

        Args:
            fresh_pages: pages with a new owner since the last step; they are cleared first.
            pending: tokens of sequences with `num_pending_tokens`, which are this step's input.

        Returns:
            Float32 logits [n, vocab], and the sequences that they belong to: one row of each, followed by one
                for each of its chunk's drafts.
        """
        self._cache.zero(fresh_pages)
        owners = [chunk.sequence.adapter for chunk in chunks]
        merged = self.merged is not None and self._merge(self.merged, chunks, owners)
        if merged:
            owners = [None] * len(owners)
        adapters = self.adapters.select(owners)
        # Decode rows first, then sorted by the adapter's index in the stacks.
        rows = sorted(zip(chunks, adapters, strict=True), key=lambda row: (row[0].count > 1, row[1]))
        inputs = self._builder.inputs(rows, pending)
        # Merged weights lie at other addresses than the captured ones.
        logits = None if merged else self._replay(rows, inputs)
        if logits is None:
            logits = self._launch(rows, inputs)
        sampled = [chunk.sequence for chunk, _ in rows if chunk.samples]
        for chunk in chunks:
            chunk.sequence.num_computed += chunk.count
        return logits, sampled

    @staticmethod
    def _merge(merged: MergedAdapter, chunks: Items[Chunk], owners: Items[Adapter | None]) -> bool:
        """Return True if merged weights serve the step; merges a layer, and times the step."""
        uses = merged.step(owners)
        decodes = all(chunk.count == 1 and chunk.samples for chunk in chunks)
        merged.launched({chunk.sequence.request.request_id for chunk in chunks}, owners, decodes=decodes)
        return uses

    def _replay(self, rows: Rows, inputs: torch.Tensor) -> torch.Tensor | None:
        """Return the logits of a pure decode step from a captured graph; None if no capture applies."""
        if self.graphs is None or (step := self._builder.decode_step(rows, inputs)) is None:
            return None
        return self.graphs.run(step)

    def _launch(self, rows: Rows, inputs: torch.Tensor) -> torch.Tensor:
        """Return the logits of any step, launched operation by operation."""
        batch, reads = self._builder.batch(rows, inputs)
        hidden = self._model.forward(batch, self._cache)
        num_sampled = len(hidden) - sum(len(read.rows) for read in reads)
        if reads:
            self._read(reads, hidden[num_sampled:])
            hidden = hidden[:num_sampled]
            batch = replace(batch, tops=self._builder.tops(batch.segments, sampled_adapters(rows)))
        return self._model.predict(hidden, batch.tops)

    def _read(self, reads: Items[ReaderRows], hidden: torch.Tensor) -> None:
        """Pass hidden states to the readers. `hidden`: all rows that are read, in their order."""
        parts = torch.split(hidden, [len(read.rows) for read in reads])
        for read, part in zip(reads, parts, strict=True):

            def predict(x: torch.Tensor, adapter: int = read.adapter) -> torch.Tensor:
                own = [adapter] * len(x)
                return self._model.predict(x, self._builder.tops(self._builder.segments_of(own), own))

            read.reader.take(part, predict)
