"""Places in the queue: bounded in all and by tenant, with an honest word on when to come back."""

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
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(limits.place("a"))
        with pytest.raises(TooManyRequests, match="3 requests"), limits.place("a"):
            pass
        for tenant in "bc":
            stack.enter_context(limits.place(tenant))
        assert not limits.empty.is_set()
        for tenant in "abd":
            with pytest.raises(Unavailable, match="full"), limits.place(tenant):
                pass
        assert (limits.num_pending, limits.num_refused) == (5, 4)
    assert limits.num_pending == 0
    assert limits.empty.is_set()
    with limits.place("a"):
        pass


@pytest.mark.parametrize(("seconds_each", "expected"), [(0.001, 1), (1.0, 5), (1000.0, MAX_RETRY_AFTER)])
def test_retry_after_follows_the_rate_of_late(seconds_each: float, expected: int) -> None:
    clock = Clock()
    limits = QueueLimits(running=0, waiting=100, waiting_per_tenant=100, clock=clock)
    for _ in range(100):
        with limits.place("a"):
            clock.now += seconds_each
    with ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(limits.place("a"))
        with pytest.raises(Unavailable) as refused, limits.place("b"):
            pass
    assert refused.value.retry_after == expected


def test_an_unknown_rate_says_one_second() -> None:
    limits = QueueLimits(running=0, waiting=0, waiting_per_tenant=0)
    with pytest.raises(Unavailable) as refused, limits.place("a"):
        pass
    assert refused.value.retry_after == 1
