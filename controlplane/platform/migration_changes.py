"""Which differences between models and migrations need a new migration: those that the database sees."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from django.db.migrations.autodetector import MigrationAutodetector
from django.db.migrations.questioner import MigrationQuestioner
from django.db.migrations.state import ProjectState

IN_PYTHON_ALONE: Final = frozenset(
    {"blank", "choices", "help_text", "related_name", "validators", "verbose_name"}
)
"""A field's options that forms, queries and documents use, and that no column holds."""


class SchemaAutodetector(MigrationAutodetector):
    """Compares and writes fields without the options that no column holds (ADR 85)."""

    def __init__(
        self, from_state: ProjectState, to_state: ProjectState, questioner: MigrationQuestioner | None = None
    ) -> None:
        for state in (from_state, to_state):
            for model in state.models.values():
                for field in model.fields.values():
                    # Both the comparison and the writer of migrations ask the field itself.
                    field.deconstruct = partial(_column_options, field.deconstruct)
        super().__init__(from_state, to_state, questioner)


def _column_options(deconstruct: Callable[[], Any]) -> tuple[str | None, str, list[Any], dict[str, Any]]:
    """Return a field's name, class, arguments and options, as `Field.deconstruct` does."""
    name, path, arguments, options = deconstruct()
    kept = {key: value for key, value in options.items() if key not in IN_PYTHON_ALONE}
    return name, path, arguments, kept
