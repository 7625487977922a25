"""A guessed token on its way through a step: a row like any other, whose token nobody has confirmed yet."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import TYPE_CHECKING

from worker_engine.sampling.row import SamplingRow

if TYPE_CHECKING:
    from worker_engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Draft:
    """One guessed token, and what the token behind it is chosen by.

    Attributes:
        token_id: the guess.
        sampling: the sequence's, as it stands once this guess and those before it are taken.
        token_ids: the sequence's tokens up to this one, where the choice depends on them; else empty.
        next_index: number, among the completion's tokens, of the one that is chosen behind it.
    """

    token_id: int
    sampling: SamplingRow
    token_ids: Items[int]
    next_index: int


def drafts_of(sequence: Sequence, guesses: Items[int], ends: frozenset[int]) -> tuple[Draft, ...]:
    """`guesses` as rows, up to the first that cannot be followed by another.

    A token of `ends` is left out: whether it comes is known from the row before it, and nothing follows it.
    So is what the sequence's grammar forbids, with all that follows.
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
