"""Chooses the copy for a request, by this gateway's knowledge of the copies.

- A request with an adapter goes to a copy that holds the adapter. Among equals it goes to the first by
  rendezvous hashing (Thaler and Ravishankar, 1998), so that few copies hold an adapter and every gateway
  prefers the same ones. A copy above its share of the load is skipped (Mirrokni, Thorup and Zadimoghaddam,
  2016). An adapter whose requests fill one copy uses further copies; among those the prompt's beginning
  decides, because the copy that computed it has it cached. A copy whose adapter slots are taken by others
  comes after the next ones in the order that have a free slot, because waiting for a slot takes seconds.
  If the control plane has placed an adapter, its homes come first. Copies that it is leaving get its requests
  only while no other copy accepts any.
- A request for the base model goes to the less loaded of two copies (Mitzenmacher, 2001): the one that its
  prompt's beginning hashes to, which wins a tie, and a random one.
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
from gateway.routing.copy_slot import CopySlot
from gateway.routing.quarantine.observed import BASE, EngineDeaths

OVERLOAD: Final = 0.25
"""Excess over the mean load that a copy may have, unless it has less than ALWAYS."""
ALWAYS: Final = 8
"""Requests that a copy may have whatever the mean is: a batch decodes them in little more time than one, and
moving an adapter to another copy costs more."""
SLOT_CHOICES: Final = 4
"""Copies within the bound that are tried for a free adapter slot. Further ones would shorten the wait hardly
more, and each holds the adapter afterwards (ADR 82)."""
REPORT_SECONDS: Final = 10.0
"""How long a copy's report is valid."""
MAX_REST: Final = 60.0
DEAD_SECONDS: Final = 10.0
"""How long a copy whose engine died gets no requests, unless its server is healthy before."""
ANYWHERE: Final = AdapterHomes()
_64_BITS: Final = (1 << 64) - 1
DIGEST: Final = 12
"""Hexadecimal digits of an adapter's digest in reports, as in engine names."""


@dataclass(frozen=True, slots=True)
class Report:
    """A copy's report: requests of all gateways, and the digests of its resident adapters.

    Attributes:
        own: this gateway's share of `pending`, when it asked.
        slots: adapters that fit into one batch; None if the copy does not state a limit.
        busy: engine names of adapters with requests of other gateways.
    """

    pending: int
    adapters: frozenset[str]
    at: float
    own: int
    slots: int | None = None
    busy: frozenset[str] = frozenset()


class Copy:
    """This gateway's state of one copy."""

    __slots__ = (
        "_changed",
        "_clock",
        "_deaths",
        "_died_at",
        "_id",
        "_lacking",
        "_used",
        "active",
        "base",
        "breaker",
        "draining",
        "in_flight",
        "names",
        "paths",
        "paths_read",
        "report",
        "rests_until",
        "seed",
    )

    def __init__(
        self,
        copy_id: str,
        clock: Callable[[], float],
        chance: random.Random,
        deaths: EngineDeaths | None = None,
    ) -> None:
        self._clock = clock
        self._id, self._deaths = copy_id, deaths or EngineDeaths(clock)
        self.base = ""
        self.seed = _hash(copy_id.encode())
        self.breaker = Breaker(clock=clock, chance=chance.random)
        self.in_flight = 0
        self.active: Counter[str] = Counter()
        """This gateway's requests by engine name of their adapter."""
        self.report: Report | None = None
        self.draining = False
        self.rests_until = 0.0
        self.names: frozenset[str] = frozenset()
        """Engine names of the adapters that the server lists, and of those that this gateway had it load."""
        self.paths: frozenset[str] | None = None
        """Paths that the server's OpenAPI document names; None where it gave none."""
        self.paths_read = False
        self._used: dict[str, float] = {}
        self._changed: dict[str, float] = {}
        self._died_at: float | None = None
        self._lacking: dict[str, float] = {}

    def listed(self, names: frozenset[str], busy: Iterable[str], *, asked_at: float = math.inf) -> None:
        """Note what the server lists as loaded, and which adapters have requests of any gateway.

        Args:
            asked_at: when the list was requested: what this gateway loaded and unloaded since is newer.
        """
        self._changed = {name: at for name, at in self._changed.items() if at >= asked_at}
        self.names = (names - self._changed.keys()) | (self.names & self._changed.keys())
        self._used = {name: at for name, at in self._used.items() if name in self.names}
        for name in busy:
            self.use(name)

    def loaded(self, name: str) -> None:
        self.names |= {name}
        self._changed[name] = self._clock()

    def unloaded(self, name: str) -> None:
        self.names -= {name}
        self._changed[name] = self._clock()
        self._used.pop(name, None)

    def engine_died(self) -> None:
        """Note that the copy's engine is dead: its server is about to end."""
        if not self._dead_for:
            self._deaths.engine_died(self._id, self.base, self._models)
        self._died_at = self._clock()

    def away(self) -> None:
        """Note that a proxy answers in place of the server: no request goes there, and no engine died."""
        self._died_at = self._clock()

    def broke(self) -> None:
        """Note that a connection to the copy broke, perhaps because its process ended."""
        self._deaths.broke(self._id, self.base, self._models)

    def answered(self) -> None:
        """Note that the copy's process lives."""
        self._deaths.answered(self._id)

    def completed(self, adapter: str) -> None:
        """Note that the copy has answered a request completely."""
        self._deaths.completed(self.base, adapter)

    @property
    def _models(self) -> set[str]:
        """Engine names of this gateway's requests in flight; BASE if any is without an adapter."""
        return {*self.active, *([BASE] if self.in_flight > self.active.total() else [])}

    def healthy(self, *, asked_at: float) -> None:
        """Note that the server was healthy when it was asked, so an earlier death is over."""
        if self._died_at is not None and self._died_at < asked_at:
            self._died_at = None

    def restarted(self) -> None:
        """Note that the server's process ended, and forget its adapters and its endpoints."""
        self._deaths.process_ended(self._id)
        self.listed(frozenset(), ())
        self.paths, self.paths_read = None, False
        self._lacking.clear()

    def lacks(self, path: str, *aliases: str) -> bool:
        """Return True if the server lacks an endpoint, by its OpenAPI document or a recent answer.

        Args:
            aliases: further paths of the endpoint, of which the server may have only one.
        """
        if self._lacking.get(path, 0.0) > self._clock():
            return True
        return self.paths is not None and self.paths.isdisjoint((path, *aliases))

    def refused_path(self, path: str, *, seconds: float) -> None:
        """Note an answer that the server, or the model that it runs, has no such endpoint."""
        self._lacking[path] = self._clock() + seconds

    def use(self, name: str) -> None:
        """Note a use of an adapter now."""
        if name in self.names:
            self._used[name] = self._clock()

    def least_used(self, *, keep: int, placed: Collection[str]) -> list[str]:
        """Return the adapters beyond `keep`, those first that were used longest ago; never `placed` ones."""
        free = sorted(self.names.difference(placed), key=lambda name: (self._used.get(name, 0.0), name))
        return free[: max(0, len(self.names) - keep)]

    @property
    def ready(self) -> bool:
        """True if the copy may get a new request."""
        resting = self.rests_until and self.rests_until > self._clock()
        return not self.draining and not resting and not self._dead_for and self.breaker.ready

    @property
    def wait(self) -> float:
        """Seconds until the copy may be ready."""
        rest = self.rests_until - self._clock()
        return max(rest, self._dead_for, self.breaker.wait, 1.0 if self.draining else 0.0)

    @property
    def _dead_for(self) -> float:
        """Seconds that the copy still counts as dead; 0 if its engine lives."""
        return 0.0 if self._died_at is None else max(0.0, self._died_at + DEAD_SECONDS - self._clock())

    @property
    def valid_report(self) -> Report | None:
        """The last report, if it is recent."""
        if self.report is None or self._clock() - self.report.at > REPORT_SECONDS:
            return None
        return self.report

    @property
    def load(self) -> int:
        """Requests at the copy: this gateway's, and others' as far as the copy reports them."""
        if (report := self.valid_report) is None:
            return self.in_flight
        return max(self.in_flight, report.pending + self.in_flight - report.own)

    def has_slot(self, adapter: str) -> bool:
        """Return False if other adapters take all slots of the batch, so that a request would wait."""
        report = self.valid_report
        if report is None or report.slots is None or adapter in self.active or adapter in report.busy:
            return True
        return len(self.active.keys() | report.busy) < report.slots

    def cool_down(self, seconds: float) -> None:
        """Send no new requests for `seconds`, at most MAX_REST."""
        self.rests_until = max(self.rests_until, self._clock() + min(seconds, MAX_REST))

    def holds(self, digest: str) -> bool:
        report = self.valid_report
        return report is not None and digest in report.adapters


class Fleet:
    """The copies that this gateway knows, by id. Use it on the event loop only."""

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, chance: random.Random | None = None
    ) -> None:
        self._clock = clock
        self._chance = chance or random.Random()  # noqa: S311 - spreads load, keeps no secret
        self._copies: dict[str, Copy] = {}
        self._adapters: Counter[str] = Counter()
        self.deaths = EngineDeaths(clock)

    def copy(self, copy_id: str) -> Copy:
        """Return a copy's state, which is empty for a new copy."""
        found = self._copies.get(copy_id)
        if found is None:
            found = self._copies[copy_id] = Copy(copy_id, self._clock, self._chance, self.deaths)
        return found

    def known(self) -> dict[str, Copy]:
        """Return every copy by id, for metrics."""
        return dict(self._copies)

    def keep(self, copy_ids: Collection[str]) -> None:
        """Forget all other copies without running requests."""
        gone = [key for key, copy in self._copies.items() if key not in copy_ids and not copy.in_flight]
        for key in gone:
            del self._copies[key]

    def acquire(self, copy: CopyRoute, adapter: AdapterRef | None, base: str = "") -> CopySlot:
        """Take a place at a copy of `base` from `choose`."""
        known = self.copy(copy.id)
        known.base = base
        return CopySlot(known, self._adapters, "" if adapter is None else adapter.name)

    def wait(self, copies: Iterable[CopyRoute]) -> int:
        """Return the whole seconds, at least 1, until one of the copies may accept a request."""
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
        """Return the next copy to try, or None if none accepts a request.

        Args:
            prefix: returns the beginning of the prompt; called only if needed.
            tried: ids of copies to exclude.
            homes: the adapter's placement.
            passed_over: ids of copies to use only if no other accepts the request; takes precedence over
                `homes`.
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
        first: CopyRoute | None = None
        for route, copy in islice((pair for pair in ranked if pair[1].load < bound), SLOT_CHOICES):
            if copy.has_slot(adapter.name):
                return route
            first = first or route
        return first or ready[0][0]

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
        # Mostly the first copy of the small first group is taken, so the later groups are not even sorted.
        ranked = chain.from_iterable(sorted(group, key=lambda pair: _rank(key, pair[1])) for group in groups)
        if filled := self._adapters[adapter.name] // bound:
            beginning = _hash(prefix())
            near = islice(ranked, filled + 1)
            yield from sorted(near, key=lambda pair: _rank(beginning, pair[1]))
        yield from ranked


def _hash(key: bytes) -> int:
    """Return a 64-bit hash, the same on every gateway."""
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest())


def _rank(key: int, copy: Copy) -> int:
    """Return the rank for rendezvous hashing, where the lowest wins; Murmur's finalizer is fast."""
    mixed = key ^ copy.seed
    mixed = (mixed ^ mixed >> 33) * 0xFF51AFD7ED558CCD & _64_BITS
    mixed = (mixed ^ mixed >> 33) * 0xC4CEB9FE1A85EC53 & _64_BITS
    return mixed ^ mixed >> 33
