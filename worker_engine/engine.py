"""The engine: schedule, run, sample, postprocess."""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Items
from typing import Final

import torch

from worker_engine.adapter_memory import AdapterMemory
from worker_engine.adapters.adapter import Adapter
from worker_engine.adapters.batch import SLACK, AdapterBatch
from worker_engine.config import PAGE_SIZE, EngineConfig
from worker_engine.latencies import Latencies
from worker_engine.memory_pool import MemoryPool
from worker_engine.model_config import ModelConfig
from worker_engine.model_runner import ModelRunner
from worker_engine.protocol import FinishReason, GenerateRequest, TokenDelta
from worker_engine.sampler import Sampled, Sampler
from worker_engine.sampling.row import SamplingRow
from worker_engine.scheduler import Chunk, Scheduler
from worker_engine.sequence import Sequence
from worker_engine.structured_output import GrammarCompiler, MaskBatch
from worker_engine.tokenizer import ChatTokenizer, Detokenizer

STEP_TOKENS: Final = {"cpu": 128, "cuda": 2048}
"""Default rows of a step, which is how long a hang-up or a decoding neighbour waits for a prefill.

CPU time of a 135M model in bf16 at 128 against 256 rows: longest step 159 against 314 ms for a prompt of 256
tokens, 265 against 510 ms for 1,024; in total 307 against 314 and 1,650 against 1,704 ms. Eight prompts of 40
tokens with four adapters pay for it: 478 against 369 ms. A GPU needs more rows to be busy; its figure is a
guess that nothing has measured.
"""


class Engine:
    """Sequences in, token deltas out. Not thread-safe: `EngineThread` is its only caller when serving."""

    def __init__(
        self,
        config: EngineConfig,
        model: ModelConfig,
        tokenizer: ChatTokenizer,
        *,
        dtype: torch.dtype,
        device: torch.device,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Loads the checkpoint. Raises ConfigError, CheckpointError."""
        self._clock, self._tokenizer = clock, tokenizer
        self._eos = frozenset(model.eos_token_ids)
        self._runner = ModelRunner(config, model, dtype=dtype, device=device)
        self.max_model_len = self._runner.max_model_len
        self.pool = MemoryPool(self._runner.num_pages)
        most = config.max_adapters_per_batch
        adapters = AdapterMemory(
            self.pool, page_bytes=self._runner.page_bytes, max_adapters=most, copies=SLACK
        )
        self.scheduler = Scheduler(
            self.pool,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens
            or max(STEP_TOKENS[device.type], config.max_num_seqs),
            adapters=adapters,
            clock=clock,
        )
        self.grammars = GrammarCompiler(config.model, model.vocab_size, model.eos_token_ids)
        self._sampler = Sampler(MaskBatch())
        self._sequences: dict[str, Sequence] = {}
        self.latencies = Latencies()
        self.num_generated_tokens = self.num_timeouts = 0
        self.num_prompt_tokens = 0

    @property
    def adapters(self) -> AdapterBatch:
        """The device's tier; any thread may read its figures."""
        return self._runner.adapters

    @property
    def idle(self) -> bool:
        return self.scheduler.idle

    def fits(self, num_tokens: int, adapter: Adapter | None = None) -> bool:
        """Whether a prompt and completion of `num_tokens` can ever be held beside the adapter alone."""
        return self.scheduler.fits(num_tokens, adapter)

    @property
    def pool_tokens(self) -> int:
        """Tokens that the whole KV cache holds."""
        return self.pool.capacity * PAGE_SIZE

    def add_request(
        self, request: GenerateRequest, adapter: Adapter | None, *, arrived: float | None = None
    ) -> None:
        """Queues a request; `request.request_id` must be new.

        Args:
            arrived: when, on this engine's clock, its deadline and its latencies begin; now by default.
        """
        params, prompt = request.sampling, request.prompt_token_ids
        grammar = None if params.grammar is None else self.grammars.start(params.grammar)
        detokenizer = Detokenizer.of(self._tokenizer, params, prompt)
        arrived = self._clock() if arrived is None else arrived
        sequence = Sequence(request, detokenizer, adapter, arrived=arrived)
        sequence.sampling = SamplingRow(params, prompt, eos=self._eos, grammar=grammar)
        self._sequences[request.request_id] = sequence
        self.scheduler.add(sequence)

    def abort(self, request_id: str) -> None:
        """Stops a request and frees its pages; unknown or finished ones are ignored."""
        sequence = self._sequences.pop(request_id, None)
        if sequence is not None:
            sequence.finish_reason = sequence.finish_reason or FinishReason.CANCELLED
            self.scheduler.finish(sequence)

    def close(self) -> None:
        """Lets go of weights and KV pages; nothing can be computed after this."""
        del self._runner

    def step(self) -> list[TokenDelta]:
        """One forward pass; returns what it added to each request, and the ends of those whose time is up."""
        late = [self._time_out(sequence) for sequence in self.scheduler.expired()]
        chunks = self.scheduler.schedule()
        if not chunks:
            return late + self._refuse_stuck()
        logits, sampled = self._runner.run(chunks, self.pool.take_fresh())
        self.scheduler.commit(chunks)
        tokens = self._sampler.sample(logits, sampled) if sampled else []
        self.latencies.record(sampled, self._clock())
        return late + self._postprocess(chunks, sampled, tokens)

    def _refuse_stuck(self) -> list[TokenDelta]:
        """When nothing runs and yet nothing could enter, what stands first can never be held: it ends."""
        if self.scheduler.running or not self.scheduler.waiting:
            return []
        _, sequence = next(self.scheduler.waiting.in_turn(self._clock()))
        return [self._fail(sequence, "this worker's memory cannot hold the request beside its adapter")]

    def fail_all(self, message: str) -> list[TokenDelta]:
        """Ends every request with an error."""
        return [self._fail(sequence, message) for sequence in list(self._sequences.values())]

    def _postprocess(
        self, chunks: Items[Chunk], sampled: Items[Sequence], tokens: Items[Sampled | None]
    ) -> list[TokenDelta]:
        self.num_prompt_tokens += sum(chunk.count for chunk in chunks if chunk.count > 1)
        self.num_generated_tokens += sum(token is not None for token in tokens)
        return [
            self._append(sequence, token)
            if token is not None
            else self._fail(sequence, "the model gave non-finite logits; its adapter's weights may overflow")
            for sequence, token in zip(sampled, tokens, strict=True)
        ]

    def _append(self, sequence: Sequence, token: Sampled) -> TokenDelta:
        params, grammar = sequence.request.sampling, sequence.sampling.grammar
        sequence.token_ids.append(token.token_id)
        if grammar is not None and (problem := grammar.accept(token.token_id)) is not None:
            return self._fail(sequence, problem)
        named = token.token_id in params.stop_token_ids
        if named or (token.token_id in self._eos and not params.ignore_eos):
            text = sequence.detokenizer.append(token.token_id) if named and params.include_stop else ""
            return self._delta(sequence, text + sequence.detokenizer.flush(), token, FinishReason.STOP)
        text = sequence.detokenizer.append(token.token_id)
        reason = FinishReason.STOP if sequence.detokenizer.stopped else None
        if reason is None and grammar is not None and grammar.finished:
            reason = FinishReason.STOP
        if reason is None and sequence.num_completion_tokens >= params.max_tokens:
            reason = FinishReason.LENGTH
        if reason is not None:
            text += sequence.detokenizer.flush()
        return self._delta(sequence, text, token, reason)

    def _time_out(self, sequence: Sequence) -> TokenDelta:
        self.num_timeouts += 1
        made = sequence.num_completion_tokens
        state = f"after {made} tokens" if made else "before its first token"
        message = f"the request's time limit of {sequence.request.origin.timeout:g} s passed {state}"
        return self._delta(sequence, "", None, FinishReason.TIMEOUT, error=message)

    def _fail(self, sequence: Sequence, message: str) -> TokenDelta:
        return self._delta(sequence, "", None, FinishReason.ERROR, error=message)

    def _delta(
        self,
        sequence: Sequence,
        text: str,
        token: Sampled | None,
        reason: FinishReason | None,
        *,
        error: str | None = None,
    ) -> TokenDelta:
        if reason is not None:
            sequence.finish_reason = reason
            self.abort(sequence.request.request_id)
        return TokenDelta(
            request_id=sequence.request.request_id,
            text=text,
            token_ids=() if token is None else (token.token_id,),
            prompt_tokens=sequence.num_prompt_tokens,
            cached_tokens=sequence.cached_tokens,
            completion_tokens=sequence.num_completion_tokens,
            finish_reason=reason,
            error=error,
            logprobs=() if token is None or token.logprobs is None else (token.logprobs,),
        )
