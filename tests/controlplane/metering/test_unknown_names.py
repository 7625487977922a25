"""Usage events of an unknown tenant or base model become dead letters with a reason, and are replayed."""

from __future__ import annotations

import pytest
from django.core.management import call_command

from controlplane.billing.services import price_book_create
from controlplane.metering.event_rows import StreamEntry
from controlplane.metering.models import DeadUsageEvent, UsageEventRow
from controlplane.metering.replay import dead_usage_replay
from controlplane.metering.services import usage_ingest
from controlplane.platform.audit.models import AuditChain
from controlplane.tenants.models import Tenant
from controlplane.tenants.services import tenant_create
from tests.controlplane.known import known
from tests.controlplane.metering.test_ingest import drain, rollup_sums, send, stream_id, usage_event

pytestmark = pytest.mark.django_db(transaction=True)


def test_what_names_nobody_is_dead_alone_until_it_is_replayed(redis_url: str) -> None:
    known("tiny-base")
    send(
        redis_url,
        usage_event("ok").to_json(),
        usage_event("who", tenant="nobody").to_json(),
        usage_event("what", base_model="no-such-base").to_json(),
        "{",
    )
    drain(redis_url)
    assert set(UsageEventRow.objects.values_list("request_id", flat=True)) == {"ok"}
    reasons = {letter.tenant: letter.reason for letter in DeadUsageEvent.objects.all()}
    assert "there is no tenant 'nobody'" in reasons["nobody"]
    assert "there is no base model 'no-such-base'" in reasons["acme"]
    assert DeadUsageEvent.objects.count() == 3, "with the one that is no JSON"
    assert dead_usage_replay() == (0, 3), "nothing has come since"
    assert "there is no tenant" in DeadUsageEvent.objects.get(tenant="nobody").reason
    known("no-such-base", tenants=("nobody",))
    call_command("replay_usage")
    assert DeadUsageEvent.objects.count() == 1
    assert rollup_sums() == (3, 30, 12, 9)
    # A gateway without an acknowledgement sends all of its events again.
    send(redis_url, usage_event("who", tenant="nobody").to_json(), usage_event("ok").to_json())
    drain(redis_url)
    assert rollup_sums() == (3, 30, 12, 9)


def test_what_a_purged_tenant_used_before_still_counts() -> None:
    known("tiny-base", tenants=("gone",))
    entries = [
        StreamEntry(stream_id(n), usage_event(f"r{n}", tenant="gone").to_json().encode()) for n in range(2)
    ]
    assert usage_ingest(entries=entries[:1]) == 1
    Tenant.objects.all().delete()
    assert usage_ingest(entries=entries[1:]) == 1
    assert not DeadUsageEvent.objects.exists()


def test_a_purged_tenants_first_usage_counts_as_well() -> None:
    known("tiny-base", tenants=())
    tenant = tenant_create(slug="gone", name="Gone")
    entry = StreamEntry(stream_id(0), usage_event("late", tenant="gone").to_json().encode())
    stranger = StreamEntry(stream_id(1), usage_event("who", tenant="nobody").to_json().encode())
    tenant.delete()
    assert usage_ingest(entries=[entry, stranger]) == 1
    assert DeadUsageEvent.objects.get().tenant == "nobody"


def test_the_platforms_own_audit_chain_makes_no_tenant_without_a_name() -> None:
    known("tiny-base")
    price_book_create(name="standard")
    assert AuditChain.objects.filter(tenant="").exists(), "what staff did for all"
    entry = StreamEntry(stream_id(0), usage_event("nobodys", tenant="").to_json().encode())
    assert usage_ingest(entries=[entry]) == 0
    assert "there is no tenant ''" in DeadUsageEvent.objects.get().reason


def test_a_replay_logs_a_line_a_reason_not_a_letter(caplog: pytest.LogCaptureFixture) -> None:
    known("tiny-base")
    texts = [usage_event(f"r{n}", tenant="nobody").to_json() for n in range(40)] + ["{", "{"]
    usage_ingest(entries=[StreamEntry(stream_id(n), text.encode()) for n, text in enumerate(texts)])
    assert len(caplog.records) == 2
    caplog.clear()
    assert dead_usage_replay() == (0, 42)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2, lines
    assert lines[0].startswith("40 usage entries are dead: there is no tenant 'nobody'")
