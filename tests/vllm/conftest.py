"""A deployment's vLLM processes on this host; GRAFTWORK_VLLM names vLLM's program."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_django import Settings

from controlplane.deployments.provisioners.local import processes
from controlplane.deployments.provisioners.local.engines import VLLM, WORKER
from controlplane.tenants.models import Tenant
from controlplane.tenants.services import api_key_create
from tests.controlplane.conftest import graftwork as graftwork
from tests.controlplane.conftest import tenant as tenant
from tests.gateway.conftest import GatewayProcess
from tests.vllm.servers import Caller


@pytest.fixture
def vllm_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Settings, graftwork: Path
) -> Iterator[Path]:
    """The folder of local copies, with small CPU settings for vLLM; at the end every process is killed."""
    program = os.environ.get("GRAFTWORK_VLLM", "")
    if not program:
        pytest.skip("no vLLM: set GRAFTWORK_VLLM to its `vllm` program")
    root = tmp_path / "var"
    store = (tmp_path / "store").as_uri()
    settings.GRAFTWORK = dataclasses.replace(
        settings.GRAFTWORK,
        vllm=program,
        artifact_store=store,
        deployment_drain_seconds=0,
        fleet_token="fleet-token",
    )
    monkeypatch.setattr("controlplane.deployments.provisioners.local.provisioner.VAR", root)
    yield root
    for process in processes.processes():
        folders = [engine.folder_of(process) for engine in (VLLM, WORKER)]
        if any(folder is not None and root in folder.parents for folder in folders):
            processes.end(process.pid, at_once=True)
    for session in root.rglob("*.session"):
        processes.end_session(int(session.read_text().rpartition(" ")[2]))
    shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def caller(tenant: Tenant, redis_url: str, tmp_path: Path) -> Iterator[Caller]:
    _, key = api_key_create(tenant=tenant, name="k", scopes=["inference"])
    gateway = GatewayProcess(redis_url, tmp_path / "wal", tmp_path / "gateway.log")
    try:
        gateway.start()
        calls = Caller(gateway.url, key)
        with calls.http:
            yield calls
    finally:
        gateway.stop()
