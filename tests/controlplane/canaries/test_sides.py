"""Totals of a rollout's two sides are cached when the query is slow."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator

import pytest

from controlplane.canaries import sides
from controlplane.canaries.sides import Side, rollout_sides
from controlplane.deployments.models import DeploymentRollout


class Clock:
    """A clock and a query: reading both sides takes `seconds`, and each read finds one more request."""

    def __init__(self) -> None:
        self.now, self.seconds, self.looks = 1000.0, 0.0, 0

    def monotonic(self) -> float:
        return self.now

    def side(self, _: DeploymentRollout, side: str) -> Side:
        self.now += self.seconds / 2
        self.looks += 1
        return Side("new" if side == "new" else "old", (), self.looks, 0, 0, 0, None, None)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    made = Clock()
    monkeypatch.setattr(sides, "_CHEAP_S", 0.25)
    monkeypatch.setattr(sides, "time", made)
    monkeypatch.setattr(sides, "_side", made.side)
    yield made
    sides._cache.clear()


@pytest.fixture
def rollout() -> DeploymentRollout:
    return DeploymentRollout(
        pk=7, created_at=dt.datetime(2026, 1, 1, tzinfo=dt.UTC), copies={"new": ["a"], "old": ["b"]}
    )


def test_a_cheap_look_is_always_new(clock: Clock, rollout: DeploymentRollout) -> None:
    clock.seconds = 0.2
    for number in (1, 2, 3):
        rollout_sides(rollout=rollout)
        assert clock.looks == 2 * number


def test_a_long_look_is_told_for_twenty_times_as_long(clock: Clock, rollout: DeploymentRollout) -> None:
    clock.seconds = 3.0
    first = rollout_sides(rollout=rollout)
    clock.now += 59.0
    assert rollout_sides(rollout=rollout) == first
    clock.now += 2.0
    assert rollout_sides(rollout=rollout) != first
    assert clock.looks == 4


@pytest.mark.parametrize(
    "change",
    [
        lambda rollout: rollout.copies.update(new=["a", "c"]),
        lambda rollout: setattr(rollout, "ended_at", dt.datetime(2026, 1, 2, tzinfo=dt.UTC)),
    ],
)
def test_another_copy_or_the_end_is_looked_at_at_once(
    clock: Clock, rollout: DeploymentRollout, change: Callable[[DeploymentRollout], None]
) -> None:
    clock.seconds = 3.0
    first = rollout_sides(rollout=rollout)
    change(rollout)
    assert rollout_sides(rollout=rollout) != first


def test_a_look_that_fails_is_taken_anew(
    clock: Clock, rollout: DeploymentRollout, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock.seconds = 3.0
    first = rollout_sides(rollout=rollout)
    clock.now += 61.0

    def away(*_: object) -> Side:
        raise OSError("the database is away")

    with monkeypatch.context() as context:
        context.setattr(sides, "_side", away)
        with pytest.raises(OSError, match="away"):
            rollout_sides(rollout=rollout)
    assert rollout_sides(rollout=rollout) != first


def test_who_looks_meanwhile_is_told_what_was_there(
    clock: Clock, rollout: DeploymentRollout, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock.seconds = 3.0
    first, told = rollout_sides(rollout=rollout), []
    clock.now += 61.0

    def meanwhile(of: DeploymentRollout, side: str) -> Side:
        told.append(rollout_sides(rollout=of))
        return clock.side(of, side)

    monkeypatch.setattr(sides, "_side", meanwhile)
    assert rollout_sides(rollout=rollout) != first
    assert told == [first, first]
