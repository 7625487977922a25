"""Token deltas from the state of a sequence."""

from __future__ import annotations

from worker_engine.protocol import FinishReason, TokenDelta
from worker_engine.readers.base import Findings
from worker_engine.sampler import SampledToken
from worker_engine.scheduler import Chunk
from worker_engine.sequence import Sequence


def step_delta(
    sequence: Sequence,
    text: str,
    token: SampledToken | None,
    reason: FinishReason | None,
    error: str | None,
    found: Findings,
) -> TokenDelta:
    """Return the delta of a step; `text` is the answer's, and the thought's is taken from the sequence."""
    thought = sequence.thought
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
        prompt_logprobs=found.prompt_logprobs,
        embedding=found.embedding,
        queued=_queued(sequence),
        reasoning="" if thought is None else thought.take(),
        reasoning_tokens=0 if thought is None else thought.num_tokens,
        thinking=thought is not None and not thought.answered,
    )


def reading_delta(chunk: Chunk) -> TokenDelta:
    """Return the progress delta of a prompt chunk."""
    sequence = chunk.sequence
    return TokenDelta(
        sequence.request.request_id,
        "",
        prompt_tokens=min(sequence.num_computed + chunk.count, sequence.num_prompt_tokens),
        cached_tokens=sequence.cached_tokens,
        queued=_queued(sequence),
        reading=True,
    )


def _queued(sequence: Sequence) -> float:
    return 0.0 if sequence.admitted is None else sequence.admitted - sequence.arrived
