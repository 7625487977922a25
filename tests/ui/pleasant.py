"""The world of the isolation tests as a customer might have it: what docs/screenshots show."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

from django.db import transaction
from django.utils import timezone

from contracts.adapters.reference import engine_name
from controlplane.adapters.models import Adapter, AdapterVersion, AliasChange
from controlplane.billing.ledger.posting import usage_post
from controlplane.billing.models import PriceBook
from controlplane.billing.parties.services import party_set
from controlplane.billing.reports.instance_prices import instance_price_set
from controlplane.billing.services import price_book_create, price_set
from controlplane.billing.terms import term_create, term_end
from controlplane.catalog.models import BaseModel
from controlplane.metering.models import HostingHour, UsageRollup
from controlplane.operations.models import TenantDeletion
from controlplane.optimization.models import ComparisonRun, OptimizationJob, PromptSet
from controlplane.platform.audit.origin import Actor, Origin, acting
from controlplane.sign_up.services import sign_up_begin
from controlplane.tenants.models import ApiKey, Tenant
from controlplane.tenants.services import api_key_create, project_create, tenant_create, tenant_suspend
from tests.controlplane.metering.event_log import logged
from tests.controlplane.optimization.measured import result
from tests.controlplane.world import OWN, World, world_make

ADAPTERS = {
    "support-bot": "ready",
    "tone-of-voice": "ready",
    "contract-review": "ready",
    "sql-writer": "refused",
    "triage-de": "ready",
    "summaries": "validating",
    "ticket-router": "ready",
}
"""Adapter -> the state of its only version."""
_STEPS = [
    {"name": "files", "title": "Files received", "status": "done", "detail": "two files, 3.7 MB"},
    {"name": "tensors", "title": "Tensors", "status": "done", "detail": "120 tensors, rank 16"},
    {"name": "publish", "title": "Stored and routed", "status": "done", "detail": ""},
]
_REASON = "layers.0.self_attn.q_proj.lora_B has shape [32, 4], expected [16, 4]"


def world_furnish(folder: Path) -> World:
    """Fill the world with plausible names, figures and history."""
    who = Actor("user", "1", "ada@globex.example")
    with acting(Origin(lambda: who, address="192.0.2.7", user_agent="Firefox")), transaction.atomic():
        return _furnished(folder)


def _furnished(folder: Path) -> World:
    world = world_make(folder)
    TenantDeletion.objects.all().delete()
    for slug, name in ((OWN, "Globex Robotics"), ("acme", "Acme Support")):
        Tenant.objects.filter(pk=slug).update(name=name)
    tenant, base = Tenant.objects.get(pk=OWN), BaseModel.objects.get(name="tiny-base")
    BaseModel.objects.filter(pk=base.pk).update(
        licence="Apache-2.0", source="hf://globex/tiny-base", architecture="LlamaForCausalLM"
    )
    _adapters(tenant, base)
    project_create(tenant=tenant, slug="website", name="Website")
    for name in ("Website backend", "Nightly evaluation", "Mobile app"):
        api_key_create(tenant=tenant, name=name, scopes=["inference"])
    ApiKey.objects.filter(tenant=tenant, name="inference").update(name="Chat service")
    _usage(world, base)
    _requests(world)
    _money()
    _hosted()
    _price_books()
    usage_post(tenant=OWN, start=timezone.now().date() - dt.timedelta(days=29), end=timezone.now().date())
    behind = tenant_create(slug="initech", name="Initech")
    tenant_suspend(tenant=behind, reason="Two invoices are overdue: INITECH-000004 and INITECH-000005")
    PromptSet.objects.update(name="Support questions, March", lines=200, size=48_000)
    OptimizationJob.objects.filter(pk=world.values["optimization"]).update(
        status="running",
        phase="checkpoint",
        percent=41.5,
        eta_seconds=95,
        started_at=timezone.now(),
        ended_at=None,
        host="optimizer-1.example",
        attempts=1,
        lease_owner="x",
        lease_until=timezone.now(),
        log_tail="\n".join(f"12:00:{at:02d} info: layer {at} of 30 quantized" for at in range(12)),
    )
    ComparisonRun.objects.filter(pk=world.values["comparison"]).update(
        name="int8 beside the original", status="done", percent=100, result=result()
    )
    sign_up_begin(email="ada@newcomer.example")
    return world


def _adapters(tenant: Tenant, base: BaseModel) -> None:
    for name, status in ADAPTERS.items():
        adapter = Adapter.objects.create(
            tenant=tenant,
            name=name,
            base_model=base,
            notes="Trained on resolved tickets.",
            labels={"team": "support"},
        )
        is_ready = status == "ready"
        AdapterVersion.objects.create(
            adapter=adapter,
            number=1,
            status=status,
            reason=_REASON if status == "refused" else "",
            sha256="ef" * 32 if is_ready else "",
            uri="file:///a/" if is_ready else "",
            rank=16 if is_ready else None,
            size_bytes=3_700_000 if is_ready else None,
            steps=_STEPS,
        )
    AdapterVersion.objects.filter(adapter__name="pirate").update(
        steps=_STEPS,
        size_bytes=3_700_000,
        notes="Second pass over the spring tickets.",
        dataset="tickets-2026-03",
        run_url="https://runs.example/spring/7",
    )


def _usage(world: World, base: BaseModel) -> None:
    today = timezone.now().date()
    for at, adapter in enumerate(("pirate", "support-bot", "contract-review", "")):
        engine = engine_name(tenant=OWN, adapter=adapter, version=1, sha256="ab" * 32) if adapter else ""
        for ago in range(30):
            scale = (400 >> at) + (ago * 37) % 90
            UsageRollup.objects.create(
                day=today - dt.timedelta(days=ago),
                tenant=OWN,
                project="chat",
                key_id=world.values["public_id"],
                adapter=engine,
                alias="",
                base_model=base.name,
                backend="worker",
                status="ok",
                requests=scale,
                prompt_tokens=scale * 210,
                cached_tokens=scale * 60,
                completion_tokens=scale * 130,
            )


def _requests(world: World) -> None:
    """A week's single requests; of the last minutes what both arms of pirate@prod answered."""
    now = timezone.now()
    told = {"key_id": world.values["public_id"], "base_model": "tiny-base"}
    for ago in range(7):
        for number in range(20):
            at = now - dt.timedelta(days=ago, minutes=number + 30)
            ttft_ms = 70.0 + (number * 37 + ago * 23) % 90
            logged(OWN, at, number, requested_model="support-bot", ttft_ms=ttft_ms, **told)
    AliasChange.objects.update(created_at=now - dt.timedelta(minutes=20))
    for number in range(64):
        version, sha256 = (3, "cd" * 32) if number % 16 == 5 else (1, "ab" * 32)
        engine = engine_name(tenant=OWN, adapter="pirate", version=version, sha256=sha256)
        logged(
            OWN,
            now - dt.timedelta(seconds=10 * number),
            number,
            requested_model="pirate@prod",
            alias="prod",
            adapter=engine,
            arm=f"v{version}",
            ttft_ms=60.0 + (number * 37) % 50,
            **told,
        )


def _hosted() -> None:
    """Create a month of hosting of four adapters and of their shared machine."""
    today = timezone.now().date()
    for machine, nano in (("ml.g6.2xlarge", 1_527_000_000), ("ml.g6.12xlarge", 7_190_000_000)):
        instance_price_set(
            instance_type=machine,
            region="eu-central-1",
            effective_from=today - dt.timedelta(days=400),
            hour_nano=nano,
            source="Our contract of this year",
        )
    names = ("pirate", "support-bot", "contract-review", "tone-of-voice", "triage-de", "ticket-router")
    rows = [
        HostingHour(day=today - dt.timedelta(days=ago), hour=hour, quantity_seconds=3600, **what)
        for ago in range(30)
        for hour in range(24)
        for what in (
            {"kind": "instance", "instance_type": "ml.g6.12xlarge", "deployment": "tiny-workers"},
            *(
                {
                    "kind": "adapter",
                    "tenant": OWN,
                    "base_model": "tiny-base",
                    "tier": tier,
                    "adapter": engine_name(tenant=OWN, adapter=name, version=1, sha256="ab" * 32),
                }
                for name in names
                for tier in ("stored", "placed")
            ),
        )
    ]
    HostingHour.objects.bulk_create(rows, batch_size=1000)


def _price_books() -> None:
    """Everyone's next year's, and a tenant's own that has ended."""
    today = timezone.now().date()
    standard = PriceBook.objects.get(name="standard")
    term_end(term=standard.terms.get(tenant=""), ends=today + dt.timedelta(days=120))
    price_book_create(name="next-year", starts=today + dt.timedelta(days=121))
    term_create(
        book=price_book_create(name="globex-pilot"),
        tenant=Tenant.objects.get(pk=OWN),
        starts=today - dt.timedelta(days=300),
        ends=today - dt.timedelta(days=90),
    )


def _money() -> None:
    price_set(
        book=PriceBook.objects.get(name="standard"),
        base_model="tiny-base",
        input_nano=150,
        effective_from=timezone.now().date() - dt.timedelta(days=400),
        cached_input_nano=75,
        output_nano=600,
    )
    for whose, name in (("", "Graftwork Hosting GmbH"), (OWN, "Globex Robotics Ltd")):
        party_set(tenant=whose, values={"legal_name": name, "address": "1 High Street\nLondon"})
