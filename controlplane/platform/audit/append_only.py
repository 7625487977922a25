"""Triggers that keep the audit log append-only, and the one way to lift them.

They bind every role but the table's owner, since lifting them changes the schema.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper

TABLE: Final = "audit_auditrecord"
TRIGGER: Final = "audit_append_only"

_POSTGRESQL: Final = (
    """
    CREATE OR REPLACE FUNCTION audit_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        RAISE EXCEPTION 'the audit log is append-only: % is refused', TG_OP
            USING ERRCODE = 'integrity_constraint_violation';
    END $$
    """,
    f"DROP TRIGGER IF EXISTS {TRIGGER} ON {TABLE}",
    f"""
    CREATE TRIGGER {TRIGGER} BEFORE UPDATE OR DELETE OR TRUNCATE ON {TABLE}
    FOR EACH STATEMENT EXECUTE FUNCTION audit_refuse()
    """,
)
_REFUSE: Final = "BEGIN SELECT RAISE(ABORT, 'the audit log is append-only: {} is refused'); END"
_SQLITE: Final = (
    f"CREATE TRIGGER IF NOT EXISTS {TRIGGER}_update BEFORE UPDATE ON {TABLE} {_REFUSE.format('UPDATE')}",
    f"CREATE TRIGGER IF NOT EXISTS {TRIGGER}_delete BEFORE DELETE ON {TABLE} {_REFUSE.format('DELETE')}",
    # REPLACE deletes conflicting rows without firing a DELETE trigger.
    f"CREATE TRIGGER IF NOT EXISTS {TRIGGER}_replace BEFORE INSERT ON {TABLE} WHEN EXISTS ("  # noqa: S608
    f"SELECT 1 FROM {TABLE} WHERE id = NEW.id OR (tenant = NEW.tenant AND number = NEW.number))"
    f" {_REFUSE.format('REPLACE')}",
)


def install(connection: BaseDatabaseWrapper) -> None:
    """Create the triggers; a second call changes nothing."""
    with connection.cursor() as cursor:
        for statement in _POSTGRESQL if connection.vendor == "postgresql" else _SQLITE:
            cursor.execute(statement)


def remove(connection: BaseDatabaseWrapper) -> None:
    """Drop the triggers. On PostgreSQL only the table's owner may."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(f"DROP TRIGGER IF EXISTS {TRIGGER} ON {TABLE}")
            return
        for verb in ("update", "delete", "replace"):
            cursor.execute(f"DROP TRIGGER IF EXISTS {TRIGGER}_{verb}")


def installed(connection: BaseDatabaseWrapper) -> bool:
    """Return True if all triggers exist and are enabled."""
    sql, name, expected = (
        "SELECT count(*) FROM sqlite_master WHERE type = 'trigger' AND tbl_name = %s",
        TABLE,
        3,
    )
    if connection.vendor == "postgresql":
        sql = "SELECT count(*) FROM pg_trigger WHERE tgname = %s AND tgenabled IN ('O', 'A')"
        name, expected = TRIGGER, 1
    with connection.cursor() as cursor:
        cursor.execute(sql, [name])
        return bool(cursor.fetchone()[0] == expected)


@contextmanager
def lifted(connection: BaseDatabaseWrapper) -> Iterator[None]:
    """Lift the triggers inside the block, in one transaction; for the retention's deletion only."""
    with transaction.atomic(using=connection.alias):
        remove(connection)
        yield
        install(connection)
