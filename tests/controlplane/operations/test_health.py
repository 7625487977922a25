"""Health by parts: each with advice, none blocks the others; queues, workers, dead letters."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery import current_app
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from pytest_django import Settings

from contracts.presence import GatewayStatus
from contracts.redis_names import GATEWAYS, ROUTES_SNAPSHOT, ROUTES_VERSION, USAGE_GROUP, USAGE_STREAM
from controlplane.catalog.models import BaseModel
from controlplane.deployments.models import Copy
from controlplane.metering.models import DeadUsageEvent
from controlplane.operations.health import base, stores
from controlplane.operations.health.base import Finding, Level, checks_run
from controlplane.operations.health.parts import TITLES, HealthReport, health_report
from controlplane.operations.health.queues import work_report
from controlplane.platform import task_signs
from controlplane.platform.audit.models import AuditRecord
from controlplane.platform.celery import app, end_run, note_beat
from controlplane.platform.task_queues import DEPLOYMENTS, PROMPT, QUEUES
from controlplane.tenants.services import user_create
from tests.controlplane.console.conftest import HOSTILE
from tests.waiting import eventually

pytestmark = pytest.mark.django_db


@pytest.fixture
def server(redis_url: str) -> redis.Redis:
    return redis.Redis.from_url(redis_url)


@pytest.fixture
def staff(db: None) -> Client:
    client = Client()
    client.force_login(user_create(email="s@x.test", password="long-enough-7", is_staff=True))
    return client


def finding(report: HealthReport, name: str) -> Finding:
    return next(part.finding for part in report.parts if part.name == name)


def gateway_status(at: float, **other: Any) -> str:
    values: dict[str, Any] = {
        "at": at,
        "id": "gw-1",
        "pid": 7,
        "started_at": at - 60,
        "ready": True,
        "reasons": (),
        "routes_version": 3,
        "routes_age": 0.1,
        "in_flight": 4,
        "held": 0,
        "backlog_bytes": 0,
        "disk_free": 50,
        "disk_total": 100,
    }
    return GatewayStatus(**{**values, **other}).to_json()


def well(server: redis.Redis, redis_url: str) -> None:
    """Signs of every process that there should be."""
    task_signs.worker_said(redis_url, name="w@1", started_at=time.time(), queues=QUEUES)
    task_signs.beat_sent(redis_url, task="deployments.scale")
    server.hset(GATEWAYS, "slot", gateway_status(time.time()))
    server.xgroup_create(USAGE_STREAM, USAGE_GROUP, id="0", mkstream=True)
    server.xgroup_createconsumer(USAGE_STREAM, USAGE_GROUP, "me")


def test_every_part_is_told_and_what_is_not_there_says_what_to_do(redis_url: str) -> None:
    report = health_report()
    assert [part.name for part in report.parts] == list(TITLES)
    assert finding(report, "database").level is Level.OK
    assert finding(report, "redis").level is Level.OK
    for name in ("gateways", "queues", "beat"):
        assert finding(report, name).level is Level.DOWN, name
        assert finding(report, name).todo, name
    assert finding(report, "mail").level is Level.UNUSED
    assert finding(report, "sagemaker").level is Level.UNUSED
    assert report.level is Level.DOWN
    assert all(part.finding.since for part in report.parts)


def test_where_everybody_speaks_all_is_well(server: redis.Redis, redis_url: str) -> None:
    well(server, redis_url)
    report = health_report()
    bad = {part.name: part.finding.text for part in report.parts if part.finding.level is Level.DOWN}
    assert bad == {}
    assert "1 of 1 gateway processes are serving" in finding(report, "gateways").text
    assert finding(report, "usage_logs").level is Level.OK


def test_gateways_that_fall_silent_refuse_or_fill_their_disks(server: redis.Redis, redis_url: str) -> None:
    well(server, redis_url)
    now = time.time()
    server.hset(GATEWAYS, "b", gateway_status(now - 100, id="gw-2"))
    server.hset(
        GATEWAYS, "c", gateway_status(now, id="gw-3", ready=False, reasons=("The gateway was told to stop.",))
    )
    server.hset(GATEWAYS, "d", gateway_status(now, id="gw-4", disk_free=1))
    server.hset(GATEWAYS, "e", b"of another release")
    report = health_report()
    found = finding(report, "gateways")
    assert found.level is Level.WARN, "one serves"
    assert found.since is not None
    assert 90 < (timezone.now() - found.since).total_seconds() < 3600
    told = "\n".join(found.details)
    assert "no report for" in told
    assert "told to stop" in told
    assert finding(report, "usage_logs").level is Level.DOWN


def test_since_when_a_part_is_so_outlives_the_process_that_saw_it_first(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = finding(health_report(), "beat")
    monkeypatch.setattr("controlplane.operations.health.parts._seen", {})
    time.sleep(0.01)
    assert finding(health_report(), "beat").since == first.since


def test_a_check_that_hangs_is_told_as_such_and_asked_once() -> None:
    asked, gate = [], threading.Event()

    def hang() -> Finding:
        asked.append(1)
        gate.wait(60)
        return Finding(Level.OK, "late")

    def broken() -> Finding:
        raise OSError("no route to host")

    def fine() -> Finding:
        return Finding(Level.OK, "fine")

    assert "No response" in checks_run({"test-hangs": hang}, seconds=0.1)["test-hangs"].text
    found = checks_run({"test-hangs": hang, "test-broken": broken, "test-fine": fine}, seconds=3)
    assert found["test-hangs"].level is Level.DOWN
    assert "No response" in found["test-hangs"].text
    assert "no route to host" in found["test-broken"].text
    assert found["test-fine"].text == "fine"
    assert len(asked) == 1, "one thread at most, however often somebody looks"
    gate.set()
    eventually(base._running["test-hangs"][0].done)
    assert checks_run({"test-hangs": fine}, seconds=60)["test-hangs"].text == "fine"


def test_without_redis_the_page_comes_and_says_so(staff: Client, settings: Settings) -> None:
    settings.GRAFTWORK = dataclasses.replace(settings.GRAFTWORK, redis_url="redis://127.0.0.1:1/0")
    report = health_report()
    assert finding(report, "redis").level is Level.DOWN
    assert finding(report, "database").level is Level.OK
    assert staff.get("/staff/health/status").status_code == 200
    page = staff.get("/staff/queues/status").content.decode()
    assert "Redis does not respond" in page
    assert work_report().away


def test_routes_that_are_not_published_are_seen(
    server: redis.Redis, base_model: BaseModel, redis_url: str
) -> None:
    from controlplane.deployments.copies.services import copy_register

    copy_register(base_model=base_model, kind="worker", url="http://127.0.0.1:1")
    server.set(ROUTES_SNAPSHOT, "x")
    server.set(ROUTES_VERSION, 0)
    found = finding(health_report(), "routes")
    assert "not published" in found.text
    server.delete(ROUTES_SNAPSHOT)
    assert finding(health_report(), "routes").level is Level.DOWN
    silent = finding(health_report(), "copies")
    assert (silent.level, len(silent.details)) == (Level.DOWN, 1), "its base has no other copy"
    assert Copy.objects.count() == 1


def test_usage_that_nobody_reads_is_seen_with_its_age(server: redis.Redis, redis_url: str) -> None:
    well(server, redis_url)
    server.xadd(USAGE_STREAM, {"event": "x"}, id=f"{int((time.time() - 120) * 1000)}-0")
    found = finding(health_report(), "ingest")
    assert found.level is Level.WARN
    assert "1 events are waiting" in found.text
    server.xgroup_delconsumer(USAGE_STREAM, USAGE_GROUP, "me")
    assert finding(health_report(), "ingest").level is Level.DOWN


def test_a_full_disk_and_a_mail_server_that_is_away(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stores.disk(tmp_path / "not" / "made" / "yet").level is not None
    usage = type("Usage", (), {"total": 100, "free": 2})
    monkeypatch.setattr("controlplane.operations.health.stores.shutil.disk_usage", lambda _: usage)
    assert stores.disk(tmp_path).level is Level.DOWN
    settings.GRAFTWORK = dataclasses.replace(settings.GRAFTWORK, email_url="smtp://127.0.0.1:1")
    settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", 1
    away = stores.mail()
    assert (away.level, "127.0.0.1:1" in away.text) == (Level.DOWN, True)


def test_messages_say_when_they_were_sent_and_beat_is_heard(
    redis_url: str, server: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent_at = time.time() - 5
    monkeypatch.setattr("controlplane.platform.celery.time", SimpleNamespace(time=lambda: sent_at))
    with app.connection_for_write() as broker:
        app.send_task("deployments.sweep", connection=broker, headers={"celery_beat_task": True})
        app.send_task("billing.publish_budgets", connection=broker)
    (item,) = task_signs.queues(server, [PROMPT])
    assert item.depth == 2
    assert item.oldest_at == sent_at
    assert item.oldest_task == "deployments.sweep"
    assert set(task_signs.sent(server)) == {"deployments.sweep"}
    note_beat("tenants.tidy", {})
    assert set(task_signs.sent(server)) == {"deployments.sweep"}, "beat's messages alone"


def test_what_became_of_a_run_is_kept_with_its_reason(server: redis.Redis) -> None:
    app.loader.import_default_modules()
    current_app.tasks["tenants.tidy"].apply(throw=False)
    assert task_signs.runs(server)["tenants.tidy"].outcome == "SUCCESS"
    current_app.tasks["adapters.validate"].apply(throw=False, kwargs={"nonsense": 1})
    failed = task_signs.runs(server)["adapters.validate"]
    assert failed.outcome == "FAILURE"
    assert "nonsense" in failed.reason
    end_run("never began", current_app.tasks["tenants.tidy"], None, "SUCCESS")


def test_the_queues_page_shows_workers_rhythms_and_letters(
    staff: Client, server: redis.Redis, redis_url: str
) -> None:
    server.lpush(PROMPT, json.dumps({"headers": {"task": "a.b", task_signs.SENT_AT: time.time() - 90}}))
    server.lpush(DEPLOYMENTS, b"not JSON")
    task_signs.worker_said(redis_url, name="w@1", started_at=time.time(), queues=[PROMPT])
    server.hset(
        task_signs.WORKERS,
        "old@1",
        json.dumps({"at": time.time() - 300, "started_at": 0, "queues": [PROMPT]}),
    )
    task_signs.task_ran(redis_url, task="tenants.tidy", seconds=0.5, outcome="FAILURE", reason=HOSTILE)
    server.hset(task_signs.SENT, "tenants.tidy", time.time() - 5000)
    DeadUsageEvent.objects.create(stream_id="1-0", payload=HOSTILE, reason=HOSTILE, tenant="acme")
    page = staff.get("/staff/queues/").content.decode()
    assert "<script>alert" not in page
    for text in ("w@1", "not responding", "a.b", "late", "daily at 2:40 UTC", "every 5 min", "none"):
        assert text in page, text
    report = work_report()
    (prompt,) = (item for item in report.queues if item.name == PROMPT)
    assert prompt.workers == ("w@1",)
    assert [worker.alive for worker in report.workers] == [False, True]


def test_queries_of_the_pages_do_not_grow(staff: Client, redis_url: str) -> None:
    counts = []
    for number in range(2):
        DeadUsageEvent.objects.bulk_create(
            DeadUsageEvent(stream_id=f"{number}-{index}", payload="x", reason="y") for index in range(40)
        )
        for path in ("/staff/queues/", "/staff/health/status"):
            with CaptureQueriesContext(connection) as queries:
                assert staff.get(path).status_code == 200
            counts.append(len(queries))
    assert counts[:2] == counts[2:]


def test_dead_letters_are_listed_and_replayed_by_a_task(
    staff: Client, redis_url: str, django_capture_on_commit_callbacks: Any, server: redis.Redis
) -> None:
    assert "No dead letters" in staff.get("/staff/queues/").content.decode()
    assert staff.post("/api/v1/dead-letters/replay").json() == {"asked": 0}
    DeadUsageEvent.objects.create(stream_id="1-0", payload="{}", reason="no event", tenant="")
    assert staff.get("/api/v1/dead-letters").json()["results"][0]["reason"] == "no event"
    assert finding(health_report(), "dead_letters").level is Level.WARN
    with django_capture_on_commit_callbacks(execute=True):
        assert staff.post("/staff/queues/replay").status_code == 302
    assert server.llen("graftwork.long") == 1
    assert AuditRecord.objects.filter(action="dead_usage.replay").count() == 1
    app.loader.import_default_modules()
    assert current_app.tasks["metering.replay_dead"].apply().get() == 0
    assert DeadUsageEvent.objects.count() == 1, "what cannot be read stays"
    assert staff.post("/api/v1/dead-letters/replay").status_code == 202


def test_rest_tells_health_and_queues(staff: Client, redis_url: str) -> None:
    told = staff.get("/api/v1/health/parts").json()
    assert told["level"] == "down"
    assert {part["name"] for part in told["parts"]} == set(TITLES)
    work = staff.get("/api/v1/queues").json()
    assert {item["name"] for item in work["queues"]} == set(QUEUES)
    assert any(item["task"] == "metering.nightly" for item in work["scheduled"])
