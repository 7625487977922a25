"""Migrations leave servers of the release before them working."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import psycopg
import pytest
from django.apps import apps
from django.contrib.postgres.operations import AddConstraintNotValid
from django.core.validators import MinValueValidator
from django.db import migrations, models
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState
from django.db.migrations.writer import MigrationWriter

from controlplane.platform.migration_changes import SchemaAutodetector
from tests.architecture.migration_lint import faults, own_migrations
from tests.conftest import ROOT

URL = os.environ.get("GRAFTWORK_TEST_POSTGRES_URL", "postgresql://postgres@127.0.0.1:5432/postgres")


def test_no_migration_breaks_an_older_server() -> None:
    found = {name: list(faults(migration)) for name, migration in own_migrations().items()}
    assert {name: texts for name, texts in found.items() if texts} == {}


@pytest.mark.costly("runs the lint as a process")
def test_the_sql_for_postgresql_is_linted() -> None:
    try:
        psycopg.connect(URL, connect_timeout=2).close()
    except psycopg.OperationalError as error:
        absent = pytest.fail if os.environ.get("CI") else pytest.skip
        absent(f"no PostgreSQL: set GRAFTWORK_TEST_POSTGRES_URL ({error})")
    result = subprocess.run(
        [sys.executable, "-m", "tests.architecture.migration_lint"],
        env=os.environ | {"GRAFTWORK_DATABASE_URL": URL},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr[-2000:]
    assert "sqlmigrate" in result.stderr, "the SQL was looked at"


_CHECK = models.CheckConstraint(condition=models.Q(n__gt=0), name="tenant_n")


def migration(*operations: Operation) -> migrations.Migration:
    new = type("Migration", (migrations.Migration,), {"operations": list(operations)})
    made: migrations.Migration = new("0009_new", "tenants")
    return made


@pytest.mark.parametrize(
    ("operation", "count"),
    [
        (migrations.AddField("tenant", "n", models.IntegerField(default=0)), 1),
        (migrations.AddField("tenant", "n", models.IntegerField(default=0, db_default=0)), 0),
        (migrations.AddField("tenant", "n", models.IntegerField(null=True)), 0),
        (migrations.RemoveField("tenant", "name"), 1),
        (migrations.RenameField("tenant", "name", "title"), 1),
        (migrations.DeleteModel("tenant"), 1),
        (migrations.CreateModel("other", [("n", models.IntegerField())]), 0),
        (migrations.AddConstraint("tenant", _CHECK), 1),
        (AddConstraintNotValid("tenant", _CHECK), 0),
    ],
)
def test_what_an_older_server_stumbles_over_is_found(operation: Operation, count: int) -> None:
    assert len(list(faults(migration(operation)))) == count


def new_migrations(changed: tuple[str, str], field: models.Field[Any, Any]) -> list[migrations.Migration]:
    """Return the migrations that are needed where a model of tenants has another field of that name."""
    loader = MigrationLoader(None)
    models_now = ProjectState.from_apps(apps)
    model, name = changed
    models_now.models["tenants", model].fields[name] = field
    return SchemaAutodetector(loader.project_state(), models_now).changes(loader.graph).get("tenants", [])


def test_the_migrations_make_what_the_models_need() -> None:
    loader = MigrationLoader(None)
    changes = SchemaAutodetector(loader.project_state(), ProjectState.from_apps(apps)).changes(loader.graph)
    assert changes == {}, "run `manage.py makemigrations`"


def test_what_no_column_holds_needs_no_migration() -> None:
    name = ProjectState.from_apps(apps).models["tenants", "tenant"].fields["name"]
    _, _, _, options = name.deconstruct()
    texts: dict[str, Any] = {
        "help_text": "New.",
        "verbose_name": "new",
        "choices": [("a", "A")],
        "blank": True,
    }
    texts["validators"] = [MinValueValidator(1)]
    assert new_migrations(("tenant", "name"), models.CharField(**(options | texts))) == []
    longer = options | texts | {"max_length": options["max_length"] + 1}
    (migration,) = new_migrations(("tenant", "name"), models.CharField(**longer))
    written = MigrationWriter(migration).as_string()
    assert f"field=models.CharField(max_length={longer['max_length']})" in written
