"""Pytest plugin that chooses the tests' default database: PostgreSQL where a server answers, else SQLite.

Loaded by `-p tests.databases`, since Django's settings read the database's URL once, before any conftest.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psycopg
import pytest

SERVER: Final = os.environ.get("GRAFTWORK_TEST_POSTGRES_URL", "postgresql://postgres@127.0.0.1:5432/postgres")
"""URL of the PostgreSQL server's maintenance database; its user may make databases and roles."""
_CONTROLPLANE: Final = Path(__file__).resolve().parent / "controlplane"
SQLITE: Final = frozenset(
    _CONTROLPLANE / name
    for name in (
        "adapters/test_races.py",
        "platform/audit/test_append_only.py",
        "platform/audit/test_chain.py",
        "billing/test_closing.py",
        "billing/test_exact.py",
        "billing/test_voids.py",
        "console/test_account_events.py",
        "deployments/test_leases.py",
        "platform/http/test_idempotency.py",
        "metering/test_ingest.py",
        "metering/test_ingest_loop.py",
        "operations/test_backup.py",
        "routes/test_publisher.py",
        "routes/test_snapshot.py",
    )
)
"""Test modules about what the databases do differently: schema changes, triggers, locks, backups."""
_HELP: Final = "start one there, or set GRAFTWORK_TEST_POSTGRES_URL"
_chosen = pytest.StashKey[str]()
_absent = pytest.StashKey[str]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--database",
        choices=["postgresql", "sqlite"],
        help="default database of the tests (default: PostgreSQL where a server answers, else SQLite)",
    )


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Iterator[None]:
    """Wraps pytest-django's hook of the same name, which loads Django's settings."""
    asked = early_config.known_args_namespace.database
    absent = "--database sqlite" if asked == "sqlite" else _server_error()
    if absent and (asked == "postgresql" or (asked is None and os.environ.get("CI"))):
        raise pytest.UsageError(f"no PostgreSQL server at {SERVER}: {_HELP} ({absent})")
    early_config.stash[_absent] = absent
    early_config.stash[_chosen] = "sqlite" if absent else "postgresql"
    # No test is about a crash of the server, so no commit waits for the disk.
    os.environ["PGOPTIONS"] = f"{os.environ.get('PGOPTIONS', '')} -c synchronous_commit=off".strip()
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("GRAFTWORK_DATABASE_URL", raising=False)
        if not absent:
            patch.setenv("GRAFTWORK_DATABASE_URL", SERVER)
        return (yield)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "sqlite: also part of the short run with `--database sqlite -m sqlite`"
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip the import of test modules that the short run on SQLite leaves out."""
    short = config.option.markexpr.startswith("sqlite")
    return True if short and collection_path.match("test_*.py") and collection_path not in SQLITE else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path in SQLITE:
            item.add_marker("sqlite")


def pytest_report_header(config: pytest.Config) -> str:
    if config.stash[_chosen] == "postgresql":
        return f"database: PostgreSQL at {SERVER.rpartition('@')[2]}"
    if config.option.database == "sqlite":
        return "database: SQLite"
    return f"database: SQLite, as no PostgreSQL server answers at {SERVER.rpartition('@')[2]}: {_HELP}"


def _server_error() -> str:
    """Why no PostgreSQL server answers at `SERVER`; '' if one does."""
    try:
        psycopg.connect(SERVER, connect_timeout=2).close()
    except psycopg.OperationalError as error:
        return str(error)
    return ""
