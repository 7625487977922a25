"""Decode steps of one adapter are timed from launch to launch, without idle time or merging."""

from __future__ import annotations

from worker_engine.adapters.merge_timings import MergeTimings, StepTotals


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_steps_are_timed_from_launch_to_launch() -> None:
    clock = Clock()
    timings = MergeTimings(clock)
    for at, requests, merged in (
        (0.0, {"a", "b"}, False),
        (0.3, {"a", "b"}, False),  # ends a step of 0.3 s and 2 rows
        (0.5, {"a"}, True),  # ends one of 0.2 s and 2 rows
        (0.6, {"a"}, True),  # ends a merged one of 0.1 s and 1 row
        (0.8, {"a", "c"}, None),  # ends a merged one of 0.2 s
        (1.8, {"a", "c"}, True),  # the step that ends was not to be timed
        (9.0, {"d"}, True),  # no request goes on: the engine was idle
    ):
        clock.now = at
        timings.launched(requests, merged=merged)
    assert (timings.base.steps, timings.base.rows, round(timings.base.seconds, 6)) == (2, 4, 0.5)
    assert (timings.merged.steps, timings.merged.rows, round(timings.merged.seconds, 6)) == (2, 2, 0.3)


def test_the_mean_of_no_step_is_unknown() -> None:
    assert StepTotals().mean_ms is None
    assert StepTotals(4, 8, 0.1).mean_ms == 25.0
