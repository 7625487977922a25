"""The world of the isolation tests, filled: what can grow long is long, and free text is hostile."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from pathlib import Path

from django.db import transaction
from django.test import Client, override_settings
from django.utils import timezone

from contracts.adapters.reference import engine_name
from controlplane.adapters.models import Adapter, AdapterVersion
from controlplane.billing.models import Invoice, PriceBook
from controlplane.billing.parties.services import party_set
from controlplane.billing.reports.models import InstancePrice
from controlplane.billing.services import price_set
from controlplane.catalog.models import BaseModel
from controlplane.metering.models import HostingHour, UsageRollup
from controlplane.optimization.models import Assessment, ComparisonRun, OptimizationJob, PromptSet
from controlplane.platform.audit.services import audit_record
from controlplane.sign_up.services import sign_up_begin
from controlplane.tenants.models import Project, Tenant, User
from controlplane.tenants.roles import Role
from controlplane.tenants.services import (
    api_key_create,
    project_create,
    service_account_create,
    tenant_create,
    user_create,
)
from controlplane.webhooks.models import WebhookDelivery, WebhookEndpoint
from tests.controlplane.metering.event_log import logged
from tests.controlplane.optimization.measured import result
from tests.controlplane.world import NOW, OWN, PASSWORD, World, world_make

SCRIPT = "<script>alert('ran')</script>\"'><img src=x onerror=alert(1)>"
RTL, EMOJI = "\u202eright-to-left\u202c \u05e9\u05dc\u05d5\u05dd", "🦜👩‍👩‍👧‍👦"
LONG_SLUG = "a-" + "very-" * 11 + "long1"
OWNER = f"{'owner' * 8}@{'globex' * 5}.test"
EMPTY = "newcomer"
"""The tenant that has nothing yet."""
_STATES = ("ready", "refused", "pending", "validating")


def hostile(length: int = 200) -> str:
    """A name of `length` characters: markup, a script, right to left, emoji, and no place to break a line."""
    return f"{SCRIPT} {RTL} {EMOJI} {'x' * length}"[:length]


@transaction.atomic
def world_fill(folder: Path) -> World:
    """Makes the world and fills it: globex has the most, acme its people and keys, newcomer nothing."""
    world = world_make(folder)
    Tenant.objects.filter(pk=OWN).update(name=hostile())
    tenant, base = Tenant.objects.get(pk=OWN), BaseModel.objects.get(name="tiny-base")
    BaseModel.objects.filter(pk=base.pk).update(licence=hostile(100))
    # On every page, beside the way out.
    User.objects.filter(email=f"{Role.OWNER}@{OWN}.test").update(email=OWNER)
    _adapters(tenant, base)
    _people(tenant)
    _usage(world, base)
    _requests(world)
    _money()
    _webhooks(world)
    _optimization(world)
    sign_up_begin(email=f"{'long' * 15}@{'domain' * 10}.example")
    for _ in range(3):
        audit_record(tenant=OWN, action="tenant.update", target=tenant, after={"name": tenant.name})
    return replace(world, people={**world.people, (EMPTY, Role.OWNER): _newcomer()})


def _adapters(tenant: Tenant, base: BaseModel) -> None:
    for at in range(24):
        name = LONG_SLUG if at == 0 else f"adapter-{at}"
        adapter = Adapter.objects.create(tenant=tenant, name=name, base_model=base, notes=hostile(2000))
        status = _STATES[at % len(_STATES)]
        AdapterVersion.objects.create(
            adapter=adapter,
            number=1,
            status=status,
            reason=hostile(300) if status == "refused" else "",
            sha256="ef" * 32 if status == "ready" else "",
            uri="file:///a/",
            rank=16,
            size_bytes=3_700_000,
            steps=[{"name": "files", "title": "Files", "status": "done", "detail": hostile(150)}],
        )
    AdapterVersion.objects.filter(adapter__name="pirate").update(
        notes=hostile(1000),
        dataset=hostile(500),
        run_url=f"https://runs.example/{'x' * 400}",
        size_bytes=10**9,
    )


def _people(tenant: Tenant) -> None:
    project = project_create(tenant=tenant, slug="hostile", name=hostile())
    Project.objects.filter(pk=project.pk).update(name=hostile())
    service_account_create(project=project, name=LONG_SLUG, role=Role.ENGINEER)
    for at in range(12):
        api_key_create(tenant=tenant, name=hostile(100) if at % 2 else f"backend {at}", scopes=["inference"])
    user_create(
        email=f"{'long' * 15}@{'domain' * 10}.test", password=PASSWORD, tenant=tenant, role=Role.ADMIN
    )


def _usage(world: World, base: BaseModel) -> None:
    today = timezone.now().date()
    engine = engine_name(tenant=OWN, adapter="pirate", version=1, sha256="ab" * 32)
    for ago in range(20):
        scale = 40 + (ago * 37) % 90
        for adapter in (engine, ""):
            UsageRollup.objects.create(
                day=today - dt.timedelta(days=ago),
                tenant=OWN,
                project="chat",
                key_id=world.values["public_id"],
                adapter=adapter,
                alias="",
                base_model=base.name,
                backend="worker",
                status="ok",
                requests=scale,
                prompt_tokens=scale * 210,
                cached_tokens=scale * 60,
                completion_tokens=scale * 130,
            )
        HostingHour.objects.create(
            kind="adapter",
            day=today - dt.timedelta(days=ago),
            hour=3,
            quantity_seconds=3600,
            tenant=OWN,
            adapter="pirate",
            base_model=base.name,
            tier="placed",
        )


def _requests(world: World) -> None:
    for number in range(30):
        logged(
            OWN,
            timezone.now(),
            number,
            request_id=f"r{number}",
            requested_model=hostile(),
            error_code=hostile(),
            status="error" if number % 3 else "ok",
            key_id=world.values["public_id"],
            base_model="tiny-base",
            attempt=number % 2,
        )


def _money() -> None:
    today = timezone.now().date()
    book = PriceBook.objects.get(name="standard")
    first = today - dt.timedelta(days=400)
    price_set(
        book=book,
        base_model="tiny-base",
        effective_from=first,
        input_nano=150,
        cached_input_nano=75,
        output_nano=600,
    )
    for whose in ("", OWN):
        party_set(tenant=whose, values={"legal_name": hostile(), "address": hostile(200)})
    for month in range(2, 12):
        Invoice.objects.create(
            tenant=OWN,
            month=dt.date(2025, month, 1),
            currency="USD",
            drafted_at=NOW,
            lines_nano=month * 10**12 + 1,
            due_nano=month * 10**12 + 1,
        )
    InstancePrice.objects.create(
        instance_type="ml.g6e.12xlarge",
        region="eu-central-1",
        effective_from=first,
        hour_nano=10**10,
        source=hostile(300),
    )


def _webhooks(world: World) -> None:
    WebhookEndpoint.objects.filter(pk=world.values["endpoint_id"]).update(
        description=hostile(), url=f"https://hooks.example/{'x' * 300}", failing_since=timezone.now()
    )
    WebhookDelivery.objects.filter(pk=world.values["delivery_id"]).update(
        status="failed",
        attempts=7,
        last_status=500,
        last_answer=hostile(500),
        last_ms=1234,
        last_at=timezone.now(),
    )


def _optimization(world: World) -> None:
    PromptSet.objects.update(name=hostile(100))
    OptimizationJob.objects.filter(pk=world.values["optimization"]).update(
        log_tail="\n".join(f"12:00:{second:02d} {hostile(300)}" for second in range(30)),
        reason=hostile(300),
        host="h" * 200 + ".example",
        attempts=3,
    )
    ComparisonRun.objects.filter(pk=world.values["comparison"]).update(
        name=hostile(100), status="done", percent=100, result=result()
    )
    advice = {"RecommendationDescription": hostile(300), "DeploymentConfiguration": {"ImageUri": "i" * 200}}
    Assessment.objects.filter(pk=world.values["assessment"]).update(
        name=hostile(100),
        remote={"options": {"workload": "w" * 300}},
        result={"recommendations": [advice], "output": f"s3://{'b' * 200}/", "files": ["f" * 200]},
    )


def _newcomer() -> Client:
    """The owner of an empty tenant, as after a sign-up."""
    tenant = tenant_create(slug=EMPTY, name="Newcomer")
    with override_settings(PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"]):
        owner = user_create(email=f"o@{EMPTY}.test", password=PASSWORD, tenant=tenant, role=Role.OWNER)
    client = Client()
    client.force_login(owner)
    return client
