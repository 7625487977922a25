"""The triggers that keep the audit log append-only, and the one way past them.

They hold for everyone who is not the table's owner: lifting them is a change of the schema.
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
    # REPLACE deletes what stands in its way without a DELETE trigger being asked.
    f"CREATE TRIGGER IF NOT EXISTS {TRIGGER}_replace BEFORE INSERT ON {TABLE} WHEN EXISTS ("  # noqa: S608
    f"SELECT 1 FROM {TABLE} WHERE id = NEW.id OR (tenant = NEW.tenant AND number = NEW.number))"
    f" {_REFUSE.format('REPLACE')}",
)


def install(connection: BaseDatabaseWrapper) -> None:
    """Makes the triggers; a second call changes nothing."""
    with connection.cursor() as cursor:
        for statement in _POSTGRESQL if connection.vendor == "postgresql" else _SQLITE:
            cursor.execute(statement)


def remove(connection: BaseDatabaseWrapper) -> None:
    """Takes the triggers away. PostgreSQL lets the table's owner alone do this."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(f"DROP TRIGGER IF EXISTS {TRIGGER} ON {TABLE}")
            return
        for verb in ("update", "delete", "replace"):
            cursor.execute(f"DROP TRIGGER IF EXISTS {TRIGGER}_{verb}")


def installed(connection: BaseDatabaseWrapper) -> bool:
    """Whether all triggers stand, and are on."""
    sql, name, wanted = (
        "SELECT count(*) FROM sqlite_master WHERE type = 'trigger' AND tbl_name = %s",
        TABLE,
        3,
    )
    if connection.vendor == "postgresql":
        sql = "SELECT count(*) FROM pg_trigger WHERE tgname = %s AND tgenabled IN ('O', 'A')"
        name, wanted = TRIGGER, 1
    with connection.cursor() as cursor:
        cursor.execute(sql, [name])
        return bool(cursor.fetchone()[0] == wanted)


@contextmanager
def lifted(connection: BaseDatabaseWrapper) -> Iterator[None]:
    """For the retention's deletion alone: no trigger inside, all of them after, in one transaction."""
    with transaction.atomic(using=connection.alias):
        remove(connection)
        yield
        install(connection)
