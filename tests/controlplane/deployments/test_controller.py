"""The controller on a host: who reads when copies hang, what a change meanwhile is worth."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from django.utils import timezone

from controlplane.catalog.models import BaseModel
from controlplane.deployments.autoscaler.controller import INTERVAL, scale, scale_all
from controlplane.deployments.models import Copy, Deployment, Scaling
from controlplane.deployments.phases.recorder import open_scale_ups, scale_up_begin
from controlplane.deployments.services import deployment_create, scaling_set
from controlplane.deployments.targets.services import target_create

pytestmark = pytest.mark.django_db(transaction=True)


class Hanging(ThreadingHTTPServer):
    """A copy that takes requests and does not answer; `asked` is set by the first, `go` ends them all."""

    daemon_threads = True

    def __init__(self) -> None:
        self.asked, self.go = threading.Event(), threading.Event()
        asked, go = self.asked, self.go

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.set()
                go.wait(30)

            def log_message(self, *_: object) -> None:
                return

        super().__init__(("127.0.0.1", 0), Handler)


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    server = Hanging()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.go.set()
    server.shutdown()
    server.server_close()
    thread.join()


def scaled(base: BaseModel, url: str = "", *, copies: int = 1) -> Scaling:
    """A deployment with a policy, and one copy at `url`; its rows alone."""
    target = target_create(name="here", kind="local")
    deployment = deployment_create(name="tiny", target=target, base_model=base, min_copies=0, max_copies=4)
    if url:
        Copy.objects.create(id="copy-0", url=url, base_model=base, kind="worker", deployment=deployment)
    row = scaling_set(deployment=deployment, target=4, in_after=0, in_cooldown=0)
    Scaling.objects.update(copies=copies)
    return row


def test_a_copy_that_hangs_does_not_stop_decisions(tiny: BaseModel, hanging: Hanging) -> None:
    row = scaled(tiny, f"http://127.0.0.1:{hanging.server_port}")
    now = timezone.now()
    reader = threading.Thread(target=_scale_and_close, args=(row.pk, now))
    reader.start()
    assert hanging.asked.wait(10)
    assert not scale(scaling_id=row.pk, now=now + 2 * INTERVAL), "the first one still reads"
    reader.join(30)
    row.refresh_from_db()
    assert row.seen == {"load": 0, "held": 0, "whole": False}, "and what it read is written"
    assert row.lease_until is None
    assert scale(scaling_id=row.pk, now=now + 2 * INTERVAL)


def _scale_and_close(pk: int, now: dt.datetime) -> None:
    from django.db import connection

    try:
        scale(scaling_id=pk, now=now)
    finally:
        connection.close()


def test_a_count_that_somebody_set_meanwhile_stands(tiny: BaseModel, hanging: Hanging) -> None:
    row = scaled(tiny, f"http://127.0.0.1:{hanging.server_port}", copies=3)
    reader = threading.Thread(target=_scale_and_close, args=(row.pk, timezone.now()))
    reader.start()
    assert hanging.asked.wait(10)
    Scaling.objects.update(copies=1, state={})
    reader.join(30)
    row.refresh_from_db()
    assert (row.copies, row.state) == (1, {})


def test_one_bad_row_holds_up_no_other(tiny: BaseModel) -> None:
    row = scaled(tiny)
    other = deployment_create(
        name="other", target=row.deployment.target, base_model=tiny, min_copies=0, max_copies=4
    )
    bad = Scaling.objects.create(deployment=other, policy={"target": "broken"})
    Scaling.objects.filter(pk=row.pk).update(evaluated_at=None)
    assert scale_all() == 1
    row.refresh_from_db()
    bad.refresh_from_db()
    assert (row.seen["whole"], bad.lease_until) == (True, None)


def test_what_failed_is_not_looked_at_each_second(tiny: BaseModel) -> None:
    row = scaled(tiny, copies=1)
    later = timezone.now() + dt.timedelta(minutes=5)
    rows = Deployment.objects.filter(pk=row.deployment_id)
    Scaling.objects.update(state={"low_since": None}, policy=(row.policy or {}) | {"in_after": 900})
    rows.update(status=Deployment.Status.FAILED, next_at=later)
    assert scale(scaling_id=row.pk, now=timezone.now())
    assert rows.get().next_at == later
    rows.update(status=Deployment.Status.WORKING)
    assert scale(scaling_id=row.pk, now=timezone.now() + INTERVAL)
    assert rows.get().next_at < later


def test_fewer_copies_end_a_growth_that_goes_on(tiny: BaseModel) -> None:
    row, now = scaled(tiny, copies=2), timezone.now()
    scale_up_begin(deployment=row.deployment, before=1, after=2, cause="load", began=now, decided=now)
    assert scale(scaling_id=row.pk, now=now)
    row.refresh_from_db()
    assert row.copies == 0
    assert not open_scale_ups(row.deployment).exists()
