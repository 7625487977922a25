"""How many guesses of which sequence the next step verifies: as many as make its tokens come soonest."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Final

from worker_engine.speculation.base import Proposer
from worker_engine.speculation.costs import StepCosts

MARGIN: Final = 1.1
"""By how much more tokens a second are to be expected than without any guess: neither times nor rates are
exact, and of a batch that fills the cores a guess that seemed to win a few percent lost some (8 streams)."""
PROBE_EVERY: Final = 32
"""Steps after which something is tried though it does not seem to pay; doubled each time, up to
`PROBE_SELDOM`, and again this many once it paid."""
PROBE_SELDOM: Final = 1024
PROBE_LENGTH: Final = 3
HOPELESS: Final = 0.3
"""A rate below which guesses whose worth is known without verifying them are not even tried."""
STALE: Final = 48
"""Steps after which the time of a step without guesses is measured again."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What one sequence could have verified.

    Attributes:
        rate: the probability that a guess is right, given that those before it were.
        most: guesses that there are, or would be.
    """

    rate: float
    most: int


class Lengths:
    """Chooses lengths by expected tokens a second: the goodput of Liu et al. 2024 (arXiv:2406.14066)."""

    def __init__(self, costs: StepCosts, proposer: Proposer) -> None:
        self._costs, self._proposer = costs, proposer
        self._refused, self._interval = 0, PROBE_EVERY

    def choose(self, offers: Items[Offer], *, decoding: int, rows: int, room: int) -> list[int]:
        """Guesses of each offer to verify, all 0 where none pays.

        Args:
            decoding: sequences that get a token of the step in any case.
            rows: of the step without guesses.
            room: guesses that the step may have at most.
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
        # A guess's worth is the probability that it and all before it are right. Sorted, each sequence's
        # come in their order, so that any beginning of the list is a choice of lengths.
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
        asked = longest = 0
        for count, (gain, index) in enumerate(gains, start=1):
            tokens += gain
            lengths[index] += 1
            asked += lengths[index] == 1
            longest = max(longest, lengths[index])
            seconds = self._costs.seconds(rows + count) + self._proposer.seconds(asked, longest)
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
