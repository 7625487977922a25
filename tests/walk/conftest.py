"""The product under test: started here on SQLite and on PostgreSQL, or one that runs already."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from tests.walk.product import Product, demo
from tests.walk.tool_template import model_with_tools

TARGET = os.environ.get("GRAFTWORK_TEST_WALK_TARGET")
"""Path of a `demo.json` of a product that runs already (such as docker compose)."""
POSTGRES = os.environ.get("GRAFTWORK_TEST_POSTGRES_URL", "postgresql://postgres@127.0.0.1:5432/postgres")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One worker of pytest-xdist runs all walks, so that the product starts once."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.xdist_group("walk"))


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
    if request.param == "sqlite":
        with demo(var, environment) as running:
            yield running
    else:
        with _database() as url, demo(var, {**environment, "GRAFTWORK_DATABASE_URL": url}) as running:
            yield running


@contextmanager
def _database() -> Iterator[str]:
    name = f"graftwork_walk_{uuid.uuid4().hex[:12]}"
    try:
        connection = psycopg.connect(POSTGRES, autocommit=True)
    except psycopg.OperationalError as error:
        # Where every part is promised, a missing one is a failure.
        absent = pytest.fail if os.environ.get("CI") else pytest.skip
        absent(f"no PostgreSQL at GRAFTWORK_TEST_POSTGRES_URL: {error}")
    with connection:
        connection.execute(f'CREATE DATABASE "{name}"')
        yield POSTGRES.rpartition("/")[0] + f"/{name}"
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
