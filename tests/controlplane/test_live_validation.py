"""Real processes: an upload over HTTP, a Celery worker, the version's end."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import subprocess
import sys
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import httpx
import pytest
import redis
from django.utils import timezone

from controlplane.adapters.models import AdapterVersion
from controlplane.adapters.services import adapter_register
from controlplane.catalog.models import BaseModel
from controlplane.tenants.models import Tenant
from tests.conftest import ROOT, free_port, stop
from tests.controlplane.conftest import Start, adapter_files, write_checkpoint
from tests.database_templates import sqlite_copy
from tests.waiting import eventually

SEED = """
import django; django.setup()
from controlplane.catalog.services import base_model_register
from controlplane.tenants.services import api_key_create, tenant_create
base_model_register(name="tiny-base", source={source!r})
print(api_key_create(tenant=tenant_create(slug="acme", name="Acme"), name="k", scopes=["manage"])[1])
"""


@pytest.fixture
def server(tmp_path: Path, redis_url: str) -> Iterator[httpx.Client]:
    """A client, with a key, of a web server with a running Celery worker."""
    port = free_port()
    env = {name: value for name, value in os.environ.items() if not name.startswith("GRAFTWORK_")} | {
        "DJANGO_SETTINGS_MODULE": "controlplane.settings",
        "GRAFTWORK_DATABASE_URL": sqlite_copy(tmp_path / "live.db"),
        "GRAFTWORK_REDIS_URL": redis_url,
        "GRAFTWORK_ARTIFACT_STORE": f"file://{tmp_path / 'store'}",
        "PYTHONUNBUFFERED": "1",
    }

    def run(*arguments: str) -> str:
        return subprocess.run(
            [sys.executable, *arguments], env=env, cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout

    key = run("-c", SEED.format(source=str(write_checkpoint(tmp_path / "base")))).strip()
    commands = [
        ["-m", "controlplane.web_server", "--port", str(port)],
        ["-m", "celery", "-A", "controlplane.celery", "worker", "--pool", "solo", "--loglevel", "INFO"],
    ]
    with (tmp_path / "log").open("wb") as log:
        processes = [
            subprocess.Popen([sys.executable, *command], env=env, cwd=ROOT, stdout=log, stderr=log)
            for command in commands
        ]
    try:
        headers = {"Authorization": f"Bearer {key}"}
        with httpx.Client(base_url=f"http://127.0.0.1:{port}/api/v1", headers=headers, timeout=30) as client:
            eventually(lambda: _answers(client))
            yield client
    finally:
        for process in processes:
            stop(process)


def _answers(client: httpx.Client) -> bool:
    with contextlib.suppress(httpx.ConnectError):
        client.get("/adapters")
        return True
    return False


@pytest.mark.costly("starts the web process and Celery")
def test_an_upload_becomes_ready_or_refused(server: httpx.Client) -> None:
    def register(name: str, files: dict[str, bytes]) -> dict[str, str]:
        parts = [("files", (file, data)) for file, data in files.items()]
        form = {"name": name, "base_model": "tiny-base"}
        reply = server.post("/adapters", data=form, files=parts)
        assert reply.status_code == 201, reply.text
        assert reply.json()["status"] == "pending"

        def verdict() -> dict[str, str]:
            version: dict[str, str] = server.get(f"/adapters/{name}/versions/1").json()
            return version if version["status"] in ("ready", "refused") else {}

        return eventually(verdict)

    assert register("pirate", adapter_files())["status"] == "ready"
    bad = adapter_files()
    bad["adapter_model.safetensors"] = bad["adapter_model.safetensors"][:-1]
    refused = register("broken", bad)
    assert refused["status"] == "refused"
    assert "not a whole safetensors file" in refused["reason"]
    form = {"name": "x", "base_model": "nowhere"}
    files = [("files", (name, data)) for name, data in adapter_files().items()]
    unknown = server.post("/adapters", data=form, files=files)
    assert unknown.status_code == 404
    assert "existing base models: tiny-base" in unknown.json()["errors"][0]["detail"]
    assert server.post("/adapters", content=b"x", headers={"Content-Type": "text/plain"}).status_code == 415


@pytest.mark.costly("starts the web process and Celery")
def test_beat_finds_validations_whose_message_or_worker_was_lost(
    start: Start, tenant: Tenant, base_model: BaseModel, redis_url: str, tmp_path: Path
) -> None:
    with redis.Redis.from_url(redis_url) as client:
        others = client.llen("graftwork.long")
        versions = [
            adapter_register(
                tenant=tenant,
                name=name,
                base_model=base_model,
                files={file: BytesIO(data) for file, data in adapter_files().items()},
            )
            for name in ("message-lost", "worker-died")
        ]
        assert client.llen("graftwork.long") == others + 2
        client.flushdb()
    old = timezone.now() - dt.timedelta(minutes=3)
    AdapterVersion.objects.update(created_at=old)
    AdapterVersion.objects.filter(pk=versions[1].pk).update(status="validating", attempts=1, heartbeat_at=old)
    start("-m", "celery", "-A", "controlplane.celery", "worker", "--pool", "solo")
    start("-m", "celery", "-A", "controlplane.celery", "beat", "--schedule", str(tmp_path / "schedule"))
    eventually(lambda: AdapterVersion.objects.filter(status="ready").count() == 2)
    found = AdapterVersion.objects.values_list("adapter__name", "status", "attempts")
    assert set(found) == {("message-lost", "ready", 1), ("worker-died", "ready", 2)}, found
