"""A step of the engine between its launch and its collection."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass

from worker_engine.batch_builder import PendingTokens
from worker_engine.draft import Draft
from worker_engine.sampler import SampledRows
from worker_engine.scheduler import Chunk
from worker_engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class InflightStep:
    """A step in the device's queue.

    Attributes:
        sampled: sequences that get a token, in the order of `tokens`.
        prompt_only: sequences without tokens to generate that end with this step.
        drafts: draft tokens, whose rows follow those of their sequences in `tokens`.
        started_at: when its scheduling began, by the speculator's clock; 0 without one.
    """

    chunks: Items[Chunk]
    sampled: Items[Sequence]
    prompt_only: Items[Sequence]
    tokens: SampledRows | None
    drafts: Mapping[Sequence, Items[Draft]]
    started_at: float

    @property
    def pending_tokens(self) -> PendingTokens | None:
        if self.tokens is None:
            return None
        return PendingTokens(self.tokens.ids, {sequence: row for row, sequence in enumerate(self.sampled)})
