"""`python -m tests.architecture.migration_lint`: whether migrations leave the release before them working.

While a new release is rolled out, servers of the old one run on the migrated database. What they insert
lacks a new column: it needs a default of the database's own (`db_default`), since Django drops the one that
it fills old rows with. What they read must not be gone: a column goes in the release after the one that
stopped using it. A check of the rows that there are locks their table. On PostgreSQL
django-migration-linter reads the SQL besides.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import django
from django.contrib.postgres.operations import AddConstraintNotValid
from django.db import connection
from django.db.migrations import Migration
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.operations import (
    AddConstraint,
    AddField,
    CreateModel,
    DeleteModel,
    RemoveField,
    RenameField,
    RenameModel,
)
from django.db.models import NOT_PROVIDED, CheckConstraint
from django_migration_linter import MigrationLinter

_RELAXING = ("metering.0002_images_and_operation",)
"""Migrations that replace a unique constraint by one with more columns, which every row satisfies."""


def faults(migration: Migration) -> Iterator[str]:
    """Yield each operation of a migration that would break servers of the previous release."""
    made = {operation.name_lower for operation in migration.operations if isinstance(operation, CreateModel)}
    for operation in migration.operations:
        match operation:
            case AddField() if operation.model_name_lower not in made and _is_needed(operation.field):
                yield f"adds {operation.model_name}.{operation.name}: give it a db_default, or null=True"
            case AddConstraint(constraint=CheckConstraint()) if operation.model_name_lower not in made:
                if not isinstance(operation, AddConstraintNotValid):
                    yield (
                        f"checks all rows of {operation.model_name}, which nobody may write to meanwhile: add"
                        f" {operation.constraint.name} not valid, and validate it in a later migration"
                    )
            case RemoveField() | DeleteModel():
                yield f"{operation.describe()}: first release a version that does not use it"
            case RenameField() | RenameModel():
                yield f"{operation.describe()}: add the new one, copy, and remove the old one a release later"


def _is_needed(field: Any) -> bool:
    """Return True if the database refuses a row without a value for the new column."""
    return not (field.null or field.many_to_many or field.db_default is not NOT_PROVIDED)


def own_migrations() -> dict[str, Migration]:
    """The control plane's, by `app.migration`."""
    found = MigrationLoader(None).disk_migrations
    own = {key: migration for key, migration in found.items() if "controlplane" in migration.__module__}
    return {f"{app}.{name}": migration for (app, name), migration in own.items()}


class SqlLinter(MigrationLinter):
    """django-migration-linter over the same migrations."""

    def should_ignore_migration(
        self, app_label: str, migration_name: str, operations: Iterable[Any] = (), is_initial: bool = False
    ) -> bool:
        name = f"{app_label}.{migration_name}"
        return is_initial or name in _RELAXING or name not in own_migrations()


def lint() -> bool:
    """Prints what is wrong; whether all is well."""
    found = {name: list(faults(migration)) for name, migration in own_migrations().items()}
    for name, texts in found.items():
        for text in texts:
            print(f"{name} {text}")
    linter = None
    if connection.vendor == "postgresql":
        style = ["RUNPYTHON_MODEL_IMPORT", "RUNPYTHON_MODEL_VARIABLE_NAME"]
        linter = SqlLinter(no_cache=True, quiet=["ok", "ignore"], exclude_migration_tests=style)
        linter.lint_all_migrations()
    return not any(found.values()) and not (linter and linter.has_errors)


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
    django.setup()
    sys.exit(0 if lint() else 1)
