"""A local deployment that is scaled to zero, with a real gateway, worker and Redis: a request wakes it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from django.utils import timezone

from contracts.demand import demand_key
from controlplane.catalog.models import BaseModel
from controlplane.deployments.autoscaler.controller import INTERVAL, scale, scale_all
from controlplane.deployments.autoscaler.load import demand
from controlplane.deployments.models import Deployment, Scaling
from controlplane.deployments.reconciler import deployment_reconcile
from controlplane.deployments.services import deployment_create, deployment_remove, scaling_set
from controlplane.deployments.targets.services import target_create
from controlplane.routes.models import RouteCounter
from controlplane.tenants.models import Tenant
from controlplane.tenants.services import api_key_create
from tests.controlplane.deployments.conftest import TOKEN, drive, removed, serving
from tests.controlplane.deployments.test_local import ENVIRONMENT, wait, workers
from tests.gateway.conftest import GatewayProcess
from tests.waiting import eventually

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("forked_workers")]


@pytest.fixture
def asleep(tiny: BaseModel, local_root: Path, redis_url: str) -> Deployment:
    """Nothing runs, and nothing is wrong with that."""
    target = target_create(name="here", kind="local")
    deployment = deployment_create(
        name="tiny", target=target, base_model=tiny, min_copies=0, max_copies=2, environment=ENVIRONMENT
    )
    scaling_set(
        deployment=deployment,
        target=2,
        in_after=3,
        in_cooldown=0,
        out_after=1,
        out_cooldown=0,
        hold_seconds=60,
    )
    drive(deployment, serving, pause=wait)
    assert workers(local_root) == []
    return deployment


@pytest.fixture
def gateway(asleep: Deployment, redis_url: str, tmp_path: Path) -> Iterator[GatewayProcess]:
    """At the routes as they are, with room for two to wait."""
    environ = {"GRAFTWORK_FLEET_TOKEN": TOKEN, "GRAFTWORK_GATEWAY_HELD": "2"}
    process = GatewayProcess(redis_url, tmp_path / "wal", tmp_path / "gateway.log", environ=environ)
    try:
        process.start()
        yield process
    finally:
        process.stop()


class Call(threading.Thread):
    """A request, and how long its answer took."""

    def __init__(self, gateway: GatewayProcess, key: str, **body: Any) -> None:
        super().__init__(daemon=True)
        self._url, self._key = f"{gateway.url}/v1/completions", key
        self._body = {"model": "tiny-base", "prompt": "hello", "max_tokens": 4, "ignore_eos": True} | body
        self.answer: httpx.Response | None = None
        self.seconds = 0.0
        self.start()

    def run(self) -> None:
        began = time.monotonic()
        headers = {"authorization": f"Bearer {self._key}"}
        self.answer = httpx.post(self._url, json=self._body, headers=headers, timeout=120)
        self.seconds = time.monotonic() - began


def run_periodic_tasks(deployment: Deployment) -> None:
    """Run what Celery beat schedules: the autoscaler, and the reconciler when it is due."""
    scale_all()
    deployment_reconcile(deployment_id=deployment.pk, due=True)
    time.sleep(0.2)  # A copy starts or ends meanwhile.


def reconcile_until(deployment: Deployment, until: Callable[[], bool]) -> None:
    def is_reached() -> bool:
        if until():
            return True
        run_periodic_tasks(deployment)
        return False

    steps = deployment.steps.values_list("action", "resource", "cause")
    eventually(is_reached, seconds=90, message=lambda: list(steps.all()))


@pytest.mark.costly("starts several workers")
def test_a_request_wakes_it_and_it_goes_to_sleep_again(
    asleep: Deployment, gateway: GatewayProcess, tenant: Tenant, local_root: Path, redis_url: str
) -> None:
    _, key = api_key_create(tenant=tenant, name="k", scopes=["inference"])
    gateway.wait_version(RouteCounter.objects.get().version)
    call = Call(gateway, key)
    eventually(lambda: demand(redis_url, base_model="tiny-base").held == 1)
    reconcile_until(asleep, lambda: call.answer is not None)
    assert call.answer is not None
    assert call.answer.status_code == 200, call.answer.text
    assert call.answer.json()["usage"]["completion_tokens"] == 4
    eventually(lambda: demand(redis_url, base_model="tiny-base").held == 0)

    grown = asleep.scale_ups.get()
    assert (grown.copies_before, grown.copies_after, grown.outcome) == (0, 1, "done")
    assert list(grown.phases_in_order) == ["detect", "provision", "image", "weights", "runtime", "traffic"]
    assert grown.phases["weights"] > 0, "the worker's own word"
    whole = (grown.ended_at - grown.began_at).total_seconds() if grown.ended_at else 0.0
    assert sum(grown.phases.values()) == pytest.approx(whole, abs=1.0)

    reconcile_until(asleep, lambda: not workers(local_root))
    told = list(asleep.steps.filter(action="scale").order_by("pk").values_list("resource", "cause"))
    assert [resource for resource, _ in told] == ["0 -> 1", "1 -> 0"]
    assert told[0][1] == "1 requests are waiting without a copy"
    assert told[1][1].startswith("at most 0.0 requests at a time in the last 3 s")
    deployment_remove(deployment=asleep)
    drive(asleep, removed, pause=wait)


@pytest.mark.costly("starts a gateway that holds requests")
def test_the_room_is_bounded_in_requests_and_in_time(
    asleep: Deployment, gateway: GatewayProcess, tenant: Tenant, redis_url: str
) -> None:
    _, key = api_key_create(tenant=tenant, name="k", scopes=["inference"])
    scaling_set(deployment=asleep, target=2, hold_seconds=8)
    gateway.wait_version(RouteCounter.objects.get().version)
    waiting = [Call(gateway, key), Call(gateway, key, stream=True)]
    eventually(lambda: demand(redis_url, base_model="tiny-base").held == 2)
    third = Call(gateway, key)
    for call in (*waiting, third):
        call.join(60)
        assert call.answer is not None
        assert call.answer.status_code == 503
        assert call.answer.headers["retry-after"] == "10"
        assert call.answer.json()["error"]["code"] == "model_waking"
    assert all(call.seconds >= 7.9 for call in waiting)
    assert third.seconds < min(call.seconds for call in waiting), "a full room refuses at once"


@pytest.mark.costly("starts a gateway that holds requests")
def test_a_client_that_hangs_up_waits_no_more(
    asleep: Deployment, gateway: GatewayProcess, tenant: Tenant, redis_url: str
) -> None:
    _, key = api_key_create(tenant=tenant, name="k", scopes=["inference"])
    gateway.wait_version(RouteCounter.objects.get().version)
    body = {"model": "tiny-base", "prompt": "hello", "max_tokens": 4}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            f"{gateway.url}/v1/completions", json=body, headers={"authorization": f"Bearer {key}"}, timeout=2
        )
    eventually(lambda: demand(redis_url, base_model="tiny-base").held == 0)


def test_a_reading_is_taken_once_and_an_old_demand_is_none(asleep: Deployment, redis_url: str) -> None:
    row = Scaling.objects.get()
    now = timezone.now() + INTERVAL
    with redis.Redis.from_url(redis_url) as client:
        client.hset(demand_key("tiny-base"), "gone", f"3 {time.time() - 60}")
        assert demand(redis_url, base_model="tiny-base").held == 0
        client.hset(demand_key("tiny-base"), "there", f"3 {time.time()}")
        client.hset(demand_key("tiny-base"), "odd", "many")
    assert scale(scaling_id=row.pk, now=now)
    assert not scale(scaling_id=row.pk, now=now), "another process has just read"
    row.refresh_from_db()
    assert (row.copies, row.seen) == (2, {"load": 3, "held": 3, "whole": True})
    assert asleep.steps.filter(action="scale").count() == 1
