"""The database itself refuses to alter the audit log."""

from __future__ import annotations

import pytest
from django.core.management import CommandError, call_command
from django.db import IntegrityError, connection, transaction

from controlplane.platform.audit import append_only
from controlplane.platform.audit.models import AuditRecord
from controlplane.tenants.models import Tenant

pytestmark = pytest.mark.django_db


def refused(sql: str) -> None:
    with (
        pytest.raises(IntegrityError, match="append-only"),
        transaction.atomic(),
        connection.cursor() as cursor,
    ):
        cursor.execute(sql)


def test_no_record_is_changed_or_removed(tenant: Tenant) -> None:
    before = list(AuditRecord.objects.values())
    assert before
    for change in (
        lambda: AuditRecord.objects.update(action="nothing.happened"),
        lambda: AuditRecord.objects.all().delete(),
        lambda: AuditRecord.objects.earliest("id").save(),
    ):
        with pytest.raises(IntegrityError, match="append-only"), transaction.atomic():
            change()
    refused("UPDATE audit_auditrecord SET actor_name = 'somebody else'")
    refused("DELETE FROM audit_auditrecord")
    assert list(AuditRecord.objects.values()) == before


def test_the_table_is_not_emptied_at_a_stroke(tenant: Tenant) -> None:
    if connection.vendor == "postgresql":
        refused("TRUNCATE audit_auditrecord CASCADE")
    else:
        record = AuditRecord.objects.earliest("id")
        columns = [str(field.column) for field in AuditRecord._meta.concrete_fields]
        for own_id in (str(record.pk), "NULL"):
            copied = ", ".join([own_id, *columns[1:-1], "'forged'"])
            names = ", ".join(columns)
            refused(f"REPLACE INTO audit_auditrecord ({names}) SELECT {copied} FROM audit_auditrecord")
    assert AuditRecord.objects.exists()


def test_a_lifting_that_fails_leaves_the_triggers(tenant: Tenant) -> None:
    def fail() -> None:
        with append_only.lifted(connection):
            assert not append_only.installed(connection)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert append_only.installed(connection)
    with pytest.raises(IntegrityError), transaction.atomic():
        AuditRecord.objects.all().delete()


def test_missing_triggers_are_told_and_made_anew(db: None) -> None:
    call_command("check", database=["default"])
    append_only.remove(connection)
    with pytest.raises(CommandError, match=r"audit\.E001"):
        call_command("check", database=["default"])
    call_command("audit_protect")
    call_command("check", database=["default"])
