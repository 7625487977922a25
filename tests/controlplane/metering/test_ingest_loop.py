"""`manage.py ingest_usage` as processes: two at once, one killed, Redis away; each event counts once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from django.db import connection

from benchmarks.chaos.database import set_open
from contracts.redis_names import USAGE_GROUP, USAGE_STREAM
from controlplane.metering.models import UsageEventRow
from tests.controlplane.conftest import Start, _database_url
from tests.controlplane.known import known
from tests.controlplane.metering.test_ingest import rollup_sums, usage_event
from tests.controlplane.routes.test_publish_loop import PROMPTLY
from tests.controlplane.valkey import Valkey
from tests.waiting import eventually

pytestmark = pytest.mark.django_db(transaction=True)
EVENTS = 2000


@pytest.fixture(autouse=True)
def names(db: None) -> None:
    known("tiny-base")


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[Valkey]:
    server = Valkey(tmp_path)
    yield server
    server.stop()


def send(url: str, count: int, *, copies: int = 1, start: int = 0) -> None:
    with redis.Redis.from_url(url) as client, client.pipeline(transaction=False) as pipeline:
        for number in range(start, start + count):
            for _ in range(copies):
                adapter = f"t_acme.a_x.v{number % 7 + 1}.0123456789ab"
                pipeline.xadd(USAGE_STREAM, {"event": usage_event(f"r{number}", adapter=adapter).to_json()})
        pipeline.execute()


@pytest.mark.costly("starts ingesters as processes")
def test_two_ingesters_at_once_lose_and_double_nothing(start: Start, redis_url: str, tmp_path: Path) -> None:
    ingesters = [start("manage.py", "ingest_usage") for _ in range(2)]
    with redis.Redis.from_url(redis_url) as client:
        client.xgroup_create(USAGE_STREAM, USAGE_GROUP, id="0", mkstream=True)
        eventually(lambda: len(client.xinfo_consumers(USAGE_STREAM, USAGE_GROUP)) == 2)
        send(redis_url, EVENTS, copies=2)
        eventually(lambda: UsageEventRow.objects.count() == EVENTS)
        eventually(lambda: client.xlen(USAGE_STREAM) == 0)
    assert rollup_sums() == (EVENTS, EVENTS * 10, EVENTS * 4, EVENTS * 3)
    for ingester in ingesters:
        ingester.terminate()
    assert [ingester.wait(PROMPTLY) for ingester in ingesters] == [0, 0]
    assert "Traceback" not in (tmp_path / "log").read_text()


@pytest.mark.costly("starts ingesters as processes")
def test_an_ingester_outlives_redis_and_ends_at_sigterm(start: Start, valkey: Valkey, tmp_path: Path) -> None:
    ingester = start("manage.py", "ingest_usage", redis=valkey.url)
    eventually(lambda: "ingestion is waiting" in (tmp_path / "log").read_text())
    valkey.start()
    send(valkey.url, 5)
    eventually(lambda: UsageEventRow.objects.count() == 5)
    valkey.stop()
    valkey.start()
    send(valkey.url, 5, start=3)
    eventually(lambda: UsageEventRow.objects.count() == 8)
    ingester.terminate()
    assert ingester.wait(PROMPTLY) == 0
    assert rollup_sums() == (8, 80, 32, 24)


@pytest.mark.costly("starts ingesters as processes")
def test_sigterm_ends_it_at_once_while_redis_is_away(start: Start, valkey: Valkey, tmp_path: Path) -> None:
    ingester = start("manage.py", "ingest_usage", redis=valkey.url)
    eventually(lambda: "ingestion is waiting" in (tmp_path / "log").read_text())
    time.sleep(0.5)  # It waits between two attempts by now: the case that must end at once.
    ingester.terminate()
    assert ingester.wait(PROMPTLY) == 0


@pytest.mark.costly("starts ingesters as processes")
def test_a_killed_ingester_loses_and_doubles_nothing(start: Start, redis_url: str) -> None:
    send(redis_url, EVENTS)
    ingester = start("manage.py", "ingest_usage")
    eventually(UsageEventRow.objects.exists)
    ingester.kill()
    ingester.wait()
    with redis.Redis.from_url(redis_url) as client:
        # Its entries are claimed once they have lain for 30 s; here they seem to have.
        pending = client.xpending_range(USAGE_STREAM, USAGE_GROUP, "-", "+", EVENTS)
        ids = [item["message_id"] for item in pending]
        if ids:
            client.xclaim(USAGE_STREAM, USAGE_GROUP, "dead", 0, ids, idle=31_000)
        start("manage.py", "ingest_usage")
        eventually(lambda: client.xlen(USAGE_STREAM) == 0)
    assert rollup_sums() == (EVENTS, EVENTS * 10, EVENTS * 4, EVENTS * 3)


@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has no server that could be away")
@pytest.mark.costly("starts ingesters as processes")
def test_an_outage_of_the_database_loses_and_doubles_nothing(
    start: Start, redis_url: str, tmp_path: Path
) -> None:
    send(redis_url, EVENTS)
    start("manage.py", "ingest_usage", "--claim-idle", "600")
    eventually(UsageEventRow.objects.exists)
    url = _database_url()
    connection.close()
    set_open(url, open_=False)
    try:
        send(redis_url, EVENTS, start=EVENTS)
        eventually(lambda: "ingestion is waiting" in (tmp_path / "log").read_text())
    finally:
        set_open(url, open_=True)
    with redis.Redis.from_url(redis_url) as client:
        eventually(lambda: client.xlen(USAGE_STREAM) == 0)
    assert rollup_sums() == (2 * EVENTS, 20 * EVENTS, 8 * EVENTS, 6 * EVENTS)
