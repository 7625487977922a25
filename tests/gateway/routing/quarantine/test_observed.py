"""The deaths of engines that a gateway observes, and the suspects of each."""

from __future__ import annotations

from contracts.base_routes import CopyRoute
from gateway.errors import EngineDied, UpstreamBroken
from gateway.routing.fleet import DEAD_SECONDS, Fleet
from gateway.routing.quarantine.attribution import WINDOW_SECONDS
from gateway.routing.quarantine.observed import CONFIRM_SECONDS, ObservedDeath
from tests.gateway.conftest import reference

COPY = CopyRoute("copy-1", "openai_http", "http://a")
BOT, HIVE = reference("acme", "bot"), reference("umbrella", "hive")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_everything_in_flight_is_suspected_and_marked_by_whether_it_completed() -> None:
    fleet = Fleet(clock=Clock())
    done = fleet.acquire(COPY, BOT, "base")
    done.completed()
    done.release()
    bot, hive, base = (fleet.acquire(COPY, each, "base") for each in (BOT, HIVE, None))
    for slot in (hive, bot, base):
        slot.failed(EngineDied())
        slot.completed()
        slot.release()
    suspects = {BOT.name: True, HIVE.name: False, "": False}
    assert fleet.deaths.take() == [ObservedDeath("base", "copy-1", suspects)]
    assert fleet.deaths.take() == []
    assert fleet.deaths.total == 1


def test_a_second_death_is_one_after_the_first_is_over() -> None:
    clock = Clock()
    fleet = Fleet(clock=clock)
    for _ in range(2):
        fleet.acquire(COPY, BOT, "base").failed(EngineDied())
        clock.now += DEAD_SECONDS + 1
    assert fleet.deaths.total == 2


def test_a_completion_counts_for_the_window() -> None:
    clock = Clock()
    fleet = Fleet(clock=clock)
    fleet.acquire(COPY, BOT, "base").completed()
    clock.now += WINDOW_SECONDS + 1
    fleet.acquire(COPY, BOT, "base").failed(EngineDied())
    assert fleet.deaths.take()[0].suspects == {BOT.name: False}


def test_a_broken_connection_is_a_death_once_the_process_is_found_to_have_ended() -> None:
    clock = Clock()
    fleet = Fleet(clock=clock)
    copy, slot = fleet.copy("copy-1"), fleet.acquire(COPY, BOT, "base")
    slot.failed(UpstreamBroken("gone"))
    slot.release()
    assert fleet.deaths.take() == []
    copy.restarted()
    assert fleet.deaths.take() == [ObservedDeath("base", "copy-1", {BOT.name: False})]
    copy.restarted()
    assert fleet.deaths.take() == []


def test_a_broken_connection_to_a_living_process_is_no_death() -> None:
    clock = Clock()
    fleet = Fleet(clock=clock)
    copy = fleet.copy("copy-1")
    fleet.acquire(COPY, BOT, "base").failed(UpstreamBroken("gone"))
    copy.answered()
    copy.restarted()
    fleet.acquire(COPY, BOT, "base").failed(UpstreamBroken("gone"))
    clock.now += CONFIRM_SECONDS + 1
    copy.restarted()
    assert fleet.deaths.total == 0


def test_a_process_that_operators_may_have_ended_suspects_only_models_that_never_completed() -> None:
    fleet = Fleet(clock=Clock())
    fleet.acquire(COPY, BOT, "base").completed()
    fleet.acquire(COPY, HIVE, "base").failed(UpstreamBroken("gone"))
    fleet.copy("copy-1").restarted()
    assert fleet.deaths.take() == [ObservedDeath("base", "copy-1", {HIVE.name: False})]


def test_a_proxy_in_place_of_the_server_is_no_death_and_keeps_the_broken_connection() -> None:
    clock = Clock()
    fleet = Fleet(clock=clock)
    fleet.acquire(COPY, BOT, "base").failed(UpstreamBroken("it broke"))
    fleet.copy("copy-1").away()
    assert not fleet.copy("copy-1").ready
    assert fleet.deaths.take() == []
    fleet.deaths.process_ended("copy-1")
    assert fleet.deaths.take() == [ObservedDeath("base", "copy-1", {BOT.name: False})]


def test_a_broken_connection_of_long_ago_hides_no_later_one() -> None:
    clock = Clock()
    fleet = Fleet(clock=clock)
    fleet.deaths.broke("copy-1", "base", [HIVE.name])
    clock.now += CONFIRM_SECONDS + 1
    fleet.deaths.broke("copy-1", "base", [BOT.name])
    fleet.deaths.process_ended("copy-1")
    assert fleet.deaths.take() == [ObservedDeath("base", "copy-1", {BOT.name: False})]


def test_a_death_that_the_server_tells_suspects_what_broke_before_it() -> None:
    fleet = Fleet(clock=Clock())
    fleet.deaths.broke("copy-1", "base", [HIVE.name])
    fleet.deaths.engine_died("copy-1", "base", [])
    assert fleet.deaths.take() == [ObservedDeath("base", "copy-1", {HIVE.name: False})]


def test_a_death_without_requests_is_not_counted() -> None:
    fleet = Fleet(clock=Clock())
    fleet.copy("copy-1").engine_died()
    assert (fleet.deaths.take(), fleet.deaths.total) == ([], 0)
