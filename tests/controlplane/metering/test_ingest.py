"""Each usage event counts once, whatever is delivered twice, late or broken."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import time
import uuid

import pytest
import redis
from django.db import OperationalError, connection
from django.db.models import Sum

from contracts.redis_names import USAGE_GROUP, USAGE_STREAM
from contracts.usage_event import ADDED, UsageEvent
from controlplane.metering import ingest, services
from controlplane.metering.event_rows import EventRow, StreamEntry, event_row
from controlplane.metering.ingest import UsageIngester
from controlplane.metering.models import DeadUsageEvent, UsageEventRow, UsageHour, UsageRollup
from controlplane.metering.services import usage_ingest, usage_write
from tests.controlplane.known import known

pytestmark = pytest.mark.django_db(transaction=True)
NOW = dt.timedelta(0)


@pytest.fixture(autouse=True)
def names(db: None) -> None:
    known("tiny-base", tenants=("acme", "globex"))


def uuid7_at(moment: dt.datetime) -> str:
    value = int(moment.timestamp() * 1000) << 80 | uuid.uuid4().int & (1 << 80) - 1
    value = value & ~(0xF << 76) | 0x7 << 76
    return str(uuid.UUID(int=value & ~(0x3 << 62) | 0x2 << 62))


def usage_event(
    request_id: str = "r1", *, day: dt.date = dt.date(2026, 3, 1), **changes: object
) -> UsageEvent:
    moment = dt.datetime.combine(day, dt.time(12), dt.UTC)
    event = UsageEvent(
        event_id=uuid7_at(moment),
        tenant="acme",
        project="default",
        key_id="k1",
        request_id=request_id,
        attempt=1,
        requested_model="tiny-base",
        alias="",
        arm="",
        adapter="",
        base_model="tiny-base",
        operation="chat",
        backend="worker",
        endpoint="copy-1",
        status="ok",
        error_code="",
        prompt_tokens=10,
        cached_tokens=4,
        completion_tokens=3,
        reasoning_tokens=0,
        images=0,
        estimated=False,
        ttft_ms=5.0,
        itl_ms=3.0,
        duration_ms=9.0,
        started_at=int(moment.timestamp() * 1000),
        gateway_id="g1",
    )
    return dataclasses.replace(event, **changes)  # type: ignore[arg-type]


def stream_id(number: int) -> str:
    """Return the stream id of an entry that arrives now; no event is later than its arrival."""
    return f"{time.time_ns() // 1_000_000}-{number}"


def send(redis_url: str, *texts: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        for text in texts:
            client.xadd(USAGE_STREAM, {"event": text})


def drain(redis_url: str) -> None:
    ingester = UsageIngester(redis_url, claim_idle=NOW)
    while ingester.ingest_abandoned() or ingester.ingest_new():
        pass
    ingester.close()


@pytest.mark.parametrize("fails", ["write", "acknowledge", "read"])
def test_what_an_outage_left_unwritten_is_written_before_it_would_be_claimed(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    send(redis_url, *(usage_event(f"r{number}").to_json() for number in range(6)))
    monkeypatch.setattr(ingest, "_BATCH", 2)
    # Nothing is claimed in the test's time.
    ingester = UsageIngester(redis_url, claim_idle=dt.timedelta(days=1))
    failing = {
        "write": (ingest, "usage_write", OperationalError),
        "acknowledge": (ingester._redis, "pipeline", redis.ConnectionError),
        "read": (ingester, "_read_new", redis.ConnectionError),
    }
    target, name, error = failing[fails]
    calls = 0
    whole = getattr(target, name)

    def second_fails(*args: object, **kwargs: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise error
        return whole(*args, **kwargs)

    monkeypatch.setattr(target, name, second_fails)
    with pytest.raises(error):
        ingester.run(lambda: False)
    ingester.run(lambda: UsageEventRow.objects.count() == 6)
    assert rollup_sums() == (6, 60, 24, 18)
    with redis.Redis.from_url(redis_url) as client:
        assert client.xlen(USAGE_STREAM) == 0
    ingester.close()


SUMS = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens")


def rollup_sums() -> tuple[int | None, ...]:
    """Return the sums over all days; those over all hours must be equal."""
    days, hours = (
        sums.objects.aggregate(**{name: Sum(name) for name in sums.SUMS}) for sums in (UsageRollup, UsageHour)
    )
    assert days == hours
    return tuple(days[name] for name in SUMS)


def test_events_become_rows_and_sums_and_leave_the_stream(redis_url: str) -> None:
    send(redis_url, *(usage_event(f"r{number}").to_json() for number in range(5)))
    drain(redis_url)
    assert UsageEventRow.objects.count() == 5
    assert UsageRollup.objects.count() == 1
    assert rollup_sums() == (5, 50, 20, 15)
    with redis.Redis.from_url(redis_url) as client:
        assert client.xlen(USAGE_STREAM) == 0
        assert client.xpending(USAGE_STREAM, USAGE_GROUP)["pending"] == 0


def test_duplicates_count_once_within_and_across_batches(redis_url: str) -> None:
    event = usage_event()
    send(redis_url, event.to_json(), event.to_json())
    drain(redis_url)
    send(redis_url, event.to_json(), dataclasses.replace(event, attempt=2).to_json())
    drain(redis_url)
    assert UsageEventRow.objects.count() == 2
    assert rollup_sums() == (2, 20, 8, 6)


def test_late_and_out_of_order_events_count_on_their_own_day(redis_url: str) -> None:
    days = [dt.date(2026, 3, 2), dt.date(2026, 2, 27), dt.date(2026, 3, 2), dt.date(2026, 2, 27)]
    for number, day in enumerate(days):
        send(redis_url, usage_event(f"r{number}", day=day).to_json())
        drain(redis_url)
    assert dict(UsageRollup.objects.values_list("day", "requests")) == {days[0]: 2, days[1]: 2}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "not JSON"),
        ("[]", "must be an object"),
        (json.dumps({"tenant": "acme"}), "lacks or does not know"),
        (usage_event(prompt_tokens=-1).to_json(), "prompt_tokens must be 0 or more"),
        (usage_event(prompt_tokens=1 << 80).to_json(), "prompt_tokens must be 0 or more"),
        (usage_event(cached_tokens=11).to_json(), "must not exceed"),
        (usage_event(status="fine").to_json(), "status must be one of"),
        (usage_event(event_id=str(uuid.uuid4())).to_json(), "version 7"),
        (usage_event(event_id="x").to_json(), "must be a UUID"),
        (usage_event(request_id="a\0b").to_json(), "without NUL"),
        (usage_event(tenant="t" * 201).to_json(), "at most 200"),
        (usage_event(request_id="a\ud800b").to_json(), "without NUL"),
        (usage_event(duration_ms=float("inf")).to_json(), "finite"),
        (usage_event(duration_ms=float("nan")).to_json(), "finite"),
        (usage_event(duration_ms=10**400).to_json(), "finite"),
        ("[" * 100_000, "recursion"),
    ],
)
def test_a_broken_event_is_kept_with_its_reason_and_stops_no_other(
    redis_url: str, text: str, reason: str
) -> None:
    send(redis_url, text, usage_event("good").to_json())
    drain(redis_url)
    assert reason in DeadUsageEvent.objects.get().reason
    assert [row.request_id for row in UsageEventRow.objects.all()] == ["good"]


def test_an_entry_without_the_field_is_dead(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        client.xadd(USAGE_STREAM, {"other": "x"})
    drain(redis_url)
    assert DeadUsageEvent.objects.count() == 1


def test_entries_of_a_consumer_that_died_are_claimed(redis_url: str) -> None:
    send(redis_url, usage_event().to_json())
    with redis.Redis.from_url(redis_url) as client:
        client.xgroup_create(USAGE_STREAM, USAGE_GROUP, id="0")
        client.xreadgroup(USAGE_GROUP, "dead-consumer", {USAGE_STREAM: ">"})
    ingester = UsageIngester(redis_url, claim_idle=NOW)
    assert ingester.ingest_new() == 0
    assert ingester.ingest_abandoned() == 1
    ingester.close()
    assert rollup_sums() == (1, 10, 4, 3)


def test_a_crash_between_commit_and_acknowledgement_counts_once(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(redis_url, usage_event().to_json())
    real = usage_write

    def commit_then_die(**arguments: object) -> int:
        real(**arguments)  # type: ignore[arg-type]
        raise OperationalError("killed here")

    ingester = UsageIngester(redis_url, claim_idle=NOW)
    monkeypatch.setattr(ingest, "usage_write", commit_then_die)
    with pytest.raises(OperationalError):
        ingester.ingest_new()
    monkeypatch.undo()
    assert ingester.ingest_abandoned() == 1
    ingester.close()
    assert rollup_sums() == (1, 10, 4, 3)


def test_a_redis_that_lost_its_data_gets_its_group_again(redis_url: str) -> None:
    ingester = UsageIngester(redis_url, claim_idle=NOW)
    assert ingester.ingest_new() == 0
    with redis.Redis.from_url(redis_url) as client:
        client.flushdb()
    send(redis_url, usage_event().to_json())
    assert ingester.ingest_new() == 1
    ingester.close()


def test_rollups_equal_the_sum_of_rows(redis_url: str) -> None:
    for number in range(30):
        adapter = f"t_acme.a_x.v{number % 3 + 1}.0123456789ab"
        event = usage_event(f"r{number}", adapter=adapter, prompt_tokens=10 + number)
        send(redis_url, event.to_json())
        if number % 7 == 0:
            drain(redis_url)
    drain(redis_url)
    rows = UsageEventRow.objects.aggregate(Sum("prompt_tokens"), Sum("completion_tokens"))
    assert rollup_sums()[1] == rows["prompt_tokens__sum"]
    assert rollup_sums()[3] == rows["completion_tokens__sum"]


def test_an_event_from_the_future_counts_once_on_the_day_it_came(redis_url: str) -> None:
    event = usage_event(day=dt.date(2099, 1, 1))
    send(redis_url, event.to_json())
    drain(redis_url)
    send(redis_url, event.to_json(), dataclasses.replace(event, attempt=2).to_json())
    drain(redis_url)
    today = dt.datetime.now(dt.UTC).date()
    days = UsageEventRow.objects.values_list("day", "attempt")
    assert {attempt for _, attempt in days} == {1, 2}
    assert len(days) == 2
    # The test may run over midnight.
    assert {day for day, _ in days} <= {today, today - dt.timedelta(days=1)}
    assert not DeadUsageEvent.objects.exists()


def test_a_second_delivery_over_midnight_counts_once() -> None:
    event = usage_event(day=dt.date(2099, 1, 1)).to_json().encode()
    late = dt.datetime(2026, 3, 1, 23, 59, 59, tzinfo=dt.UTC)
    for number, moment in enumerate((late, late + dt.timedelta(seconds=5))):
        entry = StreamEntry(f"{int(moment.timestamp() * 1000)}-{number}", event)
        assert usage_ingest(entries=[entry]) == 1 - number
    assert UsageEventRow.objects.get().day == late.date()


@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite takes any value")
def test_what_only_the_database_refuses_is_dead_alone(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lenient(entry: StreamEntry) -> EventRow:
        row = event_row(entry)
        return dataclasses.replace(row, tenant="t" * 300) if row.request_id == "poison" else row

    monkeypatch.setattr(services, "event_row", lenient)
    poison = usage_event("poison").to_json()
    send(redis_url, *(usage_event(f"r{number}").to_json() for number in range(7)), poison)
    drain(redis_url)
    assert UsageEventRow.objects.count() == 7
    assert rollup_sums() == (7, 70, 28, 21)
    assert "the database refuses it" in DeadUsageEvent.objects.get().reason
    with redis.Redis.from_url(redis_url) as client:
        assert client.xlen(USAGE_STREAM) == 0


@pytest.mark.parametrize(("name", "meant"), ADDED.items())
def test_an_event_of_an_older_gateway_counts(name: str, meant: object) -> None:
    """It lacks the fields that were added since."""
    value = json.loads(usage_event().to_json())
    value.pop(name, None)
    text = json.dumps(value).encode()
    assert getattr(event_row(StreamEntry("1-0", text)), name) == meant
    assert getattr(UsageEvent.from_json(text), name) == meant
