"""Fills a migrated database for the pages: `python -m benchmarks.pages.fill --adapters N`.

The last line printed has the sessions of the visitors and the parameters of the pages' addresses.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from uuid import UUID

from django.conf import settings
from django.db import connection, transaction
from django.db.models import Model
from django.test import Client
from django.utils import timezone

from benchmarks.controlplane_data import TENANT, build, name_of  # sets Django up
from benchmarks.pages.optimizations import optimizations_add
from controlplane.adapters.models import AdapterVersion
from controlplane.billing.credit_notes.services import credit_note_issue
from controlplane.billing.models import Invoice, LedgerHead
from controlplane.billing.parties.services import party_set
from controlplane.billing.services import price_book_create, price_set
from controlplane.catalog.models import BaseModel
from controlplane.deployments.models import Copy
from controlplane.deployments.services import deployment_create
from controlplane.deployments.targets.services import target_create
from controlplane.metering.models import HostingHour, UsageEventRow, UsageHour, UsageRollup
from controlplane.metering.partitions import partitions_ensure
from controlplane.platform.audit.services import audit_record
from controlplane.tenants.models import ApiKey, Membership, Project, ServiceAccount, Tenant, User
from controlplane.tenants.roles import Role
from controlplane.tenants.services import user_create
from controlplane.webhooks.models import WebhookDelivery, WebhookEndpoint, WebhookEvent

DAYS: Final = 30
_BATCH: Final = 2_000
Row = TypeVar("Row", bound=Model)


@dataclass(frozen=True)
class Counts:
    """Numbers of rows of each kind, for a tenant with `adapters` adapters."""

    adapters: int

    @property
    def keys(self) -> int:
        return self.adapters // 10

    @property
    def used(self) -> int:
        """Adapters that are used on a day."""
        return max(1, self.adapters // 10)

    @property
    def people(self) -> int:
        """Number of members, service accounts, other tenants, and audit log records each."""
        return max(2, self.adapters // 50)

    @property
    def events(self) -> int:
        """Number of requests; webhook deliveries are a tenth of it."""
        return self.adapters * 10


def fill(*, adapters: int) -> dict[str, str]:
    """Create everything; return the parameters of the pages' addresses."""
    build(adapters=adapters, keys=Counts(adapters).keys)
    tenant, base = Tenant.objects.get(pk=TENANT), BaseModel.objects.get()
    names = _operator(base) | around(tenant=tenant, base=base, count=Counts(adapters))
    names |= optimizations_add(base) | _credited(tenant)
    with connection.cursor() as cursor:
        # As autovacuum does within minutes; index-only scans need it.
        cursor.execute("VACUUM ANALYZE" if connection.vendor == "postgresql" else "ANALYZE")
    return names


def around(*, tenant: Tenant, base: BaseModel, count: Counts) -> dict[str, str]:
    """Create a tenant's rows besides adapters and keys; return their address parameters."""
    now = timezone.now()
    _people(tenant, count)
    _usage(tenant, base, count, now.date())
    endpoint, delivery = _webhooks(tenant, count)
    invoice = _invoices(tenant)
    version = AdapterVersion.objects.filter(adapter__tenant=tenant, status="ready").order_by("pk")[0]
    return {
        "tenant": tenant.pk,
        "slug": tenant.pk,
        "number": str(version.number),
        "alias": "prod",
        "name": version.adapter.name,
        "staff-residency.name": base.name,
        "adapter": version.ref().name,
        "public_id": ApiKey.objects.filter(tenant=tenant).order_by("pk")[0].pk,
        "endpoint_id": endpoint,
        "delivery_id": delivery,
        "invoice": invoice,
        "request_id": _requests(tenant, base, version, count, now),
        "staff-base-model.name": base.name,
        "staff-base-digests.name": base.name,
        "copy_id": Copy.objects.filter(base_model=base)[0].pk,
    }


def _people(tenant: Tenant, count: Counts) -> None:
    users = User.objects.bulk_create(
        User(email=f"person-{number:05}@scale.test") for number in range(count.people)
    )
    _insert(Membership(user=user, tenant=tenant, role=Role.VIEWER) for user in users)
    _insert(Project(tenant=tenant, slug=f"team-{number}", name=f"Team {number}") for number in range(20))
    project = tenant.projects.get(slug=Project.DEFAULT)
    _insert(
        ServiceAccount(tenant=tenant, project=project, name=f"ci-{number:05}", role=Role.VIEWER)
        for number in range(count.people)
    )
    _insert(
        Tenant(pk=f"other-{number:05}", name=f"Other {number}", cache_salt="00")
        for number in range(count.people)
    )
    with transaction.atomic():
        for number in range(count.people):
            audit_record(tenant=tenant.pk, action="tenant.update", target=tenant, after={"number": number})


def _usage(tenant: Tenant, base: BaseModel, count: Counts, today: dt.date) -> None:
    """Create rollups of 30 days, each with other adapters, and hosting hours for a tenth of those."""
    engines = _engines(tenant, count.used * 10)
    key = ApiKey.objects.filter(tenant=tenant).order_by("pk")[0].pk
    for ago in range(DAYS):
        used = engines[ago % 10 :: 10]
        sums = [
            {
                "day": today - dt.timedelta(days=ago),
                "tenant": tenant.pk,
                "project": Project.DEFAULT,
                "key_id": key,
                "adapter": engine,
                "alias": "prod",
                "base_model": base.name,
                "backend": "worker",
                "status": "ok",
                "requests": 40 + number % 90,
                "prompt_tokens": 8_000 + number,
                "cached_tokens": 2_000,
                "completion_tokens": 5_000,
            }
            for number, engine in enumerate(used)
        ]
        _insert(UsageRollup(**values) for values in sums)
        _insert(UsageHour(**values, hour=12) for values in sums)
        _insert(
            HostingHour(
                kind="adapter",
                day=today - dt.timedelta(days=ago),
                hour=12,
                quantity_seconds=3600,
                tenant=tenant.pk,
                adapter=engine,
                base_model=base.name,
                tier="stored",
            )
            for engine in used[: max(1, len(used) // 10)]
        )


def _engines(tenant: Tenant, most: int) -> list[str]:
    versions = AdapterVersion.objects.filter(adapter__tenant=tenant, status="ready", number=1)
    return [version.ref().name for version in versions.select_related("adapter").order_by("pk")[:most]]


def _requests(
    tenant: Tenant, base: BaseModel, version: AdapterVersion, count: Counts, now: dt.datetime
) -> str:
    """Create the requests of the last 20 hours; return the id of one."""
    begins = now - dt.timedelta(hours=20)
    step = dt.timedelta(hours=20) / count.events
    partitions_ensure({begins.date(), now.date()})
    engines = _engines(tenant, count.used)
    _insert(
        _event(tenant, base, begins + step * number, number, engines[number % len(engines)])
        for number in range(count.events)
    )
    return f"request-{count.events // 2}"


def _event(tenant: Tenant, base: BaseModel, at: dt.datetime, number: int, engine: str) -> UsageEventRow:
    milliseconds = int(at.timestamp() * 1000)
    return UsageEventRow(
        event_id=UUID(int=milliseconds << 80 | 7 << 76 | 2 << 62 | number),
        day=at.date(),
        hour=at.hour,
        tenant=tenant.pk,
        project=Project.DEFAULT,
        key_id="k",
        request_id=f"request-{number}",
        attempt=0,
        requested_model=name_of(number),
        alias="prod",
        arm="",
        adapter=engine,
        base_model=base.name,
        backend="worker",
        endpoint="copy-1",
        status="error" if number % 50 == 0 else "ok",
        error_code="upstream_error" if number % 50 == 0 else "",
        prompt_tokens=200,
        cached_tokens=50,
        completion_tokens=120,
        estimated=False,
        ttft_ms=80.0 + number % 40,
        duration_ms=900.0,
        started_at=milliseconds,
        gateway_id="gateway-1",
    )


def _webhooks(tenant: Tenant, count: Counts) -> tuple[str, str]:
    """Create ten endpoints, and an event per ten requests; return ids of an endpoint and a delivery."""
    endpoints = WebhookEndpoint.objects.bulk_create(
        WebhookEndpoint(
            id=f"we_{tenant.pk}_{number}",
            tenant=tenant,
            url=f"https://hooks.example/{number}",
            events=["adapter.deleted"],
            secret="sealed",
        )
        for number in range(10)
    )
    events = _insert(
        WebhookEvent(id=f"msg_{tenant.pk}_{number}", tenant=tenant, type="adapter.deleted", data={})
        for number in range(count.events // 10)
    )
    _insert(
        WebhookDelivery(
            event=event, endpoint=endpoints[number % 10], status="delivered", attempts=1, last_status=200
        )
        for number, event in enumerate(events)
    )
    last = endpoints[0].deliveries.order_by("-pk")[0]
    return endpoints[0].pk, str(last.pk)


def _invoices(tenant: Tenant) -> str:
    made = Invoice.objects.bulk_create(
        Invoice(
            tenant=tenant.pk,
            month=dt.date(2022 + number // 12, number % 12 + 1, 1),
            currency="USD",
            drafted_at=timezone.now(),
            lines_nano=10**12,
            due_nano=10**12,
        )
        for number in range(20)
    )
    return str(made[-1].pk)


def _credited(tenant: Tenant) -> dict[str, str]:
    """Create a credit note of a finalized invoice."""
    made = Invoice.objects.create(
        tenant=tenant.pk,
        month=dt.date(2021, 12, 1),
        currency="USD",
        drafted_at=timezone.now(),
        lines_nano=10**12,
        due_nano=10**12,
    )
    # The database only accepts drafts on insert.
    made.status, made.number, made.finalized_at = Invoice.Status.FINALIZED, 1, timezone.now()
    made.save()
    LedgerHead.objects.update_or_create(
        tenant=tenant.pk, defaults={"invoices": 1, "closed_through": made.month}
    )
    for party in ("", tenant.pk):
        party_set(tenant=party, values={"legal_name": "Fill Ltd", "address": "1 Main St"})
    return {"credit_note": str(credit_note_issue(invoice=made, reason="other", amount_nano=10**9).pk)}


def _operator(base: BaseModel) -> dict[str, str]:
    """Create prices and a deployment; return their address parameters."""
    book = price_book_create(name="standard")
    price_set(
        book=book,
        base_model=base.name,
        effective_from=dt.date(2022, 1, 1),
        input_nano=150,
        cached_input_nano=75,
        output_nano=600,
    )
    target = target_create(name="servers", kind="openai_http", urls=["http://127.0.0.1:1"])
    deployment_create(name="served", target=target, base_model=base)
    return {"staff-price-book.name": book.name, "deployment": "served"}


def _insert(rows: Iterator[Row]) -> list[Row]:
    """Insert the rows, and return them as they are in the database."""
    made = list(rows)
    if made:
        type(made[0])._base_manager.bulk_create(made, batch_size=_BATCH)
    return made


def sessions() -> dict[str, str]:
    """Return session keys of the tenant's owner and of a staff member, created by a login."""
    tenant = Tenant.objects.get(pk=TENANT)
    people: dict[str, dict[str, Any]] = {
        "tenant": {"email": "owner@scale.test", "tenant": tenant, "role": Role.OWNER},
        "staff": {"email": "staff@scale.test", "is_staff": True},
    }
    made = {}
    for whose, values in people.items():
        client = Client(SERVER_NAME="127.0.0.1")
        client.force_login(user_create(password="long-enough-7", **values))
        made[whose] = client.cookies[settings.SESSION_COOKIE_NAME].value
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--adapters", type=int, default=10_000)
    names = fill(adapters=parser.parse_args().adapters)
    print(json.dumps({"names": names, "sessions": sessions()}))


if __name__ == "__main__":
    main()
