"""Idempotency-Key: a creation sent twice happens once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection
from django.test import Client
from django.utils import timezone
from pytest_django import Settings

from controlplane.adapters.models import AdapterVersion
from controlplane.adapters.services import adapter_registration
from controlplane.catalog.models import BaseModel
from controlplane.platform.idempotency.models import KeptAnswer
from controlplane.platform.idempotency.services import answers_expire
from controlplane.tenants.models import ApiKey, Tenant
from controlplane.tenants.services import api_key_create
from tests.controlplane.conftest import adapter_files

JSON = "application/json"
BODY = {"name": "ci", "scopes": ["inference"]}


@pytest.fixture
def client(tenant: Tenant) -> Client:
    _, text = api_key_create(tenant=tenant, name="m", scopes=["manage"])
    return Client(headers={"Authorization": f"Bearer {text}"})


def post(client: Client, key: str = "k-1", body: Any = BODY, path: str = "/api/v1/keys") -> Any:
    return client.post(path, body, content_type=JSON, headers={"Idempotency-Key": key})


@pytest.mark.django_db
def test_the_same_request_gets_the_same_answer(client: Client) -> None:
    first, second = post(client), post(client)
    assert (first.status_code, second.status_code) == (201, 201)
    assert first.json() == second.json()
    assert second["Idempotent-Replayed"] == "true"
    assert "Idempotent-Replayed" not in first
    assert ApiKey.objects.filter(name="ci").count() == 1
    assert post(client, "k-2").json()["public_id"] != first.json()["public_id"]


@pytest.mark.django_db
def test_another_request_under_the_key_is_refused(client: Client, other_tenant: Tenant) -> None:
    first = post(client)
    assert post(client, body={**BODY, "name": "other"}).status_code == 409
    rotate = f"/api/v1/keys/{first.json()['public_id']}/rotate"
    assert post(client, body={}, path=rotate).status_code == 409
    _, text = api_key_create(tenant=other_tenant, name="m", scopes=["manage"])
    stranger = Client(headers={"Authorization": f"Bearer {text}"})
    assert post(stranger).json()["public_id"] != first.json()["public_id"]


@pytest.mark.django_db
def test_a_refused_request_leaves_the_key_free(client: Client) -> None:
    assert post(client, body={**BODY, "scopes": ["x"]}).status_code == 400
    assert post(client).status_code == 201
    assert post(client, "with space").status_code == 400
    assert post(client, "x" * 256).status_code == 400


@pytest.mark.django_db
def test_the_answer_is_kept_sealed(client: Client, settings: Settings) -> None:
    text = post(client).json()["key"]
    row = KeptAnswer.objects.get()
    assert text.encode() not in bytes(row.sealed or b"")
    assert b"k-1" not in bytes(row.sealed or b"")
    settings.SECRET_KEY = "another"
    # Under another secret the row is another row: the request is a new one.
    assert post(client).json()["key"] != text


@pytest.mark.django_db
def test_it_expires(client: Client) -> None:
    first = post(client)
    assert answers_expire() == 0
    KeptAnswer.objects.update(expires_at=timezone.now())
    assert post(client).json() != first.json()
    KeptAnswer.objects.update(expires_at=timezone.now())
    assert answers_expire() == 1
    assert not KeptAnswer.objects.exists()


@pytest.mark.django_db
def test_a_request_under_way_is_told_and_a_dead_ones_key_is_free(client: Client) -> None:
    post(client)
    KeptAnswer.objects.update(sealed=None)
    waiting = post(client)
    assert (waiting.status_code, waiting["Retry-After"]) == (409, "1")
    assert waiting.json()["errors"][0]["code"] == "in_progress"
    KeptAnswer.objects.update(claimed_until=timezone.now() - timedelta(seconds=1))
    assert post(client).status_code == 201


@pytest.mark.django_db
def test_work_that_was_taken_over_changes_nothing(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def slowly(**values: Any) -> Any:
        made = api_key_create(**values)
        KeptAnswer.objects.update(claim="0" * 32)  # the lease ended, and another request took over
        return made

    monkeypatch.setattr("controlplane.tenants.api.keys.api_key_create", slowly)
    assert post(client).status_code == 409
    assert not ApiKey.objects.filter(name="ci").exists()


@pytest.mark.django_db
def test_uploads_count_by_their_content(client: Client, base_model: BaseModel, tmp_path: Path) -> None:
    def upload(files: dict[str, bytes]) -> Any:
        parts = [SimpleUploadedFile(name, data) for name, data in files.items()]
        form = {"name": "bot", "base_model": "tiny-base", "files": parts}
        return client.post("/api/v1/adapters", form, headers={"Idempotency-Key": "u-1"})

    files = adapter_files()
    first, second = upload(files), upload(files)
    assert (first.status_code, second.status_code) == (201, 201)
    assert second.json() == first.json()
    staged = tmp_path / "artifacts" / AdapterVersion.objects.get().staging
    assert {path.name: path.read_bytes() for path in staged.iterdir()} == files
    assert upload({**files, "adapter_config.json": BytesIO(b"{}").getvalue()}).status_code == 409


def upload(client: Client) -> Any:
    parts = [SimpleUploadedFile(name, data) for name, data in adapter_files().items()]
    form = {"name": "bot", "base_model": "tiny-base", "files": parts}
    return client.post("/api/v1/adapters", form, headers={"Idempotency-Key": "u-1"})


class Died(BaseException):
    """A process that ends at this point."""


@pytest.mark.django_db
def test_an_upload_whose_process_dies_behind_the_commit_is_not_made_again(
    client: Client, base_model: BaseModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def dies(**values: Any) -> Iterator[AdapterVersion]:
        with adapter_registration(**values) as version:
            yield version
        raise Died

    with monkeypatch.context() as patched:
        patched.setattr("controlplane.adapters.api.adapter_registration", dies)
        patched.setattr("controlplane.platform.idempotency.services.claim_release", lambda **_: None)
        with pytest.raises(Died):
            upload(client)
    KeptAnswer.objects.update(claimed_until=timezone.now())  # long after
    again = upload(client)
    assert (again.status_code, again.json()["number"]) == (201, 1)
    assert again["Idempotent-Replayed"] == "true"
    assert AdapterVersion.objects.count() == 1


@pytest.mark.django_db
def test_an_upload_that_was_taken_over_changes_nothing(
    client: Client, base_model: BaseModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    @contextmanager
    def slowly(**values: Any) -> Iterator[AdapterVersion]:
        KeptAnswer.objects.update(claim="0" * 32)
        with adapter_registration(**values) as version:
            yield version

    monkeypatch.setattr("controlplane.adapters.api.adapter_registration", slowly)
    assert upload(client).status_code == 409
    assert not AdapterVersion.objects.exists()
    assert [path for path in (tmp_path / "artifacts").rglob("*") if path.is_file()] == []


@pytest.mark.django_db(transaction=True)
def test_of_many_at_once_one_creates(client: Client) -> None:
    answers: list[Any] = []
    barrier = threading.Barrier(4)

    def send() -> None:
        try:
            barrier.wait()
            answers.append(post(client))
        finally:
            connection.close()

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {answer.status_code for answer in answers} <= {201, 409}
    assert len({answer.json()["key"] for answer in answers if answer.status_code == 201}) == 1
    assert all(answer["Retry-After"] == "1" for answer in answers if answer.status_code == 409)
    assert ApiKey.objects.filter(name="ci").count() == 1
