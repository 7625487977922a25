"""PostgreSQL's row policies, stated by the owner of each table's rows."""

from __future__ import annotations

from typing import Final

from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import ProjectState

# NULLIF: a setting that an earlier transaction of the connection made reads '' ever after.
TENANT: Final = "NULLIF(current_setting('graftwork.tenant', true), '')"
USER: Final = "NULLIF(current_setting('graftwork.user', true), '')"
KEY: Final = "NULLIF(current_setting('graftwork.key', true), '')"


def owned_by(column: str) -> str:
    """Condition for rows with the scope's tenant in `column`; every row for a scope of all tenants.

    The setting is read in a query of its own: once a statement instead of twice a row.
    """
    return f"{column} = (SELECT {TENANT}) OR (SELECT {TENANT}) = '*'"


def owned_through(table: str, column: str, parent: str) -> str:
    """Condition for rows with an accessible row of `parent` in `column`."""
    return f"EXISTS (SELECT 1 FROM {parent} AS owner WHERE owner.id = {table}.{column})"  # noqa: S608  # names of ours


class PostgresqlOperation(migrations.operations.base.Operation):
    """Migration operation that changes no model, and does nothing on databases other than PostgreSQL."""

    reversible = True
    atomic = True

    def forwards(self, editor: BaseDatabaseSchemaEditor) -> None:
        raise NotImplementedError

    def backwards(self, editor: BaseDatabaseSchemaEditor) -> None:
        raise NotImplementedError

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        pass

    def database_forwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, *states: ProjectState
    ) -> None:
        if schema_editor.connection.vendor == "postgresql":
            self.forwards(schema_editor)

    def database_backwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, *states: ProjectState
    ) -> None:
        if schema_editor.connection.vendor == "postgresql":
            self.backwards(schema_editor)


class RowPolicy(PostgresqlOperation):
    """Turn row security of `table` on.

    Args:
        using: condition of the rows that a role which does not own the table may read and write.
        find: condition of further rows that it may read.
    """

    def __init__(self, table: str, using: str, *, find: str | None = None) -> None:
        self.table, self.using, self.find = table, using, find

    def forwards(self, editor: BaseDatabaseSchemaEditor) -> None:
        self._drop(editor)
        editor.execute(f"CREATE POLICY graftwork_scope ON {self.table} USING ({self.using})")
        if self.find is not None:
            editor.execute(f"CREATE POLICY graftwork_find ON {self.table} FOR SELECT USING ({self.find})")
        editor.execute(f"ALTER TABLE {self.table} ENABLE ROW LEVEL SECURITY")

    def backwards(self, editor: BaseDatabaseSchemaEditor) -> None:
        editor.execute(f"ALTER TABLE {self.table} DISABLE ROW LEVEL SECURITY")
        self._drop(editor)

    def _drop(self, editor: BaseDatabaseSchemaEditor) -> None:
        for name in ("graftwork_scope", "graftwork_find"):
            editor.execute(f"DROP POLICY IF EXISTS {name} ON {self.table}")

    def describe(self) -> str:
        return f"Row policy of {self.table}"
