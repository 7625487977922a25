"""The rule by which deaths of engines are attributed to adapters."""

from __future__ import annotations

from dataclasses import replace

import pytest

from contracts.quarantine import Quarantine
from gateway.routing.quarantine.attribution import (
    DEAD_ANSWERS_SECONDS,
    FIRST_SECONDS,
    MOST_SECONDS,
    REMEMBER_SECONDS,
    SAME_DEATH_SECONDS,
    WINDOW_SECONDS,
    Death,
    points_by_copy,
    quarantines,
    with_death,
)

PROVEN, NEW = True, False


def deaths(*suspects: dict[str, bool], at: float = 1000.0) -> list[Death]:
    """Deaths of as many copies, a second apart."""
    return [Death(f"copy-{number}", at + number, each) for number, each in enumerate(suspects, 1)]


def held(found: list[Death], earlier: dict[str, Quarantine] | None = None, now: float = 1100.0) -> list[str]:
    return [each.adapter for each in quarantines("base", found, earlier or {}, now=now)]


@pytest.mark.parametrize(
    ("suspects", "number"),
    [
        ({"k": NEW}, 2),
        ({"k": NEW, "": NEW}, 4),
        ({"k": NEW, "": PROVEN, "a": PROVEN, "b": PROVEN}, 2),
        ({"k": PROVEN}, 4),
        ({"k": PROVEN, "": PROVEN}, 8),
    ],
    ids=["alone", "with_base", "among_proven", "proven_alone", "all_proven"],
)
def test_an_adapter_is_held_back_after_this_number_of_copies(suspects: dict[str, bool], number: int) -> None:
    assert "k" not in held(deaths(*[suspects] * (number - 1)))
    assert "k" in held(deaths(*[suspects] * number))


def test_the_base_model_is_never_held_back() -> None:
    assert held(deaths(*[{"": NEW}] * 9)) == []


def test_adapters_that_were_in_flight_beside_the_cause_are_not_held_back() -> None:
    # Each death has another innocent adapter in flight that is as new as the cause.
    found = deaths(*({"k": NEW, f"a{number}": NEW} for number in range(4)))
    assert held(found) == ["k"]


def test_deaths_of_one_copy_count_once() -> None:
    found = [Death("copy-1", 1000.0 + 60 * number, {"k": NEW}) for number in range(5)]
    assert points_by_copy(found, "k", since=0.0) == {"copy-1": 1.0}
    assert held(found) == []


def test_reports_of_several_gateways_about_one_death_unite_their_suspects() -> None:
    first, second = Death("copy-1", 1000.0, {"a": NEW}), Death("copy-1", 1001.0, {"k": NEW, "a": PROVEN})
    united = with_death(with_death([], first), second)
    assert united == [replace(first, suspects={"a": PROVEN, "k": NEW})]
    # The dead engine's later answers suspect nobody.
    late = Death("copy-1", 1000.0 + SAME_DEATH_SECONDS + 1, {"b": NEW})
    assert with_death(united, late) == united
    again = Death("copy-1", 1000.0 + DEAD_ANSWERS_SECONDS + 1, {"b": NEW})
    assert with_death(united, again) == [*united, again]


def test_deaths_before_the_window_are_forgotten() -> None:
    old, new = Death("copy-1", 1000.0, {"k": NEW}), Death("copy-2", 1001.0 + WINDOW_SECONDS, {"k": NEW})
    assert with_death([old], new) == [new]


def test_an_adapter_that_was_held_back_before_needs_one_copy_and_waits_twice_as_long() -> None:
    first = next(quarantines("base", deaths({"k": NEW}, {"k": NEW}), {}, now=1100.0))
    assert (first.until - first.at, first.times) == (FIRST_SECONDS, 1)
    assert first.copies == ("copy-1", "copy-2")
    after = first.until + 1
    # The deaths of the first time do not count again.
    assert held(deaths({"k": NEW}, {"k": NEW}), {"k": first}, now=after) == []
    second = next(quarantines("base", deaths({"k": NEW}, at=after), {"k": first}, now=after + 2))
    assert (second.until - second.at, second.times) == (2 * FIRST_SECONDS, 2)
    many = replace(second, times=20)
    longest = next(quarantines("base", deaths({"k": NEW}, at=9000.0), {"k": many}, now=9002.0))
    assert longest.until - longest.at == MOST_SECONDS


def test_while_held_back_and_a_day_after_nothing_is_added() -> None:
    first = Quarantine("base", "k", 1000.0, 1600.0, 1, ("copy-1", "copy-2"))
    assert held(deaths({"k": NEW}, at=1100.0), {"k": first}, now=1200.0) == []
    later = first.until + REMEMBER_SECONDS + 1
    assert held(deaths({"k": NEW}, at=later), {"k": first}, now=later + 2) == []


def test_a_released_adapter_begins_anew() -> None:
    released = Quarantine("base", "k", 1050.0, 1050.0, 0, ("copy-1", "copy-2"))
    assert held(deaths({"k": NEW}, {"k": NEW}), {"k": released}) == []
    assert held(deaths({"k": NEW}, at=1060.0), {"k": released}) == []
    assert held(deaths({"k": NEW}, {"k": NEW}, at=1060.0), {"k": released}) == ["k"]
