"""Which copy a request goes to, by what this gateway knows of the copies.

- A request with an adapter goes where the adapter is: to the copies that hold it, and among equals to the
  first by rendezvous hashing (Thaler and Ravishankar, 1998), so that few copies hold an adapter and every
  gateway means the same ones. A copy that has more than its share of the load is passed over (Mirrokni,
  Thorup and Zadimoghaddam, 2016). An adapter whose requests fill one copy uses as many as it fills; among
  those the prompt's beginning decides, since the copy that computed it has it cached.
  Where the control plane has placed an adapter, its homes come first, and copies that it is to leave get its
  requests only while no other takes any.
- A request of the base alone goes to the less loaded of two (Mitzenmacher, 2001): the one that its prompt's
  beginning hashes to, which wins a tie, and another at random.
"""

from __future__ import annotations

import hashlib
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, compress, islice
from operator import not_
from typing import Final

from contracts.adapters.reference import AdapterRef
from contracts.base_routes import AdapterHomes, CopyRoute
from gateway.routing.breaker import Breaker

OVERLOAD: Final = 0.25
"""A copy takes at most so much more than the mean, unless it has less than ALWAYS."""
ALWAYS: Final = 8
"""Requests that a copy may have whatever the mean: a batch decodes them in little more time than one, and
bringing an adapter to another copy costs more."""
REPORT_SECONDS: Final = 10.0
"""How long a copy's report counts."""
MAX_REST: Final = 60.0
ANYWHERE: Final = AdapterHomes()
_64_BITS: Final = (1 << 64) - 1
DIGEST: Final = 12
"""Hexadecimal digits by which a report names an adapter, as engine names do."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a copy says of itself: requests of all gateways, and the adapters that it holds by digest."""

    pending: int
    adapters: frozenset[str]
    at: float
    own: int
    """Of `pending`, those of this gateway when it asked."""


class Copy:
    """What this gateway knows of one copy."""

    __slots__ = ("_clock", "breaker", "draining", "in_flight", "report", "rests_until", "seed")

    def __init__(self, copy_id: str, clock: Callable[[], float], chance: random.Random) -> None:
        self._clock = clock
        self.seed = _hash(copy_id.encode())
        self.breaker = Breaker(clock=clock, chance=chance.random)
        self.in_flight = 0
        self.report: Report | None = None
        self.draining = False
        self.rests_until = 0.0

    @property
    def ready(self) -> bool:
        """Whether a new request may go there."""
        resting = self.rests_until and self.rests_until > self._clock()
        return not self.draining and not resting and self.breaker.ready

    @property
    def wait(self) -> float:
        """Seconds until it may be ready."""
        rest = self.rests_until - self._clock()
        return max(rest, self.breaker.wait, 1.0 if self.draining else 0.0)

    @property
    def load(self) -> int:
        """Requests there: of this gateway, and of the others as far as the copy reports them."""
        if self.report is None or self._clock() - self.report.at > REPORT_SECONDS:
            return self.in_flight
        return max(self.in_flight, self.report.pending + self.in_flight - self.report.own)

    def cool_down(self, seconds: float) -> None:
        """Takes no new request for so long, at most MAX_REST."""
        self.rests_until = max(self.rests_until, self._clock() + min(seconds, MAX_REST))

    def holds(self, digest: str) -> bool:
        return (
            self.report is not None
            and digest in self.report.adapters
            and self._clock() - self.report.at <= REPORT_SECONDS
        )


class Place:
    """A request's place at a copy, from `Fleet.enter` until `leave`."""

    __slots__ = ("_adapter", "_adapters", "_copy", "_probe", "_told")

    def __init__(self, copy: Copy, adapters: Counter[str], adapter: str) -> None:
        self._copy, self._adapters, self._adapter = copy, adapters, adapter
        self._told = False
        self._probe = copy.breaker.begin()
        copy.in_flight += 1
        adapters[adapter] += 1

    def succeeded(self) -> None:
        """The copy answered, be it by a refusal."""
        self._copy.breaker.succeed(probe=self._probe)
        self._told, self._probe = True, False

    def failed(self) -> None:
        """The copy broke or could not be reached."""
        self._copy.breaker.fail(probe=self._probe)
        self._told, self._probe = True, False

    def cool_down(self, seconds: float) -> None:
        """The copy asked to be left alone for so long."""
        self._copy.cool_down(seconds)

    def release(self) -> None:
        if not self._told:
            self._copy.breaker.release(probe=self._probe)
        self._copy.in_flight -= 1
        self._adapters[self._adapter] -= 1
        if not self._adapters[self._adapter]:
            del self._adapters[self._adapter]


class Fleet:
    """The copies as this gateway knows them, by id. Lives on the event loop."""

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, chance: random.Random | None = None
    ) -> None:
        self._clock = clock
        self._chance = chance or random.Random()  # noqa: S311 - spreads load, keeps no secret
        self._copies: dict[str, Copy] = {}
        self._adapters: Counter[str] = Counter()

    def copy(self, copy_id: str) -> Copy:
        """What is known of a copy; of a new one nothing yet."""
        found = self._copies.get(copy_id)
        if found is None:
            found = self._copies[copy_id] = Copy(copy_id, self._clock, self._chance)
        return found

    def known(self) -> dict[str, Copy]:
        """Every copy by id, for metrics."""
        return dict(self._copies)

    def keep(self, copy_ids: Collection[str]) -> None:
        """Forgets all other copies, once nothing runs there."""
        gone = [key for key, copy in self._copies.items() if key not in copy_ids and not copy.in_flight]
        for key in gone:
            del self._copies[key]

    def acquire(self, copy: CopyRoute, adapter: AdapterRef | None) -> Place:
        """Takes a place at the copy that `choose` gave."""
        return Place(self.copy(copy.id), self._adapters, "" if adapter is None else adapter.name)

    def wait(self, copies: Iterable[CopyRoute]) -> int:
        """Whole seconds, at least 1, until one of the copies may take a request."""
        return max(1, math.ceil(min((self.copy(copy.id).wait for copy in copies), default=1.0)))

    def choose(
        self,
        copies: Iterable[CopyRoute],
        adapter: AdapterRef | None,
        prefix: Callable[[], bytes],
        tried: Collection[str] = (),
        homes: AdapterHomes = ANYWHERE,
        passed_over: Collection[str] = (),
    ) -> CopyRoute | None:
        """The copy to go to next, None when none may take a request.

        Args:
            prefix: gives the beginning of the prompt; asked only where it matters.
            tried: ids of copies that are out of question.
            homes: where the adapter has been placed.
            passed_over: ids of copies that are taken only while no other takes any; above `homes`.
        """
        ready = [
            (route, copy) for route in copies if route.id not in tried and (copy := self.copy(route.id)).ready
        ]
        if passed_over:
            ready = [pair for pair in ready if pair[0].id not in passed_over] or ready
        if homes.away:
            ready = [pair for pair in ready if pair[0].id not in homes.away] or ready
        if len(ready) < 2:
            return ready[0][0] if ready else None
        if adapter is None:
            key = _hash(prefix())
            home = min(ready, key=lambda pair: _rank(key, pair[1]))
            other = self._chance.choice([pair for pair in ready if pair is not home])
            return home[0] if home[1].load <= other[1].load else other[0]
        total = sum(copy.load for _, copy in ready)
        bound = max(ALWAYS, math.ceil((1 + OVERLOAD) * (total + 1) / len(ready)))
        ranked = self._ranked(ready, adapter, bound, prefix, homes.at)
        return next((route for route, copy in ranked if copy.load < bound), ready[0][0])

    def _ranked(
        self,
        ready: list[tuple[CopyRoute, Copy]],
        adapter: AdapterRef,
        bound: int,
        prefix: Callable[[], bytes],
        homes: Collection[str],
    ) -> Iterator[tuple[CopyRoute, Copy]]:
        key, digest = _hash(adapter.name.encode()), adapter.sha256[:DIGEST]
        placed = [pair for pair in ready if pair[0].id in homes] if homes else []
        rest = [pair for pair in ready if pair[0].id not in homes] if placed else ready
        held = [pair[1].holds(digest) for pair in rest]
        groups = (placed, compress(rest, held), compress(rest, map(not_, held)))
        # Mostly the first of the few that hold it is taken: the others are not even sorted.
        ranked = chain.from_iterable(sorted(group, key=lambda pair: _rank(key, pair[1])) for group in groups)
        if filled := self._adapters[adapter.name] // bound:
            beginning = _hash(prefix())
            near = islice(ranked, filled + 1)
            yield from sorted(near, key=lambda pair: _rank(beginning, pair[1]))
        yield from ranked


def _hash(key: bytes) -> int:
    """64 bits, the same on every gateway."""
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest())


def _rank(key: int, copy: Copy) -> int:
    """Rendezvous hashing: the copy with the least rank is the key's own. Murmur's finalizer mixes the two
    at a third of a digest's cost."""
    mixed = key ^ copy.seed
    mixed = (mixed ^ mixed >> 33) * 0xFF51AFD7ED558CCD & _64_BITS
    mixed = (mixed ^ mixed >> 33) * 0xC4CEB9FE1A85EC53 & _64_BITS
    return mixed ^ mixed >> 33
