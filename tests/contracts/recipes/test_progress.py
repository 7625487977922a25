"""A job prints progress lines in a stable format."""

from __future__ import annotations

import io
import json
import os
from typing import Any

import pytest

from contracts.recipes.progress import (
    EXIT_STATUS,
    Cancelled,
    Code,
    JobError,
    Phase,
    ProgressError,
    Reporter,
    parse_line,
)

PHASES = (Phase("first", 1), Phase("second", 3))


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def events(out: io.StringIO) -> list[dict[str, Any]]:
    return [parse_line(line) for line in out.getvalue().splitlines()]


def test_percent_and_eta_are_the_whole_jobs() -> None:
    out, clock = io.StringIO(), Clock()
    reporter = Reporter(out, PHASES, clock)
    reporter.phase("first")
    clock.now = 10.0
    reporter.progress(0.5, "half of a quarter")
    reporter.phase("second")
    clock.now = 40.0
    reporter.progress(1 / 3)
    told = [(event["percent"], event["eta_seconds"]) for event in events(out) if event["event"] == "progress"]
    assert told == [(12.5, 70.0), (50.0, 40.0)]
    assert [(event["step"], event["steps"]) for event in events(out) if event["event"] == "phase"] == [
        (1, 2),
        (2, 2),
    ]


def test_work_of_an_earlier_run_does_not_shorten_the_eta() -> None:
    out, clock = io.StringIO(), Clock()
    reporter = Reporter(out, (Phase("first", 1), Phase("second", 1)), clock)
    reporter.phase("first")
    reporter.already()
    reporter.phase("second")
    clock.now = 60.0
    reporter.progress(0.5)
    assert events(out)[-1]["eta_seconds"] == 60.0


def test_phases_of_one_name_come_one_after_another() -> None:
    out = io.StringIO()
    reporter = Reporter(out, PHASES * 2)
    for name in ("first", "first", "second"):
        reporter.phase(name)
    assert [event["step"] for event in events(out)] == [1, 3, 4]


def test_percent_never_goes_back_and_lines_are_few() -> None:
    out, clock = io.StringIO(), Clock()
    reporter = Reporter(out, PHASES, clock)
    reporter.phase("second")
    for step in range(1000):
        clock.now = step / 1000
        reporter.progress(step % 100 / 100)
    told = [event["percent"] for event in events(out) if event["event"] == "progress"]
    assert told == sorted(told)
    assert len(told) <= 6


def test_nobody_who_reads_cancels() -> None:
    read, write = os.pipe()
    out = os.fdopen(write, "w")
    os.close(read)
    reporter = Reporter(out, PHASES)
    with pytest.raises(Cancelled):
        reporter.phase("first")
    reporter.error(JobError(Code.CANCELLED, "nobody hears it"))
    with pytest.raises(BrokenPipeError):
        out.close()


def test_every_code_has_a_status_of_its_own() -> None:
    assert set(EXIT_STATUS) == set(Code)
    assert len(set(EXIT_STATUS.values())) == len(Code)
    assert all(0 < status < 126 for status in EXIT_STATUS.values())


def test_an_error_tells_code_and_reasons() -> None:
    out = io.StringIO()
    Reporter(out, PHASES).error(JobError(Code.OUT_OF_DISK, "full", [{"code": "a", "text": "b"}]))
    [event] = events(out)
    assert (event["code"], event["resumable"], event["reasons"]) == (
        "out_of_disk",
        True,
        [{"code": "a", "text": "b"}],
    )


@pytest.mark.parametrize(
    "line",
    [
        "",
        "no json",
        "[]",
        "{}",
        '{"event": "greeting"}',
        '{"event": "phase", "phase": "x"}',
        json.dumps({"event": "error", "code": "mood", "message": "", "resumable": True, "reasons": []}),
        '{"event": "log", "level": "info", "message": "' + "x" * (1 << 20) + '"}',
        "[" * 100_000,
    ],
)
def test_lines_that_are_no_events_are_refused(line: str) -> None:
    with pytest.raises(ProgressError):
        parse_line(line)
