"""Adapters from a hub in a separate process, fetched by huggingface_hub itself."""

from __future__ import annotations

import dataclasses
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from django.db import connection
from django.test import Client
from pytest_django import Settings

from controlplane.adapters.models import Adapter, AdapterVersion
from controlplane.adapters.services import adapter_register
from controlplane.adapters.validation import version_validate
from controlplane.artifacts.credentials.models import SourceCredential
from controlplane.artifacts.credentials.services import credential_create, credential_delete
from controlplane.catalog.models import BaseModel
from controlplane.errors import InvalidInputError
from controlplane.platform.open_endpoints import OpenEndpoints
from controlplane.tenants.models import Tenant
from controlplane.tenants.services import api_key_create
from tests.conftest import stop
from tests.controlplane.adapters import hub_standin
from tests.controlplane.adapters.packing import TRAINER_FILES
from tests.controlplane.conftest import adapter_files

pytestmark = pytest.mark.django_db
FIRST, SECOND = "1" * 40, "2" * 40


@dataclass
class Hub:
    """The stand-in: its folder of repositories, and what it was asked."""

    root: Path
    log: Path
    port: int
    cdn_port: int

    def publish(self, repository: str, commit: str, files: dict[str, bytes], revision: str = "main") -> None:
        folder = self.root / repository / revision
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
        (folder / ".sha").write_text(commit)

    def requests(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []


@pytest.fixture
def hub(tmp_path: Path, settings: Settings) -> Iterator[Hub]:
    root, log = tmp_path / "hub", tmp_path / "hub.log"
    root.mkdir()
    process = subprocess.Popen(
        [sys.executable, str(hub_standin.__file__), str(root), str(log)], stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        port, cdn_port = map(int, process.stdout.readline().split())
        settings.GRAFTWORK = dataclasses.replace(
            settings.GRAFTWORK,
            hub_endpoint=f"http://127.0.0.1:{port}",
            outgoing_allow=OpenEndpoints.parse([f"127.0.0.1:{port}", f"localhost:{cdn_port}"]),
        )
        yield Hub(root, log, port, cdn_port)
    finally:
        huggingface_hub.close_session()
        stop(process)
        if process.stdout is not None:
            process.stdout.close()


def imported(tenant: Tenant, base_model: BaseModel, uri: str, credential: str = "") -> AdapterVersion:
    version = adapter_register(
        tenant=tenant, name="pirate", base_model=base_model, uri=uri, credential=credential
    )
    version_validate(version_id=version.pk)
    version.refresh_from_db()
    return version


def test_a_repository_is_read_at_the_commit_that_its_revision_named(
    hub: Hub, tenant: Tenant, base_model: BaseModel
) -> None:
    hub.publish("acme/pirate", FIRST, adapter_files())
    version = imported(tenant, base_model, "hf://acme/pirate")
    assert (version.status, version.reason) == ("ready", "")
    assert version.source == f"hf://acme/pirate@{FIRST}"
    asked = [(item["port"], item["path"].split("?")[0]) for item in hub.requests()]
    assert asked == [
        (hub.port, "/api/models/acme/pirate/revision/main"),
        (hub.port, f"/acme/pirate/resolve/{FIRST}/adapter_config.json"),
        (hub.port, f"/acme/pirate/resolve/{FIRST}/adapter_model.safetensors"),
        (hub.cdn_port, "/acme/pirate/main/adapter_model.safetensors"),
        (hub.port, f"/acme/pirate/resolve/{FIRST}/README.md"),
    ]
    assert {item["token"] for item in hub.requests()} == {None}


def test_a_later_attempt_reads_the_pinned_commit(hub: Hub, tenant: Tenant, base_model: BaseModel) -> None:
    hub.publish("acme/pirate", FIRST, {})
    version = imported(tenant, base_model, "hf://acme/pirate@main")
    assert version.source == f"hf://acme/pirate@{FIRST}"
    hub.publish("acme/pirate", SECOND, adapter_files())
    AdapterVersion.objects.update(status="pending")
    version_validate(version_id=version.pk)
    version.refresh_from_db()
    assert (version.status, version.source) == ("refused", f"hf://acme/pirate@{FIRST}")
    assert f"has no revision '{FIRST}'" in version.reason


def test_folders_and_odd_revisions_are_found(hub: Hub, tenant: Tenant, base_model: BaseModel) -> None:
    files = {f"checkpoints/last/{name}": data for name, data in {**adapter_files(), **TRAINER_FILES}.items()}
    hub.publish("acme/runs", FIRST, files, "v1.0")
    version = imported(tenant, base_model, "hf://acme/runs@v1.0/checkpoints/last")
    assert (version.status, version.source) == ("ready", f"hf://acme/runs@{FIRST}/checkpoints/last")


def test_a_token_opens_a_private_repository_and_goes_to_the_hub_alone(
    hub: Hub, tenant: Tenant, base_model: BaseModel, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    hub.publish("private/pirate", FIRST, adapter_files())
    assert "or the credential may not read it" in imported(tenant, base_model, "hf://private/pirate").reason
    _, key = api_key_create(tenant=tenant, name="k", scopes=["manage"])
    client = Client(headers={"Authorization": f"Bearer {key}"})
    body = {"name": "my-hub", "kind": "huggingface", "secret": hub_standin.TOKEN}
    made = client.post("/api/v1/source-credentials", body, content_type="application/json")
    assert made.status_code == 201
    version = imported(tenant, base_model, "hf://private/pirate", "my-hub")
    assert (version.status, version.reason) == ("ready", "")
    assert version.source == f"hf://private/pirate@{FIRST}?credential=my-hub"
    sent = {item["port"]: item["token"] for item in hub.requests()}
    assert sent == {hub.port: f"Bearer {hub_standin.TOKEN}", hub.cdn_port: None}
    shown = [
        client.get(f"/api/v1/{path}").content.decode()
        for path in (
            "source-credentials",
            "source-credentials/my-hub",
            "adapters",
            "adapters/pirate/versions",
        )
    ]
    row = SourceCredential.objects.values_list().get()
    assert SourceCredential.objects.get().used_at is not None
    for text in (made.content.decode(), *shown, str(row), caplog.text, *map(str, connection.queries)):
        assert hub_standin.TOKEN not in text
    assert hub_standin.TOKEN not in repr(SourceCredential.objects.get())


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("hf://acme/absent", "the hub has no acme/absent@main"),
        ("hf://acme/pirate@v9", "has no revision 'v9'"),
        ("hf://gated/pirate", "is gated: accept its terms"),
        ("hf://acme/empty", "holds no adapter_config.json"),
        ("hf://acme/pickled", "graftwork convert"),
        ("hf://acme/sharded", "saved in shards"),
        ("hf://acme/mlx", "saved by mlx-lm"),
    ],
)
def test_what_cannot_be_had_is_said_and_nothing_stays(
    hub: Hub, tenant: Tenant, base_model: BaseModel, tmp_path: Path, uri: str, reason: str
) -> None:
    hub.publish("acme/pirate", FIRST, adapter_files())
    hub.publish("acme/empty", FIRST, {})
    config = {"adapter_config.json": adapter_files()["adapter_config.json"]}
    hub.publish("acme/pickled", FIRST, {**config, "adapter_model.bin": b"x"})
    hub.publish("acme/sharded", FIRST, {**config, "adapter_model.safetensors.index.json": b"{}"})
    hub.publish("acme/mlx", FIRST, {**config, "adapters.safetensors": b"x"})
    version = imported(tenant, base_model, uri)
    assert version.status == "refused"
    assert reason in version.reason
    assert [path for path in (tmp_path / "artifacts").rglob("*") if path.is_file()] == []


def test_a_busy_hub_is_tried_again(hub: Hub, tenant: Tenant, base_model: BaseModel) -> None:
    version = imported(tenant, base_model, "hf://busy/pirate")
    assert version.status == "pending"
    assert any("status 503; try again" in step["detail"] for step in version.steps)


def test_a_hub_that_redirects_inwards_is_refused(
    hub: Hub, tenant: Tenant, base_model: BaseModel, settings: Settings
) -> None:
    hub.publish("acme/pirate", FIRST, adapter_files())
    opened = OpenEndpoints.parse([f"127.0.0.1:{hub.port}"])
    settings.GRAFTWORK = dataclasses.replace(settings.GRAFTWORK, outgoing_allow=opened)
    version = imported(tenant, base_model, "hf://acme/pirate")
    assert version.status == "refused"
    assert "only https:// is allowed" in version.reason
    assert hub.cdn_port not in {item["port"] for item in hub.requests()}


@pytest.mark.parametrize(
    "uri",
    [
        "hf://pirate",
        "hf://acme/",
        "hf://acme/../x",
        "hf://acme/pirate@../../x",
        "hf://acme/pirate@main/../x",
        "hf://user:secret@acme/pirate",
        "hf://acme/pirate#x",
        "hf://acme/pirate?x=1",
        "hf://acme/pirate@main/a//b",
        "hf://acme/pi rate",
        "hf://127.0.0.1:80/x@y/z?credential=a&credential=b",
    ],
)
def test_what_reads_like_no_repository_is_refused_at_once(
    tenant: Tenant, base_model: BaseModel, uri: str
) -> None:
    with pytest.raises(InvalidInputError):
        adapter_register(tenant=tenant, name="pirate", base_model=base_model, uri=uri)
    assert not Adapter.objects.exists()


def test_a_credential_is_its_tenants_own_and_of_its_kind(
    hub: Hub, tenant: Tenant, other_tenant: Tenant, base_model: BaseModel
) -> None:
    credential = credential_create(tenant=other_tenant, name="theirs", kind="huggingface", secret="hf_secret")
    credential_create(tenant=tenant, name="bucket", kind="s3", secret="secret-key", access_key_id="AKIA")
    for name, uri in (("theirs", "hf://acme/x"), ("bucket", "hf://acme/x"), ("none", "s3://b/x")):
        with pytest.raises(InvalidInputError) as refusal:
            adapter_register(tenant=tenant, name="pirate", base_model=base_model, uri=uri, credential=name)
        assert refusal.value.field == "credential"
    hub.publish("acme/x", FIRST, adapter_files())
    uri = "hf://acme/x?credential=theirs"
    version = adapter_register(tenant=other_tenant, name="pirate", base_model=base_model, uri=uri)
    credential_delete(credential=credential)
    version_validate(version_id=version.pk)
    version.refresh_from_db()
    assert (version.status, "has no credential 'theirs'" in version.reason) == ("refused", True)
