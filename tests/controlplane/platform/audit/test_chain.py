"""A tenant's records form a chain that shows what was altered; retention shortens it in the open."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.utils import timezone

from controlplane.platform.audit.append_only import lifted
from controlplane.platform.audit.export import record_line
from controlplane.platform.audit.models import AuditChain, AuditRecord
from controlplane.platform.audit.selectors import chain_tenants, chain_verify
from controlplane.tenants.models import Tenant
from controlplane.tenants.services import api_key_create, tenant_create

pytestmark = pytest.mark.django_db


@pytest.fixture
def log(tenant: Tenant) -> list[AuditRecord]:
    """Five records of acme."""
    for number in range(4):
        api_key_create(tenant=tenant, name=f"k{number}", scopes=["manage"])
    return list(AuditRecord.objects.filter(tenant="acme").order_by("number"))


def test_a_log_left_alone_is_whole(log: list[AuditRecord]) -> None:
    report = chain_verify(tenant="acme")
    assert (report.records, report.fault) == (5, "")
    assert [record.number for record in log] == [1, 2, 3, 4, 5]
    call_command("audit_verify")


@pytest.mark.parametrize(
    ("tamper", "fault"),
    [
        (lambda log: log.filter(number=3).update(actor_name="mallory"), "record 3 was altered"),
        (lambda log: log.filter(number=3).update(after={"name": "harmless"}), "record 3 was altered"),
        (lambda log: log.filter(number=3).update(at=timezone.now()), "record 3 was altered"),
        (lambda log: log.filter(number=3).delete(), "record 3 is missing"),
        (lambda log: log.filter(number__gte=4).delete(), "records after 3 are missing"),
        (lambda log: log.all().delete(), "records after 0 are missing"),
    ],
)
def test_what_was_altered_past_the_triggers_is_found(
    log: list[AuditRecord], tamper: Callable[..., object], fault: str
) -> None:
    with lifted(connection):
        tamper(AuditRecord.objects.filter(tenant="acme"))
    assert fault in chain_verify(tenant="acme").fault
    with pytest.raises(CommandError, match="1 audit logs failed verification"):
        call_command("audit_verify")


def test_a_line_of_an_export_proves_its_record_by_itself(log: list[AuditRecord]) -> None:
    previous = "0" * 64
    for record in log:
        values = json.loads(record_line(record))
        digest = values.pop("sha256")
        text = json.dumps(values, sort_keys=True, separators=(",", ":"))
        assert values["previous_sha256"] == previous
        assert hashlib.sha256(text.encode()).hexdigest() == digest
        previous = digest
    assert AuditChain.objects.get(tenant="acme").sha256 == previous


@pytest.mark.django_db(transaction=True)
def test_changes_at_once_are_chained_one_after_another() -> None:
    tenants = [tenant_create(slug=slug, name=slug) for slug in ("acme", "globex")]

    def make(number: int) -> None:
        try:
            api_key_create(tenant=tenants[number % 2], name=f"k{number}", scopes=["manage"])
        finally:
            connection.close()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(make, range(12)))
    assert {name: chain_verify(tenant=name).records for name in chain_tenants()} == {"acme": 7, "globex": 7}
    assert [chain_verify(tenant=name).fault for name in chain_tenants()] == ["", ""]


@pytest.fixture
def aged(log: list[AuditRecord]) -> list[AuditRecord]:
    """The same log with three records of two years ago; their digests are computed anew."""
    long_ago = timezone.now() - dt.timedelta(days=730)
    with lifted(connection):
        previous = "0" * 64
        for record in log:
            record.at = long_ago if record.number <= 3 else record.at
            record.previous_sha256 = previous
            values = {**json.loads(record_line(record))}
            del values["sha256"]
            text = json.dumps(values, sort_keys=True, separators=(",", ":"))
            record.sha256 = previous = hashlib.sha256(text.encode()).hexdigest()
            record.save()
    AuditChain.objects.filter(tenant="acme").update(sha256=previous)
    assert chain_verify(tenant="acme").fault == ""
    return log


def test_retention_archives_removes_and_tells(aged: list[AuditRecord], tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    call_command("audit_prune", older_than=400, by="kim", archive=file)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(line["tenant"], line["number"]) for line in lines] == [("acme", 1), ("acme", 2), ("acme", 3)]
    kept = AuditRecord.objects.filter(tenant="acme").order_by("number")
    assert [record.number for record in kept] == [4, 5, 6]
    told = kept[2]
    assert (told.action, told.actor_name) == ("audit.prune", "kim")
    assert told.after is not None
    assert (told.after["through"], told.after["sha256"]) == (3, lines[-1]["sha256"])
    assert chain_verify(tenant="acme").fault == ""
    with pytest.raises(CommandError, match="exists"):
        call_command("audit_prune", older_than=400, by="kim", archive=file)
    call_command("audit_prune", older_than=400, by="kim", no_archive=True)
    assert kept.count() == 3, "there was nothing to remove, so nothing is told"


def test_what_is_young_is_kept_whoever_asks(aged: list[AuditRecord]) -> None:
    with pytest.raises(CommandError, match="GRAFTWORK_AUDIT_KEEP_DAYS"):
        call_command("audit_prune", older_than=364, by="kim", no_archive=True)
    assert AuditRecord.objects.filter(tenant="acme").count() == 5
