"""A backup restores the whole state on both databases, and an incomplete one is reported."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import uuid
from io import BytesIO
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from controlplane.adapters.services import adapter_register
from controlplane.adapters.validation import version_validate
from controlplane.catalog.services import base_model_register
from controlplane.platform.audit.models import AuditRecord
from controlplane.tenants.services import tenant_create
from controlplane.webhooks.services import endpoint_create
from tests.conftest import ROOT
from tests.controlplane.conftest import _database_url, adapter_files, write_checkpoint

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def filled(tmp_path: Path) -> None:
    base_model = base_model_register(name="tiny-base", source=write_checkpoint(tmp_path / "checkpoint"))
    tenant = tenant_create(slug="acme", name="Acme")
    files = {name: BytesIO(data) for name, data in adapter_files().items()}
    version = adapter_register(tenant=tenant, name="pirate", base_model=base_model, files=files)
    version_validate(version_id=version.pk)
    endpoint_create(tenant=tenant, url="https://hooks.example/", events=["adapter.deleted"])


def verify(url: str, tmp_path: Path, **more: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("GRAFTWORK_")} | {
        "GRAFTWORK_DATABASE_URL": url,
        "GRAFTWORK_ARTIFACT_STORE": f"file://{tmp_path / 'artifacts'}",
        **more,
    }
    return subprocess.run(
        [sys.executable, "manage.py", "verify"], env=env, cwd=ROOT, capture_output=True, text=True
    )


def backed_up(tmp_path: Path) -> str:
    """URL of a database restored from a backup of this test's."""
    file = tmp_path / "backup"
    if connection.vendor == "sqlite":
        call_command("backup", str(file))
        assert file.stat().st_mode & 0o777 == 0o600
        with pytest.raises(CommandError, match="exists"):
            call_command("backup", str(file))
        return f"sqlite://{file}"
    url = _database_url()
    with pytest.raises(CommandError, match="pg_dump --format=custom"):
        call_command("backup", str(file))
    fresh = f"test_restored_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {fresh}")
    target = urlsplit(url)._replace(path=f"/{fresh}").geturl()
    subprocess.run(["pg_dump", "--format=custom", f"--file={file}", url], check=True, capture_output=True)
    subprocess.run(
        ["pg_restore", "--no-owner", "--exit-on-error", f"--dbname={target}", str(file)],
        check=True,
        capture_output=True,
    )
    return target


@pytest.mark.costly("runs the backup scripts")
def test_a_backup_is_restored_and_verified(filled: None, tmp_path: Path) -> None:
    if connection.vendor == "postgresql" and shutil.which("pg_dump") is None:
        pytest.skip("no pg_dump: apt-get install postgresql-client")
    url = backed_up(tmp_path)
    try:
        result = verify(url, tmp_path)
        assert result.returncode == 0, result.stdout + result.stderr
        assert "All checks passed" in result.stdout
        assert AuditRecord.objects.count() > 3
        damaged = verify(url, tmp_path, GRAFTWORK_SECRET_KEY="another" * 8)
        assert damaged.returncode == 1
        assert "GRAFTWORK_SEALING_KEYS" in damaged.stderr
        shutil.rmtree(tmp_path / "artifacts" / "adapters")
        damaged = verify(url, tmp_path)
        assert damaged.returncode == 1
        assert "missing in the artifact store: adapters/" in damaged.stderr
    finally:
        if connection.vendor == "postgresql":
            with psycopg.connect(_database_url(), autocommit=True) as admin:
                admin.execute(f"DROP DATABASE {urlsplit(url).path[1:]} WITH (FORCE)")


@pytest.mark.costly("runs the backup scripts")
def test_a_database_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    result = verify(f"sqlite://{tmp_path / 'gone.db'}", tmp_path)
    assert (result.returncode, "does not exist" in result.stderr) == (1, True), result.stderr
    assert "gone.db" in result.stderr
    assert not (tmp_path / "gone.db").exists()


def test_a_backup_is_taken_while_others_write(filled: None, tmp_path: Path) -> None:
    if connection.vendor != "sqlite":
        pytest.skip("SQLite's own")
    file = tmp_path / "backup"
    writer = sqlite3.connect(connection.settings_dict["NAME"], isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("INSERT INTO webhooks_webhookevent VALUES ('msg_open', 'x', '{}', '2026-01-01', 'acme')")
    call_command("backup", str(file))
    writer.execute("ROLLBACK")
    writer.close()
    with sqlite3.connect(file) as copy:
        assert copy.execute("SELECT count(*) FROM tenants_tenant").fetchone() == (1,)
        assert copy.execute("SELECT count(*) FROM webhooks_webhookevent").fetchone() == (0,)
    copy.close()
    assert not file.with_name("backup.partial").exists()
