"""The engine: schedule, run, sample, postprocess."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Items
from itertools import islice
from typing import Final

import torch

from kernels.capture import Captures
from worker_engine.adapters.adapter import Adapter
from worker_engine.adapters.batch import AdapterBatch
from worker_engine.adapters.memory import AdapterMemory
from worker_engine.adapters.merged import MergedAdapter
from worker_engine.adapters.paged_batch import PagedAdapterBatch
from worker_engine.checkpoint.model_config import ModelConfig
from worker_engine.config import PAGE_SIZE, EngineConfig, step_tokens
from worker_engine.decode_graphs import DecodeGraphs
from worker_engine.deltas import reading_delta, step_delta
from worker_engine.draft import Draft
from worker_engine.inflight_step import InflightStep
from worker_engine.latencies import Latencies
from worker_engine.memory_pool import MemoryPool
from worker_engine.model_runner import ModelRunner
from worker_engine.protocol import FinishReason, GenerateRequest, TokenDelta
from worker_engine.readers.base import Findings, Reader
from worker_engine.readers.pooling import Pooler
from worker_engine.readers.prompt_logprobs import PromptLogprobs
from worker_engine.sampler import SampledToken, Sampler
from worker_engine.sampling.row import SamplingRow, SamplingSource
from worker_engine.scheduler import MustDrain, Scheduler
from worker_engine.sequence import Sequence
from worker_engine.speculation.build import build_speculator
from worker_engine.speculation.speculator import Speculator
from worker_engine.text.structured_output import GrammarCompiler, MaskBatch
from worker_engine.text.thinking.base import Thought
from worker_engine.text.thinking.forms import begin_thought, thought_form
from worker_engine.text.tokenizer import ChatTokenizer, Detokenizer

NON_FINITE: Final = "the model gave non-finite logits; the weights of the base or of its adapter may overflow"


class Engine:
    """Turns queued requests into token deltas. Not thread-safe: in serving, only `EngineThread` calls it."""

    def __init__(
        self,
        config: EngineConfig,
        model: ModelConfig,
        tokenizer: ChatTokenizer,
        *,
        dtype: torch.dtype,
        device: torch.device,
        clock: Callable[[], float] = time.monotonic,
        captures: Captures | None = None,
    ) -> None:
        """Load the checkpoint. `captures` is passed to `ModelRunner`. Raises ConfigError, CheckpointError."""
        self._clock, self._tokenizer = clock, tokenizer
        self._eos = frozenset(model.eos_token_ids)
        self.thinking = thought_form(config.reasoning_parser, tokenizer)
        self._runner = ModelRunner(config, model, dtype=dtype, device=device, captures=captures)
        self.max_model_len, self.kernels = self._runner.max_model_len, self._runner.kernels
        self.pool = MemoryPool(self._runner.pool.num_pages)
        most = config.max_adapters_per_batch
        adapters = AdapterMemory(
            self.pool, page_bytes=self._runner.pool.page_bytes, max_adapters=most, tier=self._runner.tier
        )
        self.scheduler = Scheduler(
            self.pool,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=step_tokens(config, device.type),
            adapters=adapters,
            clock=clock,
        )
        self.grammars = GrammarCompiler(config.model, model.vocab_size, model.eos_token_ids)
        self._sampler = Sampler(MaskBatch())
        self._sequences: dict[str, Sequence] = {}
        self.speculator = build_speculator(config, model, tokenizer, dtype=dtype, device=device)
        # Draft tokens continue tokens that the host has read, so speculation excludes overlap.
        auto = config.overlap == "auto" and device.type == "cuda" and self.speculator is None
        ahead = config.overlap == "on" or auto
        self._depth, self.device = 1 if ahead else 0, device
        self._in_flight: deque[InflightStep] = deque()
        self.latencies = Latencies()
        self.num_generated_tokens = self.num_timeouts = 0
        self.num_prompt_tokens = 0
        self.on_prompts: Callable[[list[TokenDelta]], None] = lambda deltas: None
        """Called before a step with the prompt progress of requests that asked for it."""

    @property
    def adapters(self) -> AdapterBatch | PagedAdapterBatch:
        """The batch's adapters; any thread may read the counters."""
        return self._runner.adapters

    @property
    def graphs(self) -> DecodeGraphs | None:
        """Captured decode steps, if any; any thread may read the counters."""
        return self._runner.graphs

    @property
    def merged(self) -> MergedAdapter | None:
        return self._runner.merged

    @property
    def overlaps(self) -> bool:
        """True if a step is launched before the previous step's tokens are read."""
        return self._depth > 0

    @property
    def idle(self) -> bool:
        return self.scheduler.idle and not self._in_flight

    def fits(self, num_tokens: int, adapter: Adapter | None = None) -> bool:
        """Return True if `num_tokens` of prompt and completion, with only this adapter, fit into the pool."""
        return self.scheduler.fits(num_tokens, adapter)

    @property
    def pool_tokens(self) -> int:
        """Tokens that the whole pool holds."""
        return self.pool.capacity * PAGE_SIZE

    def add_request(
        self, request: GenerateRequest, adapter: Adapter | None, *, arrived: float | None = None
    ) -> None:
        """Queue a request; `request.request_id` must be new.

        Args:
            arrived: engine-clock time from which its deadline and latencies count; now by default.
        """
        params, prompt = request.sampling, request.prompt_token_ids
        grammar = None if params.grammar is None else self.grammars.start(params.grammar)
        arrived = self._clock() if arrived is None else arrived
        sequence = Sequence(request, self._detokenizer(request), adapter, arrived=arrived)
        sequence.sampling = SamplingRow(
            params, prompt, eos=self._eos, grammar=grammar, thought=sequence.thought
        )
        sequence.reader = _reader(request)
        self._sequences[request.request_id] = sequence
        self.scheduler.add(sequence)

    def _detokenizer(self, request: GenerateRequest) -> Detokenizer | Thought:
        params, prompt = request.sampling, request.prompt_token_ids
        if request.thought is None or self.thinking is None:
            return Detokenizer.for_completion(self._tokenizer, params, prompt)
        return begin_thought(self._tokenizer, self.thinking, params, prompt, request.thought)

    def abort(self, request_id: str) -> None:
        """Stop a request and free its pages; unknown or finished ones are ignored."""
        sequence = self._sequences.pop(request_id, None)
        if sequence is not None:
            sequence.finish_reason = sequence.finish_reason or FinishReason.CANCELLED
            self.scheduler.finish(sequence)
            if self.speculator is not None:
                self.speculator.forget(sequence)

    def close(self) -> None:
        """Release weights, captured steps and pages; the engine cannot compute afterwards."""
        self._in_flight.clear()
        self.grammars.close()
        if self.speculator is not None:
            self.speculator.close()
            self.speculator = None
        self._runner.close()
        del self._runner

    def warm_up(self) -> None:
        """Run a small step so that the first request need not start threads or page in mapped weights."""
        self._runner.warm_up()

    def check_device(self) -> None:
        """Raise RuntimeError if a failed step left the device unusable.

        On CUDA an out-of-bounds access, for example, makes every later call of the process fail.
        """
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def step(self) -> list[TokenDelta]:
        """Launch one forward pass and collect one: the same or, with overlap, the previous one.

        Returns:
            The collected pass's deltas, and the final deltas of requests that timed out.
        """
        late = [self._time_out(sequence) for sequence in self.scheduler.expired()]
        step = self._launch()
        if step is not None:
            self._in_flight.append(step)
            if len(self._in_flight) <= self._depth:
                return late
        return late + (self._collect() if self._in_flight else self._refuse_stuck())

    def _launch(self) -> InflightStep | None:
        """Queue the next step on the device; None if nothing can run before an earlier step is collected.

        Grammars, penalties and bad words depend on the previous token. While a sequence with any of them is
        in flight, nothing else is launched. The same holds while a sequence in flight must free its pages. A
        sequence that ends unexpectedly has one extra row, which `_collect` drops.
        """
        started_at = 0.0 if self.speculator is None else self.speculator.clock()
        last = self._in_flight[-1] if self._in_flight else None
        if last is not None and any(sequence.sampling.follows for sequence in last.sampled):
            return None
        try:
            chunks = self.scheduler.schedule()
        except MustDrain:
            return None
        if not chunks:
            return None
        drafts: dict[Sequence, Items[Draft]] = {}
        if self.speculator is not None:
            chunks = self.speculator.extend(chunks, self.scheduler)
            drafts = {chunk.sequence: chunk.drafts for chunk in chunks if chunk.drafts}
        if reading := [
            reading_delta(chunk) for chunk in chunks if chunk.sequence.request.tells_prompt and chunk.reads
        ]:
            self.on_prompts(reading)
        pending = None if last is None else last.pending_tokens
        logits, sampled = self._runner.run(chunks, self.pool.take_fresh(), pending)
        self.scheduler.commit(chunks)
        prompt_only = [c.sequence for c in chunks if not (c.sequence.generates or c.sequence.num_remaining)]
        tokens = self._sampler.launch(logits, _drawn(sampled, drafts)) if sampled else None
        for chunk in chunks:
            chunk.sequence.num_inflight_steps += 1
        for sequence in sampled:
            sequence.num_pending_tokens += 1
        return InflightStep(chunks, sampled, prompt_only, tokens, drafts, started_at)

    def _collect(self) -> list[TokenDelta]:
        """Read the oldest step's tokens; drop those of sequences that ended in the meantime."""
        step = self._in_flight[0]
        tokens = [] if step.tokens is None else step.tokens.collect()
        self._in_flight.popleft()
        self._settle(step)
        self.scheduler.commit(chunk for chunk in step.chunks if chunk.sequence in self.scheduler.running)
        if self.speculator is not None:
            return self._postprocess_speculated(self.speculator, step, tokens)
        chosen = [
            (sequence, token)
            for sequence, token in zip(step.sampled, tokens, strict=True)
            if sequence.finish_reason is None
        ]
        self.latencies.record([sequence for sequence, _ in chosen], self._clock())
        return self._postprocess(step, chosen)

    def _settle(self, step: InflightStep) -> None:
        """Account for a step that has run or was cancelled: free what ended sequences held for it."""
        for sequence in step.sampled:
            sequence.num_pending_tokens -= 1
        for chunk in step.chunks:
            sequence = chunk.sequence
            sequence.num_inflight_steps -= 1
            if sequence.finish_reason is not None and not sequence.num_inflight_steps:
                self.scheduler.release(sequence)

    def _refuse_stuck(self) -> list[TokenDelta]:
        """Fail the first waiting request when nothing runs and it cannot be scheduled: it never fits."""
        if self.scheduler.running or not self.scheduler.waiting:
            return []
        _, sequence = next(self.scheduler.waiting.in_turn(self._clock()))
        return [self._fail(sequence, "this worker's memory cannot hold the request beside its adapter")]

    def fail_all(self, message: str) -> list[TokenDelta]:
        """End every request with an error, and forget the steps in flight."""
        while self._in_flight:
            self._settle(self._in_flight.popleft())
        return [self._fail(sequence, message) for sequence in list(self._sequences.values())]

    def _postprocess(
        self, step: InflightStep, chosen: Items[tuple[Sequence, SampledToken | None]]
    ) -> list[TokenDelta]:
        self.num_prompt_tokens += sum(chunk.count for chunk in step.chunks if chunk.count > 1)
        self.num_generated_tokens += sum(token is not None for _, token in chosen)
        ended = [sequence for sequence in step.prompt_only if sequence.finish_reason is None]
        return [self._end_prompt(sequence) for sequence in ended] + [
            self._append(sequence, token) if token is not None else self._fail(sequence, NON_FINITE)
            for sequence, token in chosen
        ]

    def _postprocess_speculated(
        self, speculator: Speculator, step: InflightStep, tokens: Items[SampledToken | None]
    ) -> list[TokenDelta]:
        """Like `_postprocess`, for steps with draft tokens: a sequence gets one token or more."""
        rows, now = iter(tokens), self._clock()
        deltas = self._postprocess(step, [])
        for sequence in step.sampled:
            drafts = step.drafts.get(sequence, ())
            own = list(islice(rows, 1 + len(drafts)))
            if sequence.finish_reason is None:
                deltas += self._give(sequence, speculator.settle(sequence, drafts, own), now)
                if drafts and sequence.finish_reason is None:
                    self.scheduler.free_draft_pages(sequence)
        if all(chunk.count == 1 and chunk.samples for chunk in step.chunks):
            speculator.observe(len(tokens), step.started_at)
        return deltas

    def _give(
        self, sequence: Sequence, taken: Items[SampledToken | None], now: float
    ) -> Iterator[TokenDelta]:
        """Yield the deltas of the tokens up to one that ends the sequence, each as if decoded alone."""
        for place, token in enumerate(taken):
            if place:
                # The draft before this token was accepted: its keys and values are valid, and it is charged.
                sequence.num_computed += 1
                sequence.account.charge_output()
            self.latencies.record((sequence,), now)
            self.num_generated_tokens += token is not None
            yield self._fail(sequence, NON_FINITE) if token is None else self._append(sequence, token)
            if sequence.finish_reason is not None:
                return

    def _end_prompt(self, sequence: Sequence) -> TokenDelta:
        """Return the only delta of a request that generates nothing."""
        return self._delta(sequence, "", None, FinishReason.LENGTH)

    def _append(self, sequence: Sequence, token: SampledToken) -> TokenDelta:
        params, grammar, thought = sequence.request.sampling, sequence.sampling.grammar, sequence.thought
        sequence.token_ids.append(token.token_id)
        answers = thought is None or thought.answers(token.token_id)
        if not answers:
            grammar = None
        if grammar is not None and (problem := grammar.accept(token.token_id)) is not None:
            return self._delta(sequence, "", None, FinishReason.REFUSED, error=problem)
        named = answers and token.token_id in params.stop_token_ids
        if named or (token.token_id in self._eos and not params.ignore_eos):
            if thought is not None:
                thought.end()
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
        token: SampledToken | None,
        reason: FinishReason | None,
        *,
        error: str | None = None,
    ) -> TokenDelta:
        """Return a step's delta; with a finish reason, also end the sequence and free its pages."""
        found: Findings | None = Findings()
        if sequence.reader is not None and sequence.num_completion_tokens < 2 and error is None:
            found = sequence.reader.finish()
        if found is None:
            text, token, reason, error = "", None, FinishReason.ERROR, NON_FINITE
            found = Findings()
        if reason is not None:
            sequence.finish_reason = reason
            self.abort(sequence.request.request_id)
        return step_delta(sequence, text, token, reason, error, found)


def _drawn(sampled: Items[Sequence], drafts: Mapping[Sequence, Items[Draft]]) -> Items[SamplingSource]:
    """Return the rows to sample: each sequence's own, followed by those of its drafts."""
    if not drafts:
        return sampled
    rows: list[SamplingSource] = []
    for sequence in sampled:
        rows += (sequence, *drafts.get(sequence, ()))
    return rows


def _reader(request: GenerateRequest) -> Reader | None:
    prompt, top = request.prompt_token_ids, request.sampling.prompt_logprobs
    if request.pooling is not None:
        return Pooler(request.pooling, len(prompt))
    return None if top is None else PromptLogprobs(prompt, top)
