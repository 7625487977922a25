"""Lineage given at registration: by REST as JSON and as a form, on the page, in the audit log."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from controlplane.adapters.models import Adapter, AdapterVersion
from controlplane.catalog.models import BaseModel
from controlplane.platform.audit.models import AuditRecord
from controlplane.tenants.models import Tenant
from controlplane.tenants.services import api_key_create, user_create
from tests.controlplane.conftest import adapter_files

pytestmark = pytest.mark.django_db
RUN = "https://runs.test/41?tab=<loss>"
TOLD = {"dataset": "tickets <2026>", "run_url": RUN, "base_sha256": "ab" * 32, "notes": "second try"}


def zipped() -> SimpleUploadedFile:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, data in adapter_files().items():
            archive.writestr(name, data)
    return SimpleUploadedFile("a.zip", packed.getvalue())


def test_a_registration_tells_where_the_version_comes_from(
    tenant: Tenant, base_model: BaseModel, graftwork: Path
) -> None:
    _, key = api_key_create(tenant=tenant, name="m", scopes=["manage"])
    client = Client(headers={"Authorization": f"Bearer {key}"})
    folder = graftwork / "pirate"
    folder.mkdir()
    form = {"name": "pirate", "base_model": "tiny-base"}
    by_form = client.post("/api/v1/adapters", {**form, **TOLD, "files": [zipped()]})
    by_uri = client.post(
        "/api/v1/adapters/pirate/versions", {"uri": folder.as_uri(), **TOLD}, content_type="application/json"
    )
    for answer in (by_form, by_uri):
        assert answer.status_code == 201, answer.content
        assert {name: answer.json()[name] for name in TOLD} == TOLD
    record = AuditRecord.objects.filter(action="adapter_version.register").last()
    assert record is not None
    assert {name: (record.after or {})[name] for name in TOLD} == TOLD
    before = AdapterVersion.objects.count()
    wrongs = {"run_url": "javascript:alert(1)", "base_sha256": "AB" * 32, "dataset": "x" * 501}
    for name, wrong in wrongs.items():
        answer = client.post("/api/v1/adapters", {**form, name: wrong, "files": [zipped()]})
        assert (answer.status_code, answer.json()["errors"][0]["attr"]) == (400, name)
    short = client.post("/api/v1/adapters", {**form, "run_url": "https://x/y", "files": [zipped()]})
    assert "host in full" in short.json()["errors"][0]["detail"]
    assert AdapterVersion.objects.count() == before


def test_the_form_takes_it_and_the_adapters_page_shows_it(tenant: Tenant, base_model: BaseModel) -> None:
    user = user_create(email="dev@acme.test", password="correct-horse-battery", tenant=tenant)
    page = Client()
    page.force_login(user)
    url, form = "/t/acme/adapters/new", {"name": "pirate", "base_model": "tiny-base", "source": "files"}
    wrong = page.post(url, {**form, "run_url": "javascript:alert(1)", "dataset": "d<", "files": [zipped()]})
    text = wrong.content.decode()
    assert wrong.status_code == 422
    assert "with http:// or https://" in text
    assert 'value="d&lt;"' in text
    assert not Adapter.objects.exists()
    page.post(url, {**form, "dataset": TOLD["dataset"], "run_url": RUN, "files": [zipped()]})
    text = page.get("/t/acme/adapters/pirate/").content.decode()
    assert "Dataset: tickets &lt;2026&gt;." in text
    assert 'href="https://runs.test/41?tab=&lt;loss&gt;"' in text
