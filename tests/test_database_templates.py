"""Copies of the template databases: what is in use stays, what a dead process left is dropped."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from django.db.migrations.loader import MigrationLoader

from tests.database_templates import COPY, TEMPLATE, postgresql_copy, postgresql_template, sqlite_copy
from tests.databases import SERVER, SQLITE

_APPLIED = "SELECT app, name FROM django_migrations"


@pytest.fixture
def server() -> psycopg.Connection:
    """The maintenance database of the PostgreSQL server."""
    try:
        return psycopg.connect(SERVER, autocommit=True)
    except psycopg.OperationalError as error:
        pytest.skip(f"no PostgreSQL server: {error}")


def databases(server: psycopg.Connection) -> set[str]:
    return {name for (name,) in server.execute("SELECT datname FROM pg_database").fetchall()}


def migrations() -> set[tuple[str, str]]:
    return set(MigrationLoader(None).disk_migrations)


def test_a_sqlite_copy_has_every_migration(tmp_path: Path) -> None:
    sqlite_copy(tmp_path / "copy.db")
    connection = sqlite3.connect(tmp_path / "copy.db")
    assert set(connection.execute(_APPLIED)) == migrations()
    connection.close()


def test_a_postgresql_copy_has_every_migration_and_is_dropped(server: psycopg.Connection) -> None:
    with server, postgresql_copy(SERVER) as url:
        with psycopg.connect(url) as connection:
            assert set(connection.execute(_APPLIED).fetchall()) == migrations()
        name = urlsplit(url).path.removeprefix("/")
        assert name in databases(server)
        left_open = psycopg.connect(url)
    left_open.close()
    with psycopg.connect(SERVER) as server:
        assert name not in databases(server)


def test_what_dead_processes_left_is_dropped(server: psycopg.Connection) -> None:
    abandoned, unused = f"{COPY}abandoned_{os.getpid()}", f"{TEMPLATE}unused_{os.getpid()}"
    with server, postgresql_copy(SERVER) as url:
        for name in (abandoned, unused):
            server.execute(f'CREATE DATABASE "{name}"')
        server.execute(f"COMMENT ON DATABASE \"{unused}\" IS '2000-01-01 00:00:00+00'")
        template = postgresql_template(server, SERVER)
        there = databases(server)
        assert {template, urlsplit(url).path.removeprefix("/")} <= there
        assert not {abandoned, unused} & there


def test_the_modules_that_run_on_sqlite_exist() -> None:
    """A module that moves would silently run on PostgreSQL alone."""
    assert [path for path in SQLITE if not path.exists()] == []
