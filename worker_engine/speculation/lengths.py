"""Chooses how many draft tokens of each sequence a step verifies, to maximize expected tokens per second."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Final

from worker_engine.speculation.base import Proposer
from worker_engine.speculation.costs import StepCosts

MARGIN: Final = 1.1
"""Required gain in expected tokens per second over no drafts. Times and rates are inexact: with 8 streams on
busy cores, drafts with a predicted gain of a few percent lost some.
"""
PROBE_EVERY: Final = 32
"""Steps after which drafts are tried although they do not seem to pay. It doubles each time, up to
`PROBE_SELDOM`, and is reset once they pay.
"""
PROBE_SELDOM: Final = 1024
PROBE_LENGTH: Final = 3
HOPELESS: Final = 0.3
"""Free proposers are not probed below this acceptance rate, since theirs is known without verification."""
STALE: Final = 48
"""Steps after which the time of a step without drafts is measured again."""


@dataclass(frozen=True, slots=True)
class Offer:
    """The draft tokens that one sequence could have verified.

    Attributes:
        rate: the probability that a draft is accepted, given that those before it were.
        most: number of drafts that the proposer has, or would propose.
    """

    rate: float
    most: int


class Lengths:
    """Chooses lengths by expected tokens per second: the goodput of Liu et al. 2024 (arXiv:2406.14066)."""

    def __init__(self, costs: StepCosts, proposer: Proposer) -> None:
        self._costs, self._proposer = costs, proposer
        self._refused, self._interval = 0, PROBE_EVERY

    def choose(self, offers: Items[Offer], *, decoding: int, rows: int, room: int) -> list[int]:
        """Return the number of drafts to verify for each offer, all 0 if none pays.

        Args:
            decoding: sequences that get a token of the step in any case.
            rows: of the step without drafts.
            room: most drafts that the step may have.
        """
        if room < 1 or not offers:
            return [0] * len(offers)
        if self._costs.age(rows) > STALE:
            return [0] * len(offers)
        lengths = self._best(offers, decoding, rows, room)
        if any(lengths):
            self._refused, self._interval = 0, PROBE_EVERY
            return lengths
        self._refused += 1
        known = self._proposer.free and max(offer.rate for offer in offers) < HOPELESS
        if known or self._refused < self._interval:
            return lengths
        self._refused, self._interval = 0, min(2 * self._interval, PROBE_SELDOM)
        return self._probe(offers, room)

    def _best(self, offers: Items[Offer], decoding: int, rows: int, room: int) -> list[int]:
        # A draft's gain is the probability that it and all drafts before it are accepted. In sorted order,
        # each sequence's drafts stay in sequence, so every prefix of the list is a valid choice of lengths.
        gains = sorted(
            (
                (offer.rate**place, index)
                for index, offer in enumerate(offers)
                for place in range(1, offer.most + 1)
            ),
            reverse=True,
        )[:room]
        best, chosen = MARGIN * decoding / self._costs.seconds(rows), 0
        tokens = float(decoding)
        lengths = [0] * len(offers)
        num_sequences = longest = 0
        for count, (gain, index) in enumerate(gains, start=1):
            tokens += gain
            lengths[index] += 1
            num_sequences += lengths[index] == 1
            longest = max(longest, lengths[index])
            seconds = self._costs.seconds(rows + count) + self._proposer.seconds(num_sequences, longest)
            if tokens > best * seconds:
                best, chosen = tokens / seconds, count
        lengths = [0] * len(offers)
        for _, index in gains[:chosen]:
            lengths[index] += 1
        return lengths

    def _probe(self, offers: Items[Offer], room: int) -> list[int]:
        lengths = []
        for offer in offers:
            lengths.append(min(offer.most, PROBE_LENGTH, room))
            room -= lengths[-1]
        return lengths
