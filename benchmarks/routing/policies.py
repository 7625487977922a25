"""Routing policies beside the product's: each is the gateway's fleet with another choice."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from contracts.base_routes import CopyRoute
from gateway.routing.fleet import Fleet


class RandomFleet(Fleet):
    """Chooses any copy with equal probability."""

    def choose(self, copies: Iterable[CopyRoute], *_: Any, **__: Any) -> CopyRoute | None:
        return self._chance.choice(tuple(copies))


class LeastLoadedFleet(Fleet):
    """Chooses a copy with the fewest requests, by what the product knows of each copy's load."""

    def choose(self, copies: Iterable[CopyRoute], *_: Any, **__: Any) -> CopyRoute | None:
        return min(copies, key=lambda copy: (self.copy(copy.id).load, self._chance.random()))


POLICIES: Final[Mapping[str, type[Fleet]]] = {
    "graftwork": Fleet,
    "random": RandomFleet,
    "least_loaded": LeastLoadedFleet,
}


def make_fleet(policy: str, clock: Callable[[], float], seed: int) -> Fleet:
    """Return a gateway process's fleet by a policy's name."""
    return POLICIES[policy](clock=clock, chance=random.Random(seed))
