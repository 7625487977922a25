"""Every task has a queue and a time limit; what tenants make long holds up nothing else."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Callable
from datetime import timedelta
from io import BytesIO
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest
import redis
from celery import current_app
from django.conf import settings as django_settings
from django.utils import timezone
from pytest_django import Settings

from controlplane.adapters.models import AdapterVersion
from controlplane.adapters.services import adapter_register
from controlplane.adapters.validation import validation_resume, version_validate
from controlplane.artifacts.credentials.services import credential_create
from controlplane.catalog.models import BaseModel
from controlplane.platform import task_queues
from controlplane.platform.audit.models import AuditRecord
from controlplane.platform.celery import app
from controlplane.platform.open_endpoints import OpenEndpoints
from controlplane.tenants.members.services import invitation_create
from controlplane.tenants.models import Tenant
from controlplane.tenants.services import tenant_create
from controlplane.webhooks.models import WebhookDelivery
from controlplane.webhooks.services import endpoint_create, endpoint_test
from tests.controlplane.conftest import Start, adapter_files
from tests.dripping import Dripping, dripping
from tests.waiting import eventually

WORKER = ("-m", "celery", "-A", "controlplane.celery", "worker", "--loglevel", "INFO")


def wait_for(condition: Callable[[], bool], log: Path, seconds: float = 180) -> None:
    eventually(condition, seconds=seconds, message=lambda: log.read_text()[-5000:])


def test_every_task_has_a_limit_and_what_is_named_is_a_task() -> None:
    app.loader.import_default_modules()
    own = {name: task for name, task in current_app.tasks.items() if "celery." not in name}
    assert set(task_queues.ROUTES) <= set(own)
    assert set(django_settings.CELERY_BEAT_SCHEDULE) <= set(own)
    for name, task in own.items():
        soft = task.soft_time_limit or app.conf.task_soft_time_limit
        hard = task.time_limit or app.conf.task_time_limit
        assert 0 < soft < hard, name
    assert own["adapters.validate"].time_limit == 3630
    # A tenant's files and addresses: nothing else may wait behind them.
    assert task_queues.ROUTES["adapters.validate"] == {"queue": "graftwork.long"}
    assert task_queues.ROUTES["webhooks.deliver"] == {"queue": "graftwork.webhooks"}
    assert task_queues.ROUTES["deployments.reconcile"] == {"queue": "graftwork.deployments"}
    for name in (
        "members.send_invitation",
        "members.send_invitations",
        "webhooks.notify_disabled",
        "webhooks.notify_due",
    ):
        assert task_queues.ROUTES[name] == {"queue": "graftwork.mail"}
    assert "billing.publish_budgets" not in task_queues.ROUTES


@pytest.mark.django_db(transaction=True)
def test_each_message_lies_in_one_queue(
    tenant: Tenant, base_model: BaseModel, redis_url: str, settings: Settings
) -> None:
    settings.GRAFTWORK = dataclasses.replace(
        settings.GRAFTWORK, outgoing_allow=OpenEndpoints.parse(["127.0.0.1"])
    )
    adapter_register(tenant=tenant, name="a", base_model=base_model, uri="hf://owner/name")
    endpoint, _ = endpoint_create(tenant=tenant, url="http://127.0.0.1:9/x", events=["adapter.deleted"])
    endpoint_test(endpoint=endpoint)
    invitation_create(tenant=tenant, email="new@acme.test", role="viewer")
    app.send_task("limits.tidy")
    with redis.Redis.from_url(redis_url) as client:
        lengths = {name: client.llen(name) for name in task_queues.QUEUES}
    # The base model's digest is long, too.
    assert lengths == {
        "graftwork": 1,
        "graftwork.webhooks": 1,
        "graftwork.mail": 1,
        "graftwork.long": 2,
        "graftwork.deployments": 0,
        "graftwork.optimize.cpu": 0,
        "graftwork.optimize.gpu": 0,
    }


def import_from(server: Dripping, tenant: Tenant, base_model: BaseModel) -> AdapterVersion:
    credential_create(
        tenant=tenant,
        name="own",
        kind="s3",
        secret="TheSecretKey",
        endpoint=server.url,
        access_key_id="AKIATEST",
    )
    return adapter_register(
        tenant=tenant, name="slow", base_model=base_model, uri="s3://theirs/runs/7", credential="own"
    )


def open_to(settings: Settings, server: Dripping) -> dict[str, str]:
    """Lets this process, and those that it starts, reach the server."""
    entry = f"127.0.0.1:{server.port}"
    settings.GRAFTWORK = dataclasses.replace(settings.GRAFTWORK, outgoing_allow=OpenEndpoints.parse([entry]))
    return {"GRAFTWORK_OUTGOING_ALLOW": entry}


@pytest.mark.slow
def test_a_slow_download_and_a_slow_endpoint_hold_up_no_publishing(
    start: Start, tenant: Tenant, base_model: BaseModel, redis_url: str, settings: Settings, tmp_path: Path
) -> None:
    with dripping() as server:
        environment = open_to(settings, server)
        for queue in task_queues.QUEUES:
            start(*WORKER, "-n", f"{queue}@%h", "-Q", queue, "--concurrency", "1", **environment)
        version = import_from(server, tenant, base_model)
        endpoint, _ = endpoint_create(
            tenant=tenant_create(slug="other", name="O"), url=server.url, events=["adapter.deleted"]
        )
        delivery = endpoint_test(endpoint=endpoint)
        wait_for(lambda: server.connections == 2, tmp_path / "log")
        app.send_task("billing.publish_rates")
        log = tmp_path / "log"
        wait_for(lambda: "succeeded in" in log.read_text(), log)
        version.refresh_from_db()
        assert version.status == "validating"
        assert WebhookDelivery.objects.get(pk=delivery.pk).status == "sending"


@pytest.mark.costly("starts Celery workers")
def test_a_version_that_kills_its_process_is_refused_in_the_end(
    start: Start, tenant: Tenant, base_model: BaseModel, redis_url: str, settings: Settings, tmp_path: Path
) -> None:
    """SIGKILL, as the kernel sends it when memory is short: the child can write nothing down."""
    log = tmp_path / "log"
    with dripping() as server:
        worker = start(*WORKER, "--concurrency", "1", **open_to(settings, server))
        version = import_from(server, tenant, base_model)
        for attempt in (1, 2, 3):
            wait_for(lambda: server.connections == attempt, log)  # noqa: B023
            (child,) = psutil.Process(worker.pid).children()
            os.kill(child.pid, signal.SIGKILL)
            wait_for(lambda: log.read_text().count("WorkerLostError") >= attempt, log)  # noqa: B023
            # The broker redelivers the message to no other worker. Only time shows that the worker is dead.
            with redis.Redis.from_url(redis_url) as client:
                wait_for(lambda: client.hlen("unacked") == 0, log)
                assert client.llen("graftwork.long") == 0
            version.refresh_from_db()
            assert (version.status, version.attempts) == ("validating", attempt)
            AdapterVersion.objects.update(heartbeat_at=timezone.now() - timedelta(minutes=3))
            AdapterVersion.objects.update(created_at=timezone.now() - timedelta(minutes=3))
            assert validation_resume() == (attempt < 3)
    version.refresh_from_db()
    assert (version.status, version.attempts, version.lost_attempts) == ("refused", 3, 3)
    assert version.reason.startswith("the process that validated it died 3 times, last at 'Files received': ")
    assert [step["status"] for step in version.steps][:2] == ["failed", "waiting"]
    assert [path for path in (tmp_path / "artifacts").rglob("*") if path.is_file()] == []
    assert AuditRecord.objects.filter(action="adapter_version.refuse").count() == 1
    assert validation_resume() == 0


@pytest.mark.parametrize("shared", [False, True])
def test_what_a_lost_attempt_had_stored_goes_unless_another_version_names_it(
    transactional_db: None, tenant: Tenant, base_model: BaseModel, tmp_path: Path, shared: bool
) -> None:
    """Killed between the copy under the content's address and the row that makes it ready."""

    def register(name: str) -> AdapterVersion:
        files = {file: BytesIO(data) for file, data in adapter_files().items()}
        version = adapter_register(tenant=tenant, name=name, base_model=base_model, files=files)
        version_validate(version_id=version.pk)
        version.refresh_from_db()
        return version

    other = register("other") if shared else None
    version = register("lost")
    stale = {"heartbeat_at": timezone.now() - timedelta(minutes=3), "lost_attempts": 2}
    AdapterVersion.objects.filter(pk=version.pk).update(status="validating", **stale)
    validation_resume()
    version.refresh_from_db()
    assert (version.status, version.sha256) == ("refused", "")
    kept = {path.parent.name for path in (tmp_path / "artifacts" / "adapters").rglob("*") if path.is_file()}
    assert kept == ({other.sha256} if other else set())


def test_while_the_queue_is_long_a_version_waits_in_it_once(
    transactional_db: None, tenant: Tenant, base_model: BaseModel, redis_url: str
) -> None:
    adapter_register(tenant=tenant, name="a", base_model=base_model, uri="hf://owner/name")
    AdapterVersion.objects.update(created_at=timezone.now() - timedelta(minutes=3))
    assert [validation_resume() for _ in range(3)] == [1, 0, 0]
    AdapterVersion.objects.update(retry_at=timezone.now())
    assert validation_resume() == 1


@pytest.mark.costly("starts Celery workers")
def test_a_task_beyond_its_limit_is_interrupted(
    start: Start,
    tenant: Tenant,
    base_model: BaseModel,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"
    # The message carries its sender's limits, and a worker follows them before its own.
    app.loader.import_default_modules()
    task = app.tasks["adapters.validate"]
    monkeypatch.setattr(task, "soft_time_limit", 5)
    monkeypatch.setattr(task, "time_limit", 20)
    monkeypatch.setattr(task, "_exec_options", None)
    with dripping() as server:
        start(*WORKER, "--concurrency", "1", **open_to(settings, server))
        # It makes the queues; this process has made them in an earlier test's broker, and would not again.
        wait_for(lambda: " ready." in log.read_text(), log)
        version = import_from(server, tenant, base_model)
        wait_for(lambda: AdapterVersion.objects.filter(status="refused").exists(), log)
    version.refresh_from_db()
    assert version.reason == (
        "validation exceeded its time limit: register the adapter again, or upload the files"
    )
