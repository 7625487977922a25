"""The product under test: started here on SQLite and on PostgreSQL, or already running."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest

from tests.database_templates import postgresql_copy, sqlite_copy
from tests.databases import SERVER
from tests.walk.product import Product, demo
from tests.walk.tool_template import model_with_tools

TARGET = os.environ.get("GRAFTWORK_TEST_WALK_TARGET")
"""Path of a `demo.json` of a product that runs already (such as docker compose)."""


@pytest.fixture(
    scope="session",
    params=["running"] if TARGET else ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)],
)
def product(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, demo_model: Path
) -> Iterator[Product]:
    if TARGET:
        yield Product.from_description(Path(TARGET))
        return
    var = tmp_path_factory.mktemp(f"walk-{request.param}")
    environment = {"GRAFTWORK_DEMO_MODEL": str(model_with_tools(demo_model, var))}
    with ExitStack() as stack:
        # The product's own `migrate` finds nothing to do: making the template has run every migration.
        if request.param == "sqlite":
            (var / "demo").mkdir()
            sqlite_copy(var / "demo" / "graftwork.db")
        else:
            environment["GRAFTWORK_DATABASE_URL"] = stack.enter_context(_postgresql())
        yield stack.enter_context(demo(var, environment))


@contextmanager
def _postgresql() -> Iterator[str]:
    try:
        psycopg.connect(SERVER).close()
    except psycopg.OperationalError as error:
        # Where every part is promised, a missing one is a failure.
        absent = pytest.fail if os.environ.get("CI") else pytest.skip
        absent(f"no PostgreSQL at GRAFTWORK_TEST_POSTGRES_URL: {error}")
    with postgresql_copy(SERVER) as url:
        yield url
