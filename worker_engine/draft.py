"""A draft token within a step: a row like any other, whose token is not verified yet."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import TYPE_CHECKING

from worker_engine.sampling.row import SamplingRow

if TYPE_CHECKING:
    from worker_engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Draft:
    """One draft token, and the sampling state for the token after it.

    Attributes:
        token_id: the draft token.
        sampling: the sequence's sampling state after this draft and those before it.
        token_ids: the sequence's tokens up to this one, where the choice depends on them; else empty.
        next_index: index within the completion of the token sampled after it.
    """

    token_id: int
    sampling: SamplingRow
    token_ids: Items[int]
    next_index: int


def drafts_of(sequence: Sequence, guesses: Items[int], ends: frozenset[int]) -> tuple[Draft, ...]:
    """Return `guesses` as draft rows, up to the first that no other token can follow.

    A token of `ends` is omitted: the row before it already decides whether it comes, and nothing follows it.
    A token that the sequence's grammar forbids is omitted as well, with everything after it.
    """
    drafts: list[Draft] = []
    sampling, index = sequence.sampling, sequence.next_index
    for place, token in enumerate(guesses):
        if token in ends:
            break
        known: list[int] = []
        if sampling.follows:
            known = [*sequence.token_ids, *guesses[: place + 1]]
            ahead = sampling.ahead(token)
            if ahead is None:
                break
            sampling = ahead
        drafts.append(Draft(token, sampling, known, index + place + 1))
    return tuple(drafts)
