"""The circuit breaker over an invented clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.breaker import (
    FAILURES_IN_A_ROW,
    FIRST_WAIT,
    LONGEST_WAIT,
    MIN_REQUESTS,
    WINDOW_SECONDS,
    Breaker,
)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def breaker_of(clock: Clock, chance: float = 1.0) -> Breaker:
    return Breaker(clock=clock, chance=lambda: chance)


def request(breaker: Breaker, *, works: bool) -> None:
    assert breaker.ready
    probe = breaker.begin()
    if works:
        breaker.succeed(probe=probe)
    else:
        breaker.fail(probe=probe)


def opened(clock: Clock, chance: float = 1.0) -> Breaker:
    breaker = breaker_of(clock, chance)
    for _ in range(FAILURES_IN_A_ROW):
        request(breaker, works=False)
    assert breaker.state == "open"
    return breaker


def test_failures_in_a_row_open_it(clock: Clock) -> None:
    breaker = breaker_of(clock)
    for _ in range(10):
        for _ in range(FAILURES_IN_A_ROW - 1):
            request(breaker, works=False)
        for _ in range(2 * FAILURES_IN_A_ROW):
            request(breaker, works=True)
    assert breaker.state == "closed"
    for number in range(FAILURES_IN_A_ROW):
        assert breaker.ready, number
        request(breaker, works=False)
    assert (breaker.state, breaker.ready, breaker.openings) == ("open", False, 1)


def test_a_share_of_failures_opens_it_though_none_follow_each_other(clock: Clock) -> None:
    breaker = breaker_of(clock)
    for number in range(MIN_REQUESTS - 1):
        request(breaker, works=number % 2 == 1)
        assert breaker.state == "closed"
    request(breaker, works=False)
    assert breaker.state == "open"


def test_old_failures_are_forgotten(clock: Clock) -> None:
    breaker = breaker_of(clock)
    for number in range(10 * MIN_REQUESTS):
        clock.now += WINDOW_SECONDS / (MIN_REQUESTS - 2)
        request(breaker, works=number % 2 == 1)
    assert breaker.state == "closed"


def test_one_probe_at_a_time(clock: Clock) -> None:
    breaker = opened(clock)
    clock.now += FIRST_WAIT
    assert (breaker.state, breaker.wait, breaker.ready) == ("half_open", 0, True)
    probe = breaker.begin()
    assert (probe, breaker.ready) == (True, False)
    breaker.release(probe=probe)
    # A probe whose client hung up says nothing: the next may go.
    assert (breaker.state, breaker.ready) == ("half_open", True)
    breaker.succeed(probe=breaker.begin())
    assert (breaker.state, breaker.ready) == ("closed", True)


def test_the_wait_doubles_up_to_its_longest_and_begins_anew(clock: Clock) -> None:
    breaker = opened(clock)
    waits = []
    for _ in range(8):
        waits.append(breaker.wait)
        clock.now += breaker.wait
        request(breaker, works=False)
    assert waits == [1, 2, 4, 8, 16, LONGEST_WAIT, LONGEST_WAIT, LONGEST_WAIT]
    clock.now += breaker.wait
    request(breaker, works=True)
    for _ in range(FAILURES_IN_A_ROW):
        request(breaker, works=False)
    assert breaker.wait == FIRST_WAIT


def test_what_left_before_it_opened_changes_nothing(clock: Clock) -> None:
    breaker = breaker_of(clock)
    earlier = [breaker.begin() for _ in range(4 * FAILURES_IN_A_ROW)]
    for _ in range(FAILURES_IN_A_ROW):
        request(breaker, works=False)
    wait = breaker.wait
    clock.now += wait / 2
    breaker.succeed(probe=earlier.pop())
    breaker.release(probe=earlier.pop())
    while len(earlier) > 1:
        breaker.fail(probe=earlier.pop())
    assert (breaker.state, breaker.wait, breaker.openings) == ("open", wait / 2, 1)
    clock.now += wait / 2
    probe = breaker.begin()
    breaker.release(probe=earlier.pop())
    assert not breaker.ready, "the probe is still out"
    breaker.succeed(probe=probe)
    assert breaker.state == "closed"


@given(st.floats(0, 1), st.lists(st.sampled_from(["ok", "fail", "release", "wait"]), max_size=300))
def test_it_never_sticks_and_never_waits_too_long(chance: float, steps: list[str]) -> None:
    """Whatever happens: after the longest wait a probe may go, and its success closes the breaker."""
    clock = Clock()
    breaker = breaker_of(clock, chance)
    for step in steps:
        if step == "wait":
            clock.now += 0.3
        elif breaker.ready:
            probe = breaker.begin()
            {"ok": breaker.succeed, "fail": breaker.fail, "release": breaker.release}[step](probe=probe)
        assert 0 <= breaker.wait <= LONGEST_WAIT
        assert breaker.state != "open" or breaker.wait > 0
    clock.now += LONGEST_WAIT
    assert breaker.ready
    request(breaker, works=True)
    assert breaker.state == "closed"
