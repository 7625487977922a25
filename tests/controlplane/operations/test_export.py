"""A tenant's archive: whole, its own, without secrets, in bounded memory."""

from __future__ import annotations

import io
import json
import tarfile
from io import BytesIO
from typing import Any

import pytest
from django.test import Client

from controlplane.adapters.services import adapter_register
from controlplane.adapters.validation import version_validate
from controlplane.catalog.models import BaseModel
from controlplane.operations import export
from controlplane.operations.export import export_pieces
from controlplane.operations.selectors import tenant_paths
from controlplane.tenants.models import ApiKey, Tenant, User
from controlplane.tenants.services import api_key_create, user_create
from controlplane.webhooks.models import WebhookEndpoint
from controlplane.webhooks.services import endpoint_create
from tests.controlplane.conftest import adapter_files

pytestmark = pytest.mark.django_db


@pytest.fixture
def secrets(tenant: Tenant, other_tenant: Tenant, base_model: BaseModel) -> list[str]:
    """Secrets of two tenants that must not be in an export."""
    files = {name: BytesIO(data) for name, data in adapter_files().items()}
    version = adapter_register(tenant=tenant, name="pirate", base_model=base_model, files=files)
    version_validate(version_id=version.pk)
    _, text = api_key_create(tenant=tenant, name="app", scopes=["manage"])
    api_key_create(tenant=other_tenant, name="the other's", scopes=["manage"])
    _, hook = endpoint_create(tenant=tenant, url="https://hooks.example/", events=["adapter.deleted"])
    user = user_create(email="o@acme.test", password="long-enough-7", tenant=tenant)
    user_create(email="o@globex.test", password="long-enough-7", tenant=other_tenant)
    sealed = WebhookEndpoint.objects.get().secret
    digest = ApiKey.objects.get(name="app").secret_sha256
    return [text.rpartition("_")[2], digest, hook, sealed, user.password, tenant.cache_salt]


def read(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return {
            member.name: file.read()
            for member in archive
            if (file := archive.extractfile(member)) is not None
        }


def test_everything_of_the_tenant_and_nothing_of_another(secrets: list[str], tenant: Tenant) -> None:
    found = read(b"".join(export_pieces(tenant)))
    files = adapter_files()
    assert {name: found[f"adapters/pirate/v1/{name}"] for name in files} == files
    tables: dict[str, list[dict[str, Any]]] = {
        name.removeprefix("tables/").removesuffix(".jsonl"): [json.loads(line) for line in data.splitlines()]
        for name, data in found.items()
        if name.startswith("tables/")
    }
    assert set(tables) == {model._meta.label_lower for model in tenant_paths()}
    assert [row["name"] for row in tables["tenants.apikey"]] == ["app"]
    assert [row["email"] for row in tables["tenants.user"]] == ["o@acme.test"]
    assert tables["adapters.adapterversion"][0]["config"]["r"] == 2
    assert {row["tenant"] for row in tables["audit.auditrecord"]} == {"acme"}
    assert tables["webhooks.webhookendpoint"][0]["url"] == "https://hooks.example/"
    text = b"".join(found.values())
    assert b"globex" not in text
    for secret in secrets:
        assert secret.encode() not in text


def test_it_is_streamed_in_small_pieces(
    secrets: list[str], tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = read(b"".join(export_pieces(tenant)))
    monkeypatch.setattr(export, "_PIECE", 64)
    pieces = list(export_pieces(tenant))
    assert max(map(len, pieces)) <= 2 * tarfile.BLOCKSIZE, "a head may have two blocks"
    assert read(b"".join(pieces)).keys() == whole.keys()


def test_a_file_that_is_cut_short_cuts_the_archive(secrets: list[str], tenant: Tenant) -> None:
    with pytest.raises(OSError, match="3 bytes of 5 are missing"):
        list(export._pieces(BytesIO(b"ab"), 5))


def test_staff_downloads_it(secrets: list[str], tenant: Tenant) -> None:
    staff = Client()
    staff.force_login(User.objects.get(email="o@acme.test"))
    assert staff.get("/api/v1/tenants/acme/export").status_code == 403
    staff.force_login(user_create(email="s@graft.test", password="long-enough-7", is_staff=True))
    for path in ("/api/v1/tenants/acme/export", "/staff/tenants/acme/export"):
        reply = staff.get(path, headers={"Accept-Encoding": "gzip"})
        assert (reply.status_code, reply["Content-Type"]) == (200, "application/x-tar")
        assert "README.txt" in read(reply.getvalue())
    assert staff.get("/api/v1/tenants/no-such/export").status_code == 404
