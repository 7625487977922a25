"""Acceptance rates of draft tokens per sequence, initialized from its adapter's rate."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

DECAY: Final = 0.95
"""Weight of an observation after one more draft token; about the last 20 count."""
PRIOR_WEIGHT: Final = 2.0
"""Number of draft tokens that the prior expectation counts as."""
FIRST: Final = 0.5
"""Prior rate of an unknown adapter."""
MAX_KNOWN: Final = 256
"""Number of adapters whose rate is kept, least recently used dropped first."""


class Acceptance:
    """A share of accepted draft tokens, with exponential decay."""

    __slots__ = ("_right", "_tried", "expected")

    def __init__(self, expected: float = FIRST) -> None:
        self.expected = expected
        self._right = self._tried = 0.0

    def observe(self, right: int, tried: int) -> None:
        """Record that the first `right` of `tried` draft tokens were accepted.

        Drafts after the first rejected one do not count as tried.
        """
        decay = DECAY**tried
        self._right, self._tried = self._right * decay + right, self._tried * decay + tried

    @property
    def rate(self) -> float:
        """The probability that a draft token is accepted, given that those before it were."""
        return (self._right + PRIOR_WEIGHT * self.expected) / (self._tried + PRIOR_WEIGHT)


class KnownAcceptance:
    """Acceptance rates by adapter digest ("" for the base model), used as priors of new sequences."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, Acceptance] = OrderedDict()

    def get_or_create(self, adapter: str) -> Acceptance:
        """Return the adapter's rate; the least recently used adapter beyond `MAX_KNOWN` is dropped."""
        known = self._known.get(adapter)
        if known is None:
            known = self._known[adapter] = Acceptance()
            if len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(adapter)
        return known
