"""Makes and removes triggers as one migration has them, whatever the code of today would make."""

from collections.abc import Iterable
from typing import Protocol

from django.db.backends.base.base import BaseDatabaseWrapper


class Triggers(Protocol):
    """A module of a migration: statements for PostgreSQL, and what follows each trigger's name on SQLite."""

    POSTGRESQL: tuple[str, ...]
    POSTGRESQL_REMOVED: tuple[str, ...]
    SQLITE: dict[str, str]


def make(connection: BaseDatabaseWrapper, triggers: Triggers) -> None:
    """A second call changes nothing."""
    made = (f"CREATE TRIGGER IF NOT EXISTS {name} {body}" for name, body in triggers.SQLITE.items())
    _execute(connection, triggers.POSTGRESQL if connection.vendor == "postgresql" else made)


def remove(connection: BaseDatabaseWrapper, triggers: Triggers) -> None:
    """Those that there are."""
    removed = (f"DROP TRIGGER IF EXISTS {name}" for name in triggers.SQLITE)
    _execute(connection, triggers.POSTGRESQL_REMOVED if connection.vendor == "postgresql" else removed)


def _execute(connection: BaseDatabaseWrapper, statements: Iterable[str]) -> None:
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
