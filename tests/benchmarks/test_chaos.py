"""The chaos run in small: every kind of process killed under load; and that its judge sees what is wrong."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.chaos.clients import StreamRecord
from benchmarks.chaos.database import fresh_database
from benchmarks.chaos.plant import ReportedUsage
from benchmarks.chaos.reconcile import Row, reconcile
from benchmarks.chaos.run import run
from benchmarks.chaos.worker import Relay

pytestmark = pytest.mark.slow


@pytest.mark.timeout(480)
def test_every_stream_that_was_seen_is_billed_once(tmp_path: Path) -> None:
    with fresh_database("", tmp_path) as url:
        outcome = asyncio.run(run(tmp_path, url, streams=150, kills=6, at_once=24, seed=7))
    assert outcome.faults == []
    assert outcome.kills == {"gateway": 2, "upstream": 1, "ingester": 1, "redis": 1, "emptied redis": 1}
    assert outcome.verdict.streams >= 120
    assert outcome.verdict.ends["whole"] > 20
    assert outcome.verdict.ends["cut"] > 0, "the kills of gateways hit streams"
    assert outcome.verdict.once == outcome.verdict.streams


def observed_stream(
    tokens: int, *, end: str = "whole", ended: float = 10.0, replayed: bool = False
) -> StreamRecord:
    """Tokens came every 0.1 s, the last at `ended`."""
    times = [ended - 0.1 * (tokens - 1 - index) for index in range(tokens)]
    return StreamRecord("r", 0, 20, times[0] - 0.1, replayed, times, end, ended)


def row(tokens: int, *, status: str = "ok", attempt: int = 1, prompt: int = 11) -> Row:
    return Row("r", attempt, status, prompt, 5, tokens, False)


@pytest.mark.parametrize(
    ("item", "rows", "generated", "fault"),
    [
        (observed_stream(20), [row(20)], 20, ""),
        (observed_stream(20), [row(0, attempt=1, status="error"), row(20, attempt=2)], 20, ""),
        (observed_stream(20), [], 20, "never"),
        (observed_stream(20), [row(0)], 20, "never"),
        (observed_stream(20), [row(20), row(20, attempt=2)], 40, "twice"),
        (observed_stream(20), [row(20)], 19, "over"),
        (observed_stream(20), [row(19)], 20, "under"),
        (observed_stream(20), [row(20, status="error")], 20, "unlike"),
        (observed_stream(20), [row(20, prompt=12)], 20, "unlike"),
        (observed_stream(5, end="hang-up"), [row(7, status="cancelled")], 9, ""),
        (observed_stream(5, end="hang-up"), [row(4, status="cancelled")], 9, "under"),
        (observed_stream(5, end="hang-up", ended=9.8), [row(4, status="interrupted")], 9, ""),
        (observed_stream(5, end="error"), [row(5, status="error")], 5, ""),
        (observed_stream(15, end="cut"), [row(8, status="interrupted")], 15, ""),
        (observed_stream(15, end="cut"), [row(2, status="interrupted")], 15, "under"),
        (observed_stream(5, end="cut", ended=10.6), [row(1, status="interrupted")], 15, "under"),
        (observed_stream(9, end="cut", ended=10.6), [row(1, status="interrupted")], 15, ""),
        (observed_stream(15, end="cut", ended=3.0), [row(8, status="interrupted")], 15, "under"),
        (observed_stream(20, replayed=True), [row(20)], 20, "twice"),
        (observed_stream(20, replayed=True), [], 0, ""),
    ],
)
def test_the_judge_tells_right_from_wrong(
    item: StreamRecord, rows: list[Row], generated: int, fault: str
) -> None:
    """The gateway was killed at 9.9 s."""
    verdict = reconcile([item], rows, {"r": generated}, [[9.9]])
    assert [name for name in ("twice", "never", "over", "under", "unlike") if getattr(verdict, name)] == (
        [fault] if fault else []
    )


@pytest.mark.parametrize(
    ("told", "rows", "wrong"),
    [
        (ReportedUsage(46, 16, 12), [Row("r", 1, "ok", 46, 16, 12, False)], 0),
        (ReportedUsage(46, 16, 12), [Row("r", 1, "ok", 46, 0, 12, False)], 1),
        (ReportedUsage(46, 16, 13), [Row("r", 1, "ok", 46, 16, 12, False)], 1),
    ],
)
def test_a_workers_answer_is_held_against_what_the_worker_told(
    told: ReportedUsage, rows: list[Row], wrong: int
) -> None:
    """The stream ended early, before the 20 tokens that the request asked for."""
    item = replace(observed_stream(12), asked=20)
    verdict = reconcile([item], rows, {"r": 13}, [[]], {"r": told})
    assert len(verdict.wrong) == wrong


def test_usage_is_booked_as_more_tokens(tmp_path: Path) -> None:
    relay = Relay("http://127.0.0.1:1", str(tmp_path / "ledger"))
    cached = b'"prompt_tokens_details": {"cached_tokens": 3}'
    usage = b'"usage": {"prompt_tokens": 9, "completion_tokens": %d, ' + cached + b"}"
    booked = relay.book("r", b"data: {" + usage % 2 + b"}\n\ndata: {" + usage % 5 + b"}\n\n", 0)
    assert relay.book("r", b"data: [DONE]\n\n", booked) == booked
    relay.book("r", b"{" + (usage % 8).replace(b" ", b"") + b"}", booked)
    assert (tmp_path / "ledger").read_text() == "r 5 9 3 5\nr 3 9 3 8\n"
