"""Adapters stored in S3 and imported from it, against a server with S3's API."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from io import BytesIO
from typing import Any

import boto3
import pytest
from django.test import Client
from moto.server import ThreadedMotoServer
from pytest_django import Settings

from contracts.adapters.reference import ADAPTER_FILES, adapter_digest
from controlplane.adapters.models import Adapter, AdapterVersion
from controlplane.adapters.services import adapter_register
from controlplane.adapters.validation import version_validate
from controlplane.artifacts.store import artifact_store
from controlplane.catalog.models import BaseModel
from controlplane.errors import InvalidInputError, UnavailableError
from controlplane.tenants.models import Tenant
from controlplane.tenants.services import api_key_create
from tests.conftest import free_port
from tests.controlplane.conftest import adapter_files

pytestmark = pytest.mark.django_db
CONFIG_FILE, WEIGHTS = ADAPTER_FILES


@pytest.fixture(scope="module")
def s3_endpoint() -> Iterator[str]:
    port = free_port()
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
    server.start()
    yield f"http://127.0.0.1:{port}"
    server.stop()


@pytest.fixture
def s3(s3_endpoint: str, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A client; the store is bucket `store`, imports come from `open-bucket/adapters`."""
    for name, value in {
        "ACCESS_KEY_ID": "k",
        "SECRET_ACCESS_KEY": "s",
        "DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    settings.GRAFTWORK = dataclasses.replace(
        settings.GRAFTWORK, artifact_store="s3://store/kept/here", s3_endpoint_url=s3_endpoint
    )
    client = boto3.Session().client("s3", endpoint_url=s3_endpoint)
    for bucket in ("store", "open-bucket"):
        client.create_bucket(Bucket=bucket)
    yield client
    for bucket in ("store", "open-bucket"):
        for key in keys(client, bucket):
            client.delete_object(Bucket=bucket, Key=key)
    client.close()


def keys(client: Any, bucket: str = "store") -> list[str]:
    return [item["Key"] for item in client.list_objects_v2(Bucket=bucket).get("Contents", ())]


def validated(version: AdapterVersion) -> AdapterVersion:
    version_validate(version_id=version.pk)
    version.refresh_from_db()
    return version


def upload(tenant: Tenant, base_model: BaseModel, files: dict[str, bytes]) -> AdapterVersion:
    streams = {name: BytesIO(data) for name, data in files.items()}
    return adapter_register(tenant=tenant, name="pirate", base_model=base_model, files=streams)


def from_uri(tenant: Tenant, base_model: BaseModel, uri: str) -> AdapterVersion:
    return adapter_register(tenant=tenant, name="pirate", base_model=base_model, uri=uri)


def put(client: Any, folder: str, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        client.put_object(Bucket="open-bucket", Key=f"{folder}/{name}", Body=data)


def test_an_upload_ends_under_the_address_of_its_content(
    s3: Any, tenant: Tenant, base_model: BaseModel
) -> None:
    files = adapter_files()
    version = validated(upload(tenant, base_model, files))
    digest = adapter_digest({name: hashlib.sha256(data).hexdigest() for name, data in files.items()})
    assert (version.status, version.reason, version.sha256) == ("ready", "", digest)
    assert version.uri == f"s3://store/kept/here/adapters/{digest}/"
    assert keys(s3) == [f"kept/here/adapters/{digest}/{name}" for name in ADAPTER_FILES]
    for name, data in files.items():
        assert s3.get_object(Bucket="store", Key=f"kept/here/adapters/{digest}/{name}")["Body"].read() == data
    again = validated(upload(tenant, base_model, files))
    assert (again.number, again.status, again.uri) == (2, "ready", version.uri)
    assert len(keys(s3)) == 2


def test_a_refused_upload_leaves_nothing(s3: Any, tenant: Tenant, base_model: BaseModel) -> None:
    files = adapter_files()
    files[WEIGHTS] = files[WEIGHTS][:-1]
    assert validated(upload(tenant, base_model, files)).status == "refused"
    with pytest.raises(InvalidInputError, match="larger than"):
        upload(tenant, base_model, {CONFIG_FILE: b"x" * ((1 << 20) + 1), WEIGHTS: b""})
    assert keys(s3) == []


@pytest.mark.parametrize("size", [0, (1 << 20) + 1, (8 << 20) - 1, 8 << 20, (17 << 20) + 5])
def test_files_of_every_length_come_back_whole(s3: Any, size: int) -> None:
    data = bytes(range(251)) * (size // 251 + 1)
    store = artifact_store()
    assert store.put("incoming/x/file", BytesIO(data[:size]), limit=size) == size
    store.copy("incoming/x", "adapters/x", progress=lambda: None)
    store.remove("incoming/x")
    with store.open("adapters/x/file") as stream:
        assert hashlib.sha256(stream.read()).digest() == hashlib.sha256(data[:size]).digest()
    assert keys(s3) == ["kept/here/adapters/x/file"]


def test_a_stream_beyond_its_limit_leaves_no_part(s3: Any) -> None:
    with pytest.raises(InvalidInputError, match="larger than"):
        artifact_store().put("incoming/x/file", BytesIO(bytes(17 << 20)), limit=16 << 20)
    assert keys(s3) == []
    assert "Uploads" not in s3.list_multipart_uploads(Bucket="store")


def test_an_import_is_copied_from_an_open_bucket(s3: Any, tenant: Tenant, base_model: BaseModel) -> None:
    put(s3, "adapters/pirate", adapter_files())
    version = validated(from_uri(tenant, base_model, "s3://open-bucket/adapters/pirate"))
    assert (version.status, version.reason) == ("ready", "")
    assert version.source == "s3://open-bucket/adapters/pirate/"
    assert keys(s3) == [f"kept/here/adapters/{version.sha256}/{name}" for name in ADAPTER_FILES]


@pytest.mark.parametrize(
    "uri", ["s3://closed/adapters/x", "s3://open-bucket/x", "s3://open-bucket/adapters2/x"]
)
@pytest.mark.costly("a real S3 server")
def test_other_buckets_and_folders_are_closed(
    s3: Any, tenant: Tenant, base_model: BaseModel, uri: str
) -> None:
    with pytest.raises(InvalidInputError, match="is not in a bucket open"):
        from_uri(tenant, base_model, uri)
    assert not Adapter.objects.exists()


def test_missing_objects_pickles_and_buckets_are_named(
    s3: Any, tenant: Tenant, base_model: BaseModel, settings: Settings
) -> None:
    files = adapter_files()
    put(s3, "adapters/pirate", {CONFIG_FILE: files[CONFIG_FILE]})
    uri = "s3://open-bucket/adapters/pirate"
    assert f"{uri}/ holds no {WEIGHTS}" in validated(from_uri(tenant, base_model, uri)).reason
    put(s3, "adapters/pirate", {"adapter_model.bin": b"x"})
    assert "is a pickle" in validated(from_uri(tenant, base_model, uri)).reason
    settings.GRAFTWORK = dataclasses.replace(settings.GRAFTWORK, import_buckets=("absent",))
    refused = validated(from_uri(tenant, base_model, "s3://absent/adapters/x"))
    assert (refused.status, refused.reason) == ("refused", "bucket absent does not exist: check its name")
    assert keys(s3) == []


def test_s3_away_is_said_and_a_later_attempt_succeeds(
    s3: Any, tenant: Tenant, base_model: BaseModel, settings: Settings
) -> None:
    working = settings.GRAFTWORK
    settings.GRAFTWORK = away = dataclasses.replace(
        working, s3_endpoint_url=f"http://127.0.0.1:{free_port()}"
    )
    with pytest.raises(UnavailableError, match="try again"):
        upload(tenant, base_model, adapter_files())
    assert not Adapter.objects.exists()
    settings.GRAFTWORK = working
    version = upload(tenant, base_model, adapter_files())
    settings.GRAFTWORK = away
    waiting = validated(version)
    assert waiting.status == "pending"
    assert any("try again" in step["detail"] for step in waiting.steps)
    settings.GRAFTWORK = working
    assert validated(version).status == "ready"


def test_over_http_s3_away_is_503_and_a_missing_store_bucket_too(
    s3: Any, tenant: Tenant, base_model: BaseModel, settings: Settings
) -> None:
    _, key = api_key_create(tenant=tenant, name="k", scopes=["manage"])

    def post() -> Any:
        parts = [BytesIO(data) for data in adapter_files().values()]
        for part, name in zip(parts, ADAPTER_FILES, strict=True):
            part.name = name
        form = {"name": "pirate", "base_model": "tiny-base", "files": parts}
        client = Client(raise_request_exception=False)
        return client.post("/api/v1/adapters", form, headers={"Authorization": f"Bearer {key}"})

    settings.GRAFTWORK = dataclasses.replace(settings.GRAFTWORK, artifact_store="s3://absent/x")
    reply = post()
    assert reply.status_code == 503
    assert "absent" in reply.json()["errors"][0]["detail"]
    settings.GRAFTWORK = dataclasses.replace(
        settings.GRAFTWORK, s3_endpoint_url=f"http://127.0.0.1:{free_port()}"
    )
    assert post().status_code == 503
