"""How often guesses are right: of one sequence, beginning with what others of its adapter had."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

DECAY: Final = 0.95
"""What an observation weighs after one more guess: about the last 20 guesses count."""
PRIOR_WEIGHT: Final = 2.0
"""Guesses that the expectation stands for before anything was seen."""
FIRST: Final = 0.5
"""Expected of an adapter that nothing is known of."""
MAX_KNOWN: Final = 256
"""Adapters whose acceptance is kept, those used last."""


class Acceptance:
    """A share of right guesses that forgets."""

    __slots__ = ("_right", "_tried", "expected")

    def __init__(self, expected: float = FIRST) -> None:
        self.expected = expected
        self._right = self._tried = 0.0

    def observe(self, right: int, tried: int) -> None:
        """Of `tried` guesses in a row the first `right` were so; those behind the first wrong one are not
        tried."""
        kept = DECAY**tried
        self._right, self._tried = self._right * kept + right, self._tried * kept + tried

    @property
    def rate(self) -> float:
        """The probability that a guess is right, given that those before it were."""
        return (self._right + PRIOR_WEIGHT * self.expected) / (self._tried + PRIOR_WEIGHT)


class KnownAcceptance:
    """By adapter, and of the base under "": what a newcomer's guesses are expected to be worth."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, Acceptance] = OrderedDict()

    def of(self, adapter: str) -> Acceptance:
        """The adapter's; beyond `MAX_KNOWN` the one asked for longest ago is forgotten."""
        known = self._known.get(adapter)
        if known is None:
            known = self._known[adapter] = Acceptance()
            if len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(adapter)
        return known
