"""Live parts of the screenshots: workers with load, a scale-up, traffic, signs of every process.

Stand-ins speak as workers, gateways and Celery's processes do; pages read them as they read the real ones.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import time
from contextlib import ExitStack, suppress
from typing import Any

import redis
from django.conf import settings
from django.utils import timezone

from contracts.adapters.reference import engine_name
from contracts.presence import GatewayStatus
from contracts.redis_names import GATEWAYS, USAGE_GROUP, USAGE_STREAM
from controlplane.catalog.models import BaseModel, Variant
from controlplane.deployments.models import Copy, Deployment, DeploymentRollout, ScaleUp, Target
from controlplane.platform import task_signs
from controlplane.platform.task_queues import QUEUES
from tests.controlplane.fleet.copy_server import WORKER, copy_server
from tests.controlplane.metering.event_log import logged
from tests.controlplane.world import OWN, World

DEPLOYMENT, HOST = "tiny-workers", "gpu-host-1"
_INT8 = "s3://models/tiny-base-int8/"
_PHASES = {
    "detect": 12.0,
    "provision": 240.0,
    "image": 95.0,
    "weights": 160.0,
    "runtime": 70.0,
    "traffic": 6.0,
}


def fleet_alive(world: World, stack: ExitStack) -> World:
    """Turns the world's deployment into one of workers that run until `stack` is closed: a rollout to a
    quantized variant has half of the copies, and a third one is on its way."""
    deployment = _deployment()
    copies = [Copy.objects.get(pk=world.values["copy_id"])]
    copies.append(Copy(pk="copy-7d1c40aa", base_model=copies[0].base_model, kind="worker"))
    for number, copy in enumerate(copies):
        server = stack.enter_context(copy_server())
        server.metrics = WORKER.replace("kv_pages_used 40", f"kv_pages_used {48 - 17 * number}")
        server.held = {"ab" * 32: "device", "cd" * 32: "host"}
        server.disk = ["ab" * 32, "cd" * 32]
        copy.url, copy.deployment = server.url, deployment
        copy.save()
    deployment.resources = [
        _worker("3f1a9c27-0", copies[0].url, "ready", _INT8),
        _worker("3f1a9c27-1", "http://127.0.0.1:41877", "starting", _INT8),
        _worker("b80d5e16-0", copies[1].url, "ready", "hf://globex/tiny-base", stale=True),
    ]
    deployment.save(update_fields=["resources"])
    ids = {"new": [copies[0].pk], "old": [copies[1].pk]}
    DeploymentRollout.objects.filter(deployment=deployment).update(copies=ids)
    _growths(deployment)
    return dataclasses.replace(world, values={**world.values, "deployment": DEPLOYMENT})


def _deployment() -> Deployment:
    base = BaseModel.objects.get(name="tiny-base")
    Variant.objects.filter(base_model=base, name="int8").update(source=_INT8)
    Target.objects.filter(name="vllm").update(
        name=HOST, kind=Target.Kind.LOCAL, urls=[], host=HOST, address="127.0.0.1"
    )
    row = Deployment.objects.get(name="tiny-vllm")
    row.name, row.hosting, row.variant = DEPLOYMENT, Deployment.Hosting.ON_DEMAND, "int8"
    row.min_copies, row.max_copies, row.generation, row.observed_generation = 3, 4, 4, 3
    row.status, row.reason = Deployment.Status.WORKING, "1 of 3 new copies serve; one loads the model"
    row.observed_at = timezone.now()
    row.save()
    DeploymentRollout.objects.filter(deployment=row).update(step=1, reason="waits for the second new copy")
    row.adapter_rules.all().delete()
    row.scaling.delete()
    return row


def _worker(name: str, url: str, state: str, base: str, *, stale: bool = False) -> dict[str, Any]:
    return {
        "kind": "worker",
        "name": f"{name} {url}",
        "state": state,
        "reason": "",
        "has": {"base": base},
        "stale": stale,
    }


def _growths(deployment: Deployment) -> None:
    """Create three completed scale-ups, which predict the current one."""
    now = timezone.now()
    for number in range(3):
        phases = {name: round(seconds * (1 + 0.08 * number), 1) for name, seconds in _PHASES.items()}
        began = now - dt.timedelta(days=number + 1, hours=2)
        ScaleUp.objects.create(
            deployment=deployment,
            event=f"done-{number}",
            copies_before=number,
            copies_after=number + 1,
            cause="6.4 requests a copy for 20 s, and 4 are wanted",
            began_at=began,
            decided_at=began + dt.timedelta(seconds=12),
            phases=phases,
            outcome=ScaleUp.Outcome.DONE,
            ended_at=began + dt.timedelta(seconds=sum(phases.values())),
        )
    ScaleUp.objects.create(
        deployment=deployment,
        event="now",
        copies_before=2,
        copies_after=3,
        cause="7.1 requests a copy for 20 s, and 4 are wanted",
        began_at=now - dt.timedelta(seconds=150),
        decided_at=now - dt.timedelta(seconds=138),
    )


def traffic_add(world: World) -> None:
    """Requests of the last minutes at both copies, one of them failed."""
    engine = engine_name(tenant=OWN, adapter="pirate", version=1, sha256="ab" * 32)
    now = timezone.now()
    for number in range(60):
        at = now - dt.timedelta(seconds=2 + number * 3)
        logged(
            OWN,
            at,
            number,
            adapter=engine,
            base_model="tiny-base",
            key_id=world.values["public_id"],
            endpoint="copy-7d1c40aa" if number % 3 else world.values["copy_id"],
            ttft_ms=70.0 + number * 3,
            status="error" if number == 41 else "ok",
            error_code="upstream_error" if number == 41 else "",
        )


def signs_give() -> None:
    """As of now, of gateways, Celery's workers, beat and the usage stream's reader; the queues are empty."""
    url, now = settings.GRAFTWORK.redis_url, time.time()
    client = redis.Redis.from_url(url)
    client.delete(*QUEUES)
    for number in (1, 2):
        word = GatewayStatus(
            at=now,
            id=f"gateway-{number}",
            pid=40 + number,
            started_at=now - 86_400,
            ready=True,
            reasons=(),
            routes_version=3,
            routes_age=0.2,
            in_flight=4 + number,
            held=0,
            backlog_bytes=12_000,
            disk_free=61 << 30,
            disk_total=100 << 30,
        )
        client.hset(GATEWAYS, f"slot-{number}", word.to_json())
    for name in ("celery@web-1", "celery@gpu-host-1"):
        task_signs.worker_said(url, name=name, started_at=now - 86_400, queues=QUEUES)
    for entry in settings.CELERY_BEAT_SCHEDULE.values():
        task_signs.beat_sent(url, task=entry["task"])
        task_signs.task_ran(url, task=entry["task"], seconds=0.04, outcome="SUCCESS")
    with suppress(redis.ResponseError):  # it is there already
        client.xgroup_create(USAGE_STREAM, USAGE_GROUP, id="$", mkstream=True)
    client.xreadgroup(USAGE_GROUP, "ingest-1", {USAGE_STREAM: ">"}, count=1)
    client.close()
