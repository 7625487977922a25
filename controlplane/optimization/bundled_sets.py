"""Rows of the bundled prompt sets, which a migration adds."""

from __future__ import annotations

from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import StateApps

from contracts.recipes.bundled_prompts import BUNDLED


def add_bundled_sets(apps: StateApps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Add a row for each bundled set; the files are part of the installation."""
    rows = apps.get_model("optimization", "PromptSet").objects
    for prompts in BUNDLED.values():
        defaults = {"name": prompts.title, "lines": prompts.lines, "size": prompts.size}
        rows.get_or_create(pk=prompts.sha256, defaults=defaults)
