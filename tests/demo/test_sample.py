"""The sample data agrees in itself, is added once, and is removed without what people made meanwhile."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
from django.db import connection
from django.db.models import Sum
from django.utils import timezone

from controlplane.adapters.models import Adapter, AdapterVersion
from controlplane.adapters.selectors import alias_get
from controlplane.adapters.services import adapter_publish
from controlplane.billing.invoices.services import invoice_draft
from controlplane.billing.ledger import append_only
from controlplane.billing.ledger.posting import books_check
from controlplane.billing.models import Invoice, JournalEntry
from controlplane.billing.months import month_of
from controlplane.canaries.models import Rollout, RolloutDecision
from controlplane.catalog.models import BaseModel
from controlplane.catalog.services import base_model_register
from controlplane.metering.event_rows import StreamEntry
from controlplane.metering.models import UsageEventRow, UsageHour, UsageRollup
from controlplane.metering.services import usage_ingest
from controlplane.platform.audit.selectors import chain_verify
from controlplane.tenants.limits.selectors import tenant_limits_get
from controlplane.tenants.models import ApiKey, Tenant
from controlplane.tenants.services import tenant_create
from demo.credentials import TENANTS
from demo.sample.canary import ADAPTER, ALIAS
from demo.sample.clock import history_start
from demo.sample.history import history_add, sample_keys
from demo.sample.removal import sample_remove
from demo.sample.traffic import Caller, Model, events
from demo.seed import price_book_seed
from tests.controlplane.conftest import write_checkpoint
from tests.controlplane.metering.test_ingest import usage_event

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.costly("ingests two months of usage")]
NOW = dt.datetime(2026, 11, 18, 15, 30, tzinfo=dt.UTC)


@pytest.fixture
def base_model(tmp_path: Path) -> BaseModel:
    """The demo's rows before the sample data, with both versions of the sample adapter validated."""
    base_model = base_model_register(name="tiny-base", source=write_checkpoint(tmp_path / "checkpoint"))
    price_book_seed(base_model)
    for plan in TENANTS:
        tenant_create(slug=plan.slug, name=plan.name)
    adapter = Adapter.objects.create(tenant_id="acme", name=ADAPTER, base_model=base_model)
    for number in (1, 2):
        AdapterVersion.objects.create(
            adapter=adapter, number=number, status="ready", sha256=f"{number}" * 64, uri="file:///a/", rank=2
        )
    adapter_publish(adapter=adapter)
    return base_model


def _counts() -> dict[str, int]:
    rows = (UsageEventRow, UsageRollup, JournalEntry, Invoice, RolloutDecision, ApiKey)
    return {model.__name__: model.objects.count() for model in rows}


def test_the_history_agrees_in_itself_and_is_added_once(
    base_model: BaseModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("demo.sample.traffic._LOAD", 0.2)
    history_add(base_model=base_model, now=NOW)
    counts = _counts()
    history_add(base_model=base_model, now=NOW)
    assert _counts() == counts
    assert UsageRollup.objects.aggregate(sum=Sum("requests"))["sum"] == counts["UsageEventRow"]
    assert UsageHour.objects.aggregate(sum=Sum("requests"))["sum"] == counts["UsageEventRow"]
    assert books_check(start=history_start(NOW).date(), end=NOW.date()) == []
    for plan in TENANTS:
        first, last, current = Invoice.objects.filter(tenant=plan.slug).order_by("month")
        assert first.is_final
        assert last.is_final
        assert not current.is_final
        paid = JournalEntry.objects.filter(tenant=plan.slug, kind="payment").get()
        assert (paid.invoice, paid.amount_nano) == (first, first.due_nano)
        assert chain_verify(tenant=plan.slug).fault == ""
    _canary_is_promoted()
    limits = tenant_limits_get(tenant=Tenant.objects.get(pk="acme"))
    assert limits.budget_nano is not None


def _canary_is_promoted() -> None:
    rollout = Rollout.objects.get()
    assert rollout.status == Rollout.Status.PROMOTED
    assert alias_get(adapter=rollout.adapter, name=ALIAS).version.number == 2
    kinds = list(rollout.decisions.values_list("kind", flat=True))
    assert (kinds[0], kinds[-1]) == ("start", "promote")
    assert all(decision.created_at < NOW for decision in rollout.decisions.all())
    arms = set(UsageEventRow.objects.exclude(arm="").values_list("arm", flat=True))
    assert arms == {"v1", "v2"}


def test_removal_leaves_usage_of_people(base_model: BaseModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("demo.sample.traffic._LOAD", 0.1)
    now = timezone.now()
    history_add(base_model=base_model, now=now)
    own = usage_event(
        day=now.date() - dt.timedelta(days=1), tenant="acme", base_model=base_model.name, key_id="mine"
    )
    usage_ingest(entries=[StreamEntry(f"{int(now.timestamp() * 1000)}-0", own.to_json().encode())])
    sample_remove()
    assert list(UsageEventRow.objects.values_list("key_id", flat=True)) == ["mine"]
    assert list(UsageRollup.objects.values_list("key_id", flat=True)) == ["mine"]
    assert not Invoice.objects.exists()
    assert not Adapter.objects.filter(name=ADAPTER).exists()
    assert not any(sample_keys(tenant) for tenant in Tenant.objects.all())
    assert append_only.installed(connection)
    draft = invoice_draft(tenant="acme", month=month_of(now.date()))
    assert {line.key_id for line in draft.lines.all()} == {"mine"}


def test_events_are_equal_for_equal_input_and_fewer_on_weekends() -> None:
    caller = Caller("acme", "tiny", 100, [("k", 1.0)])
    models = [Model("tiny", "", 1.0, 500, 100)]
    monday, sunday = dt.date(2026, 11, 16), dt.date(2026, 11, 15)

    def made(day: dt.date) -> list[str]:
        return [event.to_json() for event in events(caller, models, day=day, first=sunday, last=monday)]

    assert made(monday) == made(monday)
    assert len(made(sunday)) < len(made(monday)) / 2
