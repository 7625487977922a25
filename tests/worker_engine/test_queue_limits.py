"""Places in the queue: bounded in all and by tenant, with a realistic retry-after."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from worker_engine.errors import TooManyRequests, Unavailable
from worker_engine.queue_limits import MAX_RETRY_AFTER, QueueLimits


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_all_places_and_those_of_one_tenant() -> None:
    limits = QueueLimits(running=2, waiting=3, waiting_per_tenant=1)
    assert limits.most_at_once == 3, "one tenant's places bound one request"
    assert QueueLimits(running=2, waiting=1, waiting_per_tenant=9).most_at_once == 3
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(limits.slot("a"))
        with pytest.raises(TooManyRequests, match="3 requests"), limits.slot("a"):
            pass
        for tenant in "bc":
            stack.enter_context(limits.slot(tenant))
        assert not limits.empty.is_set()
        for tenant in "abd":
            with pytest.raises(Unavailable, match="full"), limits.slot(tenant):
                pass
        assert (limits.num_pending, limits.num_refused) == (5, 4)
    assert limits.num_pending == 0
    assert limits.empty.is_set()
    assert not limits._by_tenant, "tenants without requests are held"
    with limits.slot("a"):
        with limits.slot("b"):
            pass
        assert not limits.empty.is_set(), "one is left"


def test_the_time_of_requests_is_summed_up() -> None:
    clock = Clock()
    clock.now = 100.0
    limits = QueueLimits(running=2, waiting=2, waiting_per_tenant=2, clock=clock)
    clock.now = 103.0
    assert (limits.request_seconds, limits.age) == (0.0, 3.0)
    with limits.slot("a"):
        clock.now = 104.0
        with limits.slot("b"):
            clock.now = 106.0
            assert limits.request_seconds == 5.0, "also of those that are here"
        clock.now = 106.5
    clock.now = 200.0
    assert (limits.request_seconds, limits.age) == (5.5, 100.0)


@pytest.mark.parametrize(("seconds_each", "expected"), [(0.001, 1), (1.0, 5), (1000.0, MAX_RETRY_AFTER)])
def test_retry_after_follows_the_rate_of_late(seconds_each: float, expected: int) -> None:
    clock = Clock()
    limits = QueueLimits(running=0, waiting=100, waiting_per_tenant=100, clock=clock)
    for _ in range(100):
        with limits.slot("a"):
            clock.now += seconds_each
    with ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(limits.slot("a"))
        with pytest.raises(Unavailable) as refused, limits.slot("b"):
            pass
    assert refused.value.retry_after == expected


def test_an_unknown_rate_says_one_second() -> None:
    limits = QueueLimits(running=0, waiting=0, waiting_per_tenant=0)
    with pytest.raises(Unavailable) as refused, limits.slot("a"):
        pass
    assert refused.value.retry_after == 1


def retry_after(limits: QueueLimits) -> int:
    """Return the retry-after of a request that finds all places taken."""
    with ExitStack() as stack:
        for _ in range(limits.most_at_once):
            stack.enter_context(limits.slot("a"))
        with pytest.raises(Unavailable) as refused, limits.slot("b"):
            pass
    assert refused.value.retry_after is not None
    return refused.value.retry_after


def ended(limits: QueueLimits, clock: Clock, count: int, seconds_each: float) -> None:
    for _ in range(count):
        with limits.slot("a"):
            clock.now += seconds_each


def test_a_few_ends_tell_a_rate() -> None:
    clock = Clock()
    limits = QueueLimits(running=0, waiting=100, waiting_per_tenant=100, clock=clock)
    ended(limits, clock, 3, 4.0)
    # Three ends in the eight seconds since the first, and a twentieth of the places are five.
    assert retry_after(limits) == 14


def test_ends_at_one_moment_tell_no_rate() -> None:
    limits = QueueLimits(running=0, waiting=100, waiting_per_tenant=100, clock=Clock())
    ended(limits, Clock(), 3, 0.0)
    assert retry_after(limits) == 1


def test_a_rate_falls_while_nothing_ends() -> None:
    clock = Clock()
    limits = QueueLimits(running=0, waiting=100, waiting_per_tenant=100, clock=clock)
    ended(limits, clock, 64, 0.1)
    clock.now += 640
    # 64 ends in 646 s: five places take 51 s.
    assert retry_after(limits) == 51


def test_only_the_newest_ends_count() -> None:
    clock = Clock()
    limits = QueueLimits(running=0, waiting=100, waiting_per_tenant=100, clock=clock)
    ended(limits, clock, 200, 100.0)
    ended(limits, clock, 64, 0.1)
    assert retry_after(limits) == 1
