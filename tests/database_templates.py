"""Migrated template databases, one per schema, and copies of them for tests.

Running all migrations takes 6 CPU seconds. Copying their result takes a fraction of one.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import django
import psycopg
from django.apps import apps
from psycopg import sql

ROOT: Final = Path(__file__).resolve().parent.parent
FOLDER: Final = ROOT / "var" / "test"
COPY: Final = "graftwork_test_"
TEMPLATE: Final = "graftwork_template_"
_LOCKS: Final = 0x67726166
"""First key of this module's advisory locks; the second is the hash of a name."""
_IMPORT: Final = re.compile(r"^from ((?:controlplane|contracts)[\w.]*) import ([\w, ]+)", re.MULTILINE)
_UNUSED: Final = (
    "SELECT datname FROM pg_database WHERE starts_with(datname, %s)"
    " AND coalesce(shobj_description(oid, 'pg_database'), '') < (now() - interval '7 days')::text"
)


@functools.cache
def schema_hash() -> str:
    """Digest of all that decides the schema: migrations of every installed app, what they import, Django."""
    files = {path for config in apps.get_app_configs() for path in Path(config.path).glob("migrations/*.py")}
    for text in [path.read_text() for path in files]:
        for module, names in _IMPORT.findall(text):
            stems = [module, *(f"{module}.{name.strip()}" for name in names.split(","))]
            files.update(ROOT / f"{stem.replace('.', '/')}.py" for stem in stems)
    digest = hashlib.sha256(django.get_version().encode())
    for path in sorted(path for path in files if path.exists()):
        digest.update(f"{path.parent.parent.name}/{path.name}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def sqlite_copy(file: Path) -> str:
    """Write a migrated SQLite database to `file`; returns its URL."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    template = FOLDER / f"template-{schema_hash()}.db"
    with (FOLDER / "template.lock").open("w") as lock:
        # Concurrent test processes migrate once.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not template.exists():
            for old in FOLDER.glob("template-*.db*"):
                old.unlink()
            partial = FOLDER / "template-partial.db"
            _migrate(f"sqlite://{partial}")
            partial.rename(template)
        shutil.copyfile(template, file)
    return f"sqlite://{file}"


@contextmanager
def postgresql_copy(server: str) -> Iterator[str]:
    """URL of a migrated database on `server`, dropped at the end with whatever is connected to it."""
    name = f"{COPY}{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server, autocommit=True) as connection:
        template = postgresql_template(connection, server)
        # The server frees the lock when this process ends: an unlocked copy is a dead process's.
        connection.execute("SELECT pg_advisory_lock(%s, hashtext(%s))", [_LOCKS, name])
        statement = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
        connection.execute(statement.format(sql.Identifier(name), sql.Identifier(template)))
        try:
            yield database_url(server, name)
        finally:
            _drop(connection, name)


def postgresql_template(connection: psycopg.Connection, server: str) -> str:
    """Name of the migrated template on `server`, made if need be; drops what dead processes left.

    A template that nobody has used for a week goes too: checkouts with other migrations share the server.
    """
    name = TEMPLATE + schema_hash()
    connection.execute("SELECT pg_advisory_lock(%s, hashtext(%s))", [_LOCKS, TEMPLATE])
    try:
        _drop_abandoned(connection)
        if connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone() is None:
            partial = f"{name}_partial"
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(partial)))
            _migrate(database_url(server, partial))
            rename = sql.SQL("ALTER DATABASE {} RENAME TO {}")
            connection.execute(rename.format(sql.Identifier(partial), sql.Identifier(name)))
        # Copying a template fails while anybody is connected to it.
        connection.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(sql.Identifier(name)))
        now = connection.execute("SELECT now()::text").fetchone()
        assert now is not None
        used = sql.SQL("COMMENT ON DATABASE {} IS {}").format(sql.Identifier(name), sql.Literal(now[0]))
        connection.execute(used)
    finally:
        connection.execute("SELECT pg_advisory_unlock(%s, hashtext(%s))", [_LOCKS, TEMPLATE])
    return name


def database_url(server: str, name: str) -> str:
    """`server` with the database `name`."""
    return urlsplit(server)._replace(path=f"/{name}").geturl()


def web_role_name(database: str) -> str:
    """Name of the web process's role on the copy `database`; dropped with it."""
    return f"graftwork_web_of_{database}"


def _drop_abandoned(connection: psycopg.Connection) -> None:
    for (name,) in connection.execute(_UNUSED, [TEMPLATE]).fetchall():
        _drop(connection, name)
    # Without a comment, every copy counts as unused here; the lock says which one is not.
    for (name,) in connection.execute(_UNUSED, [COPY]).fetchall():
        lock = connection.execute("SELECT pg_try_advisory_lock(%s, hashtext(%s))", [_LOCKS, name]).fetchone()
        if lock == (True,):
            _drop(connection, name)
            connection.execute("SELECT pg_advisory_unlock(%s, hashtext(%s))", [_LOCKS, name])


def _drop(connection: psycopg.Connection, name: str) -> None:
    connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))
    connection.execute(sql.SQL("DROP ROLE IF EXISTS {}").format(sql.Identifier(web_role_name(name))))


def _migrate(url: str) -> None:
    """Run every migration on the empty database at `url`."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GRAFTWORK_")}
    subprocess.run(
        [sys.executable, "manage.py", "migrate", "-v0"],
        env=env | {"GRAFTWORK_DATABASE_URL": url},
        cwd=ROOT,
        check=True,
    )
