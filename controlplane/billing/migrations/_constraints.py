"""Checks that are added to tables in use: PostgreSQL looks at the rows that there are later, and locks nobody out.

SQLite makes the table anew either way, and looks at its rows then.
"""

from typing import Any

from django.contrib.postgres.operations import AddConstraintNotValid, ValidateConstraint


class AddCheckForNewRows(AddConstraintNotValid):
    """Holds for what is written from now on; `ValidateCheck` of a later migration looks at the rest."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        postgresql = schema_editor.connection.vendor == "postgresql"
        of = super() if postgresql else super(AddConstraintNotValid, self)
        of.database_forwards(app_label, schema_editor, from_state, to_state)


class ValidateCheck(ValidateConstraint):
    """Reads the table while others write to it."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        if schema_editor.connection.vendor == "postgresql":
            super().database_forwards(app_label, schema_editor, from_state, to_state)
