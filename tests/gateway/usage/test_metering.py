"""Loss at a kill: a record is on disk before its stream is visible, and streams wait for late records."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import orjson
import pytest

from contracts.usage_event import UsageEvent
from gateway.api.dialect import ApiDialect
from gateway.api.schema import CHAT, Call
from gateway.api.sse import EventStream, UsageView
from gateway.api.usage import estimate_completion
from gateway.observability import Observer
from gateway.observability.exposition import render
from gateway.observability.metrics import Metrics
from gateway.routing import resolve
from gateway.usage import metering
from gateway.usage.metering import Attempt, Meter
from gateway.usage.wal import Wal
from gateway.usage.wal_records import CLOSED, PROGRESS
from tests.gateway.conftest import request_context, route_table
from tests.gateway.observability.conftest import Scrape
from tests.gateway.usage.test_wal import files_at_most, slot, stored
from tests.waiting import eventually


def a_meter(log: Wal) -> Meter:
    return Meter(log, "g", Observer(Metrics(log.folder, adapters=10), (), tracing=None, access_log=False))


def start(meter: Meter) -> Attempt:
    table = route_table("http://127.0.0.1:1")
    resolution = resolve(table, "acme", "base", "someone")
    call = Call(CHAT, "base", True, UsageView.HIDDEN, {"messages": []})
    context = request_context(ApiDialect(call), resolution)
    return meter.start(context, resolution, resolution.copies[0], 1)


def tokens(attempt: Attempt, count: int) -> None:
    attempt.usage.take({"prompt_tokens": 3, "completion_tokens": count})


def on_disk(folder: Path) -> list[tuple[bytes, UsageEvent]]:
    return [(kind, UsageEvent.from_json(data)) for kind, data in stored(folder)]


def test_a_stream_is_on_disk_before_it_is_seen(tmp_path: Path) -> None:
    log = Wal(slot(tmp_path))

    async def work() -> None:
        meter = a_meter(log)
        attempt = start(meter)
        tokens(attempt, 1)
        await meter.before_showing(attempt)
        [(kind, event)] = on_disk(tmp_path)
        assert (kind, event.status, event.completion_tokens) == (PROGRESS, "interrupted", 1)
        tokens(attempt, 2)
        await meter.before_showing(attempt)
        assert len(on_disk(tmp_path)) == 1, "once a stream; the rest is for the half-second's record"
        await meter.record_progress()
        assert on_disk(tmp_path)[-1][1].completion_tokens == 2

    asyncio.run(work())
    log.close()


def test_a_stream_without_usage_is_billed_by_its_text_unless_it_is_forgotten(tmp_path: Path) -> None:
    log = Wal(slot(tmp_path))
    attempt = start(a_meter(log))
    events = EventStream(attempt.usage, UsageView.HIDDEN)
    text = b'data: {"choices":[{"index":0,"delta":{"content":"%s"}}]}\n\n'
    events.feed(text % b"Hello, ")
    attempt.follow(events, 1.0)
    events.feed(text % b"world")
    attempt.follow(events, 2.0)
    event = attempt.event("interrupted")
    assert (event.estimated, event.completion_tokens) == (True, estimate_completion(len("Hello, world")))
    assert event.prompt_tokens == attempt.context.call.prompt_estimate
    attempt.forget()
    event = attempt.event("interrupted")
    assert (event.estimated, event.prompt_tokens, event.completion_tokens) == (False, 0, 0)
    log.close()


@pytest.mark.parametrize("arrivals", [(), ((1, 10.0),), ((4, 10.0), (4, 10.5))])
def test_an_answer_that_comes_at_once_has_no_time_between_tokens(
    tmp_path: Path, arrivals: tuple[tuple[int, float], ...]
) -> None:
    log = Wal(slot(tmp_path))
    attempt = start(a_meter(log))
    for count, now in arrivals:
        attempt.has(count, now)
    assert attempt.event("ok").itl_ms is None
    log.close()


def test_time_between_tokens_is_that_of_the_chunk_divided_by_its_tokens(tmp_path: Path) -> None:
    log = Wal(slot(tmp_path))
    attempt = start(a_meter(log))
    for count, now in ((1, 10.0), (5, 10.2), (5, 10.3), (6, 10.4)):
        attempt.has(count, now)
    found = Scrape(render(tmp_path).decode())
    log.close()
    assert attempt.event("ok").itl_ms == 80.0, "five tokens in 0.4 s after the first"
    assert found.sum("itl_seconds_count", model="base") == 5
    assert found.sum("itl_seconds_sum", model="base") == pytest.approx(0.4)
    assert found.sum("itl_seconds_bucket", model="base", le="0.05") == 4, "four tokens in 0.2 s"


def test_a_checkpoint_follows_the_record_of_every_open_stream(tmp_path: Path) -> None:
    log = Wal(slot(tmp_path))

    async def work() -> None:
        meter = a_meter(log)
        attempt = start(meter)
        tokens(attempt, 1)
        await meter.before_showing(attempt)
        assert log.checkpoint != log.segment
        await meter.record_progress()
        assert log.checkpoint == log.segment, "older segments can be deleted now"
        assert len(on_disk(tmp_path)) == 2
        await meter.record_progress()
        assert len(on_disk(tmp_path)) == 2, "nothing is new"

    asyncio.run(work())
    log.close()


@pytest.fixture
def soon_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record is late after 50 ms."""
    monkeypatch.setattr(metering, "LATE_SECONDS", 0.05)


@pytest.mark.usefixtures("soon_late")
def test_nothing_more_is_seen_while_records_are_late(tmp_path: Path) -> None:
    log = Wal(slot(tmp_path))

    async def work() -> None:
        meter = a_meter(log)
        attempt = start(meter)
        tokens(attempt, 1)
        await meter.before_showing(attempt)
        with files_at_most(0):
            tokens(attempt, 2)
            late = asyncio.create_task(meter.record_progress())
            # Later than the loop's timer that notices the delay.
            await asyncio.sleep(2 * metering.LATE_SECONDS)
            held = asyncio.create_task(meter.before_showing(attempt))
            given_up = asyncio.create_task(meter.before_showing(attempt))
            await asyncio.sleep(0.05)
            assert not held.done()
            # One whose client leaves does not free the others.
            given_up.cancel()
            await asyncio.sleep(0.05)
            assert not held.done()
        await asyncio.wait_for(asyncio.gather(late, held), 60)
        assert on_disk(tmp_path)[-1][1].completion_tokens == 2

    asyncio.run(work())
    log.close()


@pytest.mark.usefixtures("soon_late")
def test_a_stop_while_records_are_late_lets_streams_end(tmp_path: Path) -> None:
    log = Wal(slot(tmp_path))

    async def work() -> None:
        meter = a_meter(log)
        attempt = start(meter)
        await meter.before_showing(attempt)
        with files_at_most(0):
            tokens(attempt, 1)
            running = asyncio.create_task(meter.run())
            # Later than the loop's timer that notices the delay.
            await asyncio.sleep(2 * metering.LATE_SECONDS)
            running.cancel()
            await asyncio.wait_for(meter.before_showing(attempt), 60)

    asyncio.run(work())
    log.close()


@pytest.mark.parametrize("code", ["x" * 100_000, "a\0b", "\ud83d\ude00", "zwei Wörter"])
def test_a_backends_odd_word_does_not_make_an_event_unreadable(tmp_path: Path, code: str) -> None:
    log = Wal(slot(tmp_path))

    async def work() -> None:
        start(a_meter(log)).finish("error", code)
        await log.commit()

    asyncio.run(work())
    log.close()
    [(_, event)] = on_disk(tmp_path)
    assert len(event.error_code) <= 200
    assert event.error_code.isascii()
    assert event.error_code.isprintable()


def test_the_clock_steps_and_nothing_is_lost_or_doubled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Wal(slot(tmp_path))
    real, step = time.time_ns, 0
    monkeypatch.setattr(time, "time_ns", lambda: real() + step)

    async def work() -> None:
        nonlocal step
        meter = a_meter(log)
        for hours in (0, -30, 0, 50, -1, 0):
            attempt = start(meter)
            step = hours * 3_600_000_000_000
            tokens(attempt, 5)
            await meter.before_showing(attempt)
            tokens(attempt, 7)
            attempt.finish("ok")
        await meter.durable()

    asyncio.run(work())
    log.close()
    monkeypatch.undo()
    closed = [orjson.loads(data) for kind, data in stored(tmp_path) if kind == CLOSED]
    assert [event["completion_tokens"] for event in closed] == [7] * 6
    assert len({event["event_id"] for event in closed}) == 6
    assert all(0 <= event["duration_ms"] < 60_000 for event in closed)
    again = Wal(slot(tmp_path))
    assert again.recovered == 0
    again.close()
    eventually(lambda: len([kind for kind, _ in stored(tmp_path) if kind == CLOSED]) == 6)
