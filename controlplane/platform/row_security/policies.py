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


class RowPolicy(migrations.operations.base.Operation):
    """Turn row security of `table` on; do nothing on databases without it.

    Args:
        using: condition of the rows that a role which does not own the table may read and write.
        find: condition of further rows that it may read.
    """

    reversible = True
    atomic = True

    def __init__(self, table: str, using: str, *, find: str | None = None) -> None:
        self.table, self.using, self.find = table, using, find

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        pass

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        if schema_editor.connection.vendor == "postgresql":
            _state(schema_editor, self.table, self.using, find=self.find)
            schema_editor.execute(f"ALTER TABLE {self.table} ENABLE ROW LEVEL SECURITY")

    def database_backwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        if schema_editor.connection.vendor == "postgresql":
            schema_editor.execute(f"ALTER TABLE {self.table} DISABLE ROW LEVEL SECURITY")
            for name in ("graftwork_scope", "graftwork_find"):
                schema_editor.execute(f"DROP POLICY IF EXISTS {name} ON {self.table}")

    def describe(self) -> str:
        return f"Row policy of {self.table}"


def _state(editor: BaseDatabaseSchemaEditor, table: str, using: str, *, find: str | None = None) -> None:
    """Recreate the table's policies: `graftwork_scope` for all uses, `graftwork_find` for reading."""
    for name in ("graftwork_scope", "graftwork_find"):
        editor.execute(f"DROP POLICY IF EXISTS {name} ON {table}")
    editor.execute(f"CREATE POLICY graftwork_scope ON {table} USING ({using})")
    if find is not None:
        editor.execute(f"CREATE POLICY graftwork_find ON {table} FOR SELECT USING ({find})")
