"""The choice among copies, in simulations of many requests over copies that hold few adapters."""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

import pytest

from contracts.adapters.reference import AdapterRef
from contracts.base_routes import AdapterHomes, CopyRoute
from gateway.errors import UpstreamUnreachable
from gateway.routing.copy_slot import CopySlot
from gateway.routing.fleet import ALWAYS, DIGEST, OVERLOAD, SLOT_CHOICES, Fleet, Report
from tests.gateway.conftest import reference

ADAPTERS = [reference("acme", f"bot-{number}") for number in range(400)]


def copies_of(number: int) -> list[CopyRoute]:
    return [CopyRoute(f"copy-{index}", "worker", f"http://{index}") for index in range(number)]


@dataclass
class Simulation:
    """Requests arrive at random times at gateways that share copies; each holds its place for a while.

    A copy keeps the `slots` adapters used last, and says so to every gateway once a second.
    """

    copies: list[CopyRoute]
    gateways: int = 1
    slots: int = 40
    seconds_each: float = 1.0
    seed: int = 1
    now: float = 0.0
    loads: Counter[str] = field(default_factory=Counter)
    loaded: Counter[str] = field(default_factory=Counter)
    used: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    taken: list[tuple[int, float]] = field(default_factory=list)
    """(load of the copy that was chosen, mean load) after each arrival."""

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.fleets = [
            Fleet(clock=lambda: self.now, chance=random.Random(self.seed + number))
            for number in range(self.gateways)
        ]
        self.resident: dict[str, OrderedDict[str, None]] = {copy.id: OrderedDict() for copy in self.copies}
        self._ends: list[tuple[float, int, CopySlot, str]] = []
        self._numbers = count()

    def run(self, arrivals: Iterator[tuple[float, AdapterRef | None, bytes]]) -> None:
        reported = -1.0
        for at, adapter, prefix in arrivals:
            self._end_until(at)
            if at - reported >= 1:
                reported = at
                self._report()
            fleet = self.random.choice(self.fleets)
            copy = fleet.choose(self.copies, adapter, lambda prefix=prefix: prefix)  # type: ignore[misc]
            assert copy is not None
            place = fleet.acquire(copy, adapter)
            self.loads[copy.id] += 1
            ends = at + self.random.expovariate(1 / self.seconds_each)
            heapq.heappush(self._ends, (ends, next(self._numbers), place, copy.id))
            if adapter is not None:
                self._touch(copy.id, adapter)
            self.taken.append((self.loads[copy.id], sum(self.loads.values()) / len(self.copies)))

    def _end_until(self, at: float) -> None:
        while self._ends and self._ends[0][0] <= at:
            self.now, _, place, copy_id = heapq.heappop(self._ends)
            place.release()
            self.loads[copy_id] -= 1
        self.now = at

    def _touch(self, copy_id: str, adapter: AdapterRef) -> None:
        held = self.resident[copy_id]
        self.used[adapter.name].add(copy_id)
        if adapter.sha256 not in held:
            self.loaded[adapter.name] += 1
        held[adapter.sha256] = None
        held.move_to_end(adapter.sha256)
        while len(held) > self.slots:
            held.popitem(last=False)

    def _report(self) -> None:
        for fleet in self.fleets:
            for copy in self.copies:
                known = fleet.copy(copy.id)
                adapters = frozenset(sha256[:DIGEST] for sha256 in self.resident[copy.id])
                known.report = Report(self.loads[copy.id], adapters, self.now, known.in_flight)


def arrivals(
    rate: float, seconds: float, adapters: list[AdapterRef], weights: list[float], seed: int = 7
) -> Iterator[tuple[float, AdapterRef | None, bytes]]:
    """A Poisson process; the prompts of an adapter begin in 20 ways."""
    chance = random.Random(seed)
    at = 0.0
    while at < seconds:
        at += chance.expovariate(rate)
        [adapter] = chance.choices(adapters, weights)
        yield at, adapter, f"{adapter.name}{chance.randrange(20)}".encode()


def bounded(simulation: Simulation) -> bool:
    return all(load <= max(ALWAYS, math.ceil((1 + OVERLOAD) * mean)) for load, mean in simulation.taken)


def mean_copies(simulation: Simulation, adapters: list[AdapterRef]) -> float:
    return sum(len(simulation.used[adapter.name]) for adapter in adapters) / len(adapters)


@pytest.mark.parametrize("gateways", [1, 4])
@pytest.mark.parametrize("rate", [40, 200])
def test_adapters_stay_on_few_copies_and_the_load_is_bounded(gateways: int, rate: float) -> None:
    """400 adapters at 10 copies: at 4 requests a copy (never over ALWAYS by much), and at 20."""
    simulation = Simulation(copies_of(10), gateways, slots=100)
    simulation.run(arrivals(rate, 12000 / rate, ADAPTERS, [1.0] * len(ADAPTERS)))
    copies, loaded = mean_copies(simulation, ADAPTERS), sum(simulation.loaded.values()) / len(ADAPTERS)
    print(f"{gateways} gateways, {rate} requests/s: {copies:.2f} copies, {loaded:.2f} loads an adapter")
    # 30 requests of each at random copies would be on 9.6 of 10.
    assert copies < (2 if rate == 40 else 2.5)
    assert loaded < (2 if rate == 40 else 2.5)
    if gateways == 1:
        assert bounded(simulation)
    else:
        # Requests that the others took in the last second are not known yet.
        over = sum(load > max(ALWAYS, 2 * mean) for load, mean in simulation.taken)
        assert over < 0.1 * len(simulation.taken)


def test_a_hot_adapter_uses_as_many_copies_as_it_fills_and_no_more() -> None:
    hot, *others = ADAPTERS[:101]
    simulation = Simulation(copies_of(10), slots=60)
    # The hot one keeps 60 requests running of 80; the mean is 8, the bound 10: it fills 6 copies.
    simulation.run(arrivals(80, 60, [hot, *others], [300.0, *[1.0] * 100]))
    assert len(simulation.used[hot.name]) >= 6
    assert mean_copies(simulation, others) < 4
    assert bounded(simulation)
    # Alone and no longer hot, it comes back to one.
    simulation.used.clear()
    simulation.run((at + 200, adapter, prefix) for at, adapter, prefix in arrivals(2, 60, [hot], [1.0]))
    assert len(simulation.used[hot.name]) == 1


def test_where_an_adapter_lies_counts_more_than_where_it_would_be_put() -> None:
    copies = copies_of(6)
    fleet = Fleet(clock=lambda: 5.0)
    for adapter in ADAPTERS[:50]:
        home = fleet.choose(copies, adapter, bytes)
        [holder] = random.Random(adapter.name).choices([copy for copy in copies if copy != home])
        known = fleet.copy(holder.id)
        known.report = Report(0, frozenset([adapter.sha256[:DIGEST]]), 5.0, 0)
        assert fleet.choose(copies, adapter, bytes) == holder
        known.report = Report(0, frozenset([adapter.sha256[:DIGEST]]), -6.0, 0)
        assert fleet.choose(copies, adapter, bytes) == home, "what was said long ago does not count"


def test_a_copy_that_goes_moves_its_own_adapters_only() -> None:
    copies = copies_of(8)
    fleet = Fleet()
    before = {adapter.name: fleet.choose(copies, adapter, bytes) for adapter in ADAPTERS}
    spread = Counter(copy.id for copy in before.values() if copy)
    assert max(spread.values()) < 2 * len(ADAPTERS) / 8
    for adapter in ADAPTERS:
        after = fleet.choose(copies[1:], adapter, bytes)
        assert after == before[adapter.name] or before[adapter.name] == copies[0]
    assert {fleet.choose(copies[::-1], adapter, bytes) for adapter in ADAPTERS[:1]} == {
        before[ADAPTERS[0].name]
    }


def test_requests_of_the_base_alone_even_out_and_keep_to_their_prefix() -> None:
    chance = random.Random(3)
    simulation = Simulation(copies_of(8), seconds_each=1.0)
    prefixes = [str(number).encode() for number in range(40)]
    at = 0.0

    def requests() -> Iterator[tuple[float, AdapterRef | None, bytes]]:
        nonlocal at
        while at < 60:
            at += chance.expovariate(160)
            yield at, None, chance.choice(prefixes)

    simulation.run(requests())
    taken = simulation.taken[1000:]
    # Half of them may not be at their prefix's own copy, but none is far above the mean.
    assert sum(load > 1.5 * mean for load, mean in taken) < 0.02 * len(taken)
    idle = Fleet()
    for prefix in prefixes:
        chosen = {idle.choose(simulation.copies, None, lambda prefix=prefix: prefix) for _ in range(20)}  # type: ignore[misc]
        assert len(chosen) == 1


def test_the_load_is_what_a_copy_said_and_what_has_changed_since() -> None:
    now = 100.0
    fleet = Fleet(clock=lambda: now)
    [route] = copies_of(1)
    copy = fleet.copy(route.id)
    first = fleet.acquire(route, None)
    copy.report = Report(pending=7, adapters=frozenset(), at=now, own=1)
    assert copy.load == 7
    second = fleet.acquire(route, ADAPTERS[0])
    assert copy.load == 8
    first.release()
    second.release()
    assert copy.load == 6
    now += 60
    assert copy.load == 0


def test_who_drains_rests_or_is_open_is_left_out() -> None:
    now = 0.0
    fleet = Fleet(clock=lambda: now)
    copies = copies_of(3)
    fleet.copy("copy-0").draining = True
    resting = fleet.acquire(copies[1], None)
    resting.cool_down(7.2)
    resting.release()
    for _ in range(20):
        assert fleet.choose(copies, None, bytes) == copies[2]
    assert fleet.choose(copies, None, bytes, {"copy-2"}) is None
    for _ in range(5):
        place = fleet.acquire(copies[2], None)
        place.failed(UpstreamUnreachable("gone"))
        place.release()
    assert fleet.choose(copies, None, bytes) is None
    assert fleet.wait(copies) == 1
    assert fleet.wait(copies[1:2]) == 8
    now = 7.3
    busy = fleet.acquire(copies[1], None)
    assert fleet.choose(copies, None, bytes) == copies[2]
    probe = fleet.acquire(copies[2], None)
    assert fleet.choose(copies, None, bytes) == copies[1]
    assert fleet.choose(copies[2:], None, bytes) is None
    probe.release()
    assert fleet.choose(copies, None, bytes) == copies[2]
    busy.release()


def test_a_copy_without_a_free_slot_comes_after_the_next_ones_with_one() -> None:
    copies, adapter, others = copies_of(8), ADAPTERS[0], ADAPTERS[1:]
    fleet = Fleet(clock=lambda: 0.0)
    order: list[str] = []
    while (found := fleet.choose(copies, adapter, bytes, order)) is not None:
        order.append(found.id)

    def choice() -> str:
        copy = fleet.choose(copies, adapter, bytes)
        assert copy is not None
        return copy.id

    def busy_with(copy_id: str, *adapters: AdapterRef) -> None:
        names = frozenset(ref.name for ref in adapters)
        held = frozenset({adapter.sha256[:DIGEST]}) if copy_id == order[0] else frozenset[str]()
        fleet.copy(copy_id).report = Report(len(names), held, 0.0, 0, slots=2, busy=names)

    busy_with(order[0], others[0])
    assert choice() == order[0]
    own = fleet.acquire(next(copy for copy in copies if copy.id == order[0]), others[1])
    assert choice() == order[1], "one slot is another gateway's, one is ours"
    own.release()
    assert choice() == order[0]
    busy_with(order[0], others[0], adapter)
    assert choice() == order[0], "its requests join the batch"
    for copy_id in order[:SLOT_CHOICES]:
        busy_with(copy_id, *others[:2])
    assert choice() == order[0], "a few copies are tried, so that adapters do not spread"
    fleet.copy(order[0]).report = Report(2, frozenset(), 0.0, 0, slots=None, busy=frozenset({"x", "y"}))
    assert choice() == order[0], "this copy states no slots"


def test_copies_that_are_gone_are_forgotten_once_idle() -> None:
    fleet = Fleet()
    copies = copies_of(3)
    place = fleet.acquire(copies[0], None)
    fleet.copy("copy-1")
    fleet.copy("copy-2")
    fleet.keep({"copy-2"})
    assert set(fleet.known()) == {"copy-0", "copy-2"}
    place.release()
    fleet.keep({"copy-2"})
    assert set(fleet.known()) == {"copy-2"}


def test_copies_of_the_other_side_are_taken_only_while_no_other_takes_any() -> None:
    copies, adapter = copies_of(4), ADAPTERS[0]
    fleet = Fleet(clock=lambda: 0.0, chance=random.Random(1))
    old, new = ("copy-0", "copy-1", "copy-2"), ("copy-3",)
    for wanted in (None, adapter):
        home = AdapterHomes(("copy-0",), ("copy-3",))
        for homes in (AdapterHomes(), home):
            picked = [fleet.choose(copies, wanted, bytes, (), homes, old) for _ in range(20)]
            assert {copy.id for copy in picked if copy} == {"copy-3"}, "however placed, and however loaded"
            picked = [fleet.choose(copies, wanted, bytes, (), homes, new) for _ in range(20)]
            assert {copy.id for copy in picked if copy} <= set(old)
        failed = fleet.choose(copies, wanted, bytes, {"copy-3"}, AdapterHomes(), old)
        assert failed is not None, "a new copy that fails a request sends it on to the others"
        assert failed.id in old
    fleet.copy("copy-3").draining = True
    spare = fleet.choose(copies, adapter, bytes, (), AdapterHomes(), old)
    assert spare is not None
    assert spare.id in old


def test_placed_adapters_go_to_their_homes_and_not_to_copies_that_they_leave() -> None:
    copies, adapter = copies_of(4), ADAPTERS[0]
    fleet = Fleet(clock=lambda: 0.0, chance=random.Random(1))
    usual = fleet.choose(copies, adapter, bytes)
    assert usual is not None
    other = next(copy for copy in copies if copy != usual)
    fleet.copy(usual.id).report = Report(0, frozenset({adapter.sha256[:DIGEST]}), 0.0, 0)
    placed = AdapterHomes((other.id,), (usual.id,))
    assert fleet.choose(copies, adapter, bytes, (), placed) == other, "before the one that holds it"
    assert fleet.choose(copies, adapter, bytes, (), AdapterHomes((), (usual.id,))) != usual
    places = [fleet.acquire(other, adapter) for _ in range(ALWAYS)]
    spilled = fleet.choose(copies, adapter, bytes, (), placed)
    assert spilled not in (None, other, usual), "a home that is full sends on, and not to where it leaves"
    for place in places:
        place.release()
    tried = {copy.id for copy in copies if copy != usual}
    assert fleet.choose(copies, adapter, bytes, tried, placed) == usual, "rather there than nowhere"
    gone = AdapterHomes(("copy-that-went",), ())
    assert fleet.choose(copies, adapter, bytes, (), gone) == usual
