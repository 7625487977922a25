"""Adapters from a tenant's own bucket: its endpoint, its key, and the guard between."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from django.utils import timezone
from moto.server import ThreadedMotoServer
from pytest_django import Settings

from controlplane.adapters.models import Adapter, AdapterVersion
from controlplane.adapters.services import adapter_register
from controlplane.adapters.sources import download, source_of
from controlplane.adapters.validation import version_validate
from controlplane.artifacts.credentials.models import SourceCredential
from controlplane.artifacts.credentials.services import credential_create
from controlplane.catalog.models import BaseModel
from controlplane.errors import ConflictError, InvalidInputError, UnsealError
from controlplane.platform.open_endpoints import OpenEndpoints
from controlplane.platform.sealing import seal, unseal
from controlplane.tenants.models import Tenant
from tests.conftest import free_port
from tests.controlplane.adapters.packing import TRAINER_FILES, tarred
from tests.controlplane.conftest import adapter_files
from tests.dripping import OK, dripping, lasting

pytestmark = pytest.mark.django_db
SECRET = "TheSecretKeyOfThisTest"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=(port := free_port()), verbose=False)
    server.start()
    client = boto3.client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{port}",
        aws_access_key_id="k",
        aws_secret_access_key="s",
        region_name="us-east-1",
    )
    client.create_bucket(Bucket="theirs")
    for name, data in {**adapter_files(), **TRAINER_FILES}.items():
        client.put_object(Bucket="theirs", Key=f"runs/7/{name}", Body=data)
    client.put_object(Bucket="theirs", Key="packed/a.tar.gz", Body=tarred())
    client.put_object(Bucket="theirs", Key="pickled/adapter_config.json", Body=b"{}")
    client.put_object(Bucket="theirs", Key="pickled/adapter_model.bin", Body=b"x")
    client.put_object(
        Bucket="theirs", Key="cold/adapter_config.json", Body=b"{}", StorageClass="DEEP_ARCHIVE"
    )
    client.close()
    yield f"http://127.0.0.1:{port}"
    server.stop()


def allow(settings: Settings, *entries: str) -> None:
    opened = OpenEndpoints.parse(entries)
    settings.GRAFTWORK = dataclasses.replace(settings.GRAFTWORK, outgoing_allow=opened)


@pytest.fixture
def credential(endpoint: str, settings: Settings, tenant: Tenant) -> SourceCredential:
    allow(settings, endpoint.removeprefix("http://"))
    return credential_create(
        tenant=tenant, name="own", kind="s3", secret=SECRET, endpoint=endpoint, access_key_id="AKIATEST"
    )


def imported(tenant: Tenant, base_model: BaseModel, uri: str) -> AdapterVersion:
    version = adapter_register(tenant=tenant, name="pirate", base_model=base_model, uri=uri, credential="own")
    version_validate(version_id=version.pk)
    version.refresh_from_db()
    return version


def stored_files(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "artifacts").rglob("*") if path.is_file()]


@pytest.mark.parametrize("uri", ["s3://theirs/runs/7", "s3://theirs/packed/a.tar.gz"])
def test_a_prefix_and_an_archive_are_read(
    credential: SourceCredential,
    tenant: Tenant,
    base_model: BaseModel,
    uri: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    version = imported(tenant, base_model, uri)
    assert (version.status, version.reason) == ("ready", "")
    assert version.source == f"{uri}{'' if 'packed' in uri else '/'}?credential=own"
    assert SECRET not in caplog.text
    assert SECRET not in json.dumps(list(SourceCredential.objects.values()), default=str)


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("s3://theirs/nowhere", "holds no adapter_config.json"),
        ("s3://theirs/nowhere/a.zip", "s3://theirs/nowhere/a.zip?credential=own does not exist"),
        ("s3://absent/x", "bucket absent does not exist at http://127.0.0.1:"),
        ("s3://absent/x.zip", "bucket absent does not exist at http://127.0.0.1:"),
        ("s3://theirs/pickled", "graftwork convert"),
        ("s3://theirs/cold", "cold/adapter_config.json is archived (S3 Glacier): restore the object"),
    ],
)
@pytest.mark.costly("a real S3 server")
def test_what_is_not_there_is_said(
    credential: SourceCredential, tenant: Tenant, base_model: BaseModel, tmp_path: Path, uri: str, reason: str
) -> None:
    version = imported(tenant, base_model, uri)
    assert version.status == "refused"
    assert reason in version.reason
    assert stored_files(tmp_path) == []


def test_an_endpoint_inside_is_refused_when_it_is_written_and_when_it_is_called(
    credential: SourceCredential, endpoint: str, tenant: Tenant, base_model: BaseModel, settings: Settings
) -> None:
    allow(settings)
    refused: list[tuple[dict[str, Any], str]] = [
        ({"endpoint": endpoint}, "endpoint"),
        ({"endpoint": "https://169.254.169.254"}, "endpoint"),
        ({"endpoint": "https://u:p@minio.example"}, "endpoint"),
        ({"endpoint": "https://minio.example/path"}, "endpoint"),
        ({"region": "eu central"}, "region"),
        ({"access_key_id": ""}, "access_key_id"),
        ({"secret": "with space in it"}, "secret"),
        ({"name": "No Slug"}, "name"),
    ]
    for change, field in refused:
        values = {"name": "x", "kind": "s3", "secret": SECRET, "access_key_id": "AKIA", **change}
        with pytest.raises(InvalidInputError) as refusal:
            credential_create(tenant=tenant, **values)
        assert refusal.value.field == field
    with pytest.raises(InvalidInputError):
        credential_create(
            tenant=tenant, name="x", kind="huggingface", secret=SECRET, endpoint="https://a.example"
        )
    with pytest.raises(ConflictError):
        credential_create(tenant=tenant, name="own", kind="huggingface", secret=SECRET)
    SourceCredential.objects.filter(pk=credential.pk).update(
        endpoint=endpoint.replace("127.0.0.1", "localhost")
    )
    allow(settings, "127.0.0.1:1")
    version = imported(tenant, base_model, "s3://theirs/runs/7")
    assert (version.status, version.staging) == ("refused", "")
    assert "only https:// is allowed" in version.reason


def test_aws_itself_is_asked_by_a_signed_https_link(tenant: Tenant) -> None:
    credential_create(
        tenant=tenant, name="aws", kind="s3", secret=SECRET, access_key_id="AKIATEST", region="eu-central-1"
    )
    source: Any = source_of("s3://theirs/runs", tenant=tenant, credential="aws")
    link = source._link("runs/adapter_config.json")
    assert link.startswith("https://theirs.s3.")
    assert "X-Amz-Signature=" in link
    assert SECRET not in link


@pytest.mark.parametrize(
    "uri", ["s3:///x", "s3://a b/x", "s3://theirs/../x", "s3://u@theirs/x", "s3://theirs/x?y=1"]
)
def test_what_reads_like_no_bucket_is_refused(
    credential: SourceCredential, tenant: Tenant, base_model: BaseModel, uri: str
) -> None:
    with pytest.raises(InvalidInputError):
        imported(tenant, base_model, uri)
    assert not Adapter.objects.exists()


def test_a_sealed_secret_opens_in_its_place_with_any_key_that_is_set(settings: Settings) -> None:
    def use(*keys: str) -> None:
        settings.GRAFTWORK = dataclasses.replace(settings.GRAFTWORK, sealing_keys=keys)

    use("a" * 32)
    sealed = seal("secret", place="row 1")
    with pytest.raises(UnsealError, match="enter the secret again"):
        unseal(sealed, place="row 2")
    use("b" * 32, "a" * 32)
    assert unseal(sealed, place="row 1") == "secret"
    assert seal("secret", place="row 1") != sealed
    use("b" * 32)
    with pytest.raises(UnsealError):
        unseal(sealed, place="row 1")


def test_a_credential_whose_key_is_gone_refuses_the_import(
    credential: SourceCredential, tenant: Tenant, base_model: BaseModel, settings: Settings
) -> None:
    settings.GRAFTWORK = dataclasses.replace(settings.GRAFTWORK, sealing_keys=("c" * 32,))
    version = imported(tenant, base_model, "s3://theirs/runs/7")
    assert (version.status, "enter the secret again" in version.reason) == ("refused", True)


@pytest.mark.parametrize(
    ("limits", "prompt", "status", "said"),
    [
        ({"GRACE_S": 1.5}, OK, "refused", "the source sends less than 16384 bytes per second: register"),
        ({"LONGEST_S": 3, "HEAD_S": 1}, OK, "refused", "the file did not arrive within 3 seconds: register"),
        ({"LONGEST_S": 2, "HEAD_S": 1}, b"", "pending", ""),
    ],
    ids=["slowly", "too long", "no answer"],
)
@pytest.mark.costly("a real S3 server")
def test_an_endpoint_that_drips_is_left(
    limits: dict[str, float],
    prompt: bytes,
    status: str,
    said: str,
    tenant: Tenant,
    base_model: BaseModel,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    for name, seconds in limits.items():
        monkeypatch.setattr(download, name, seconds)
    with dripping(prompt) as server, lasting(1):
        allow(settings, f"127.0.0.1:{server.port}")
        credential_create(
            tenant=tenant, name="own", kind="s3", secret=SECRET, endpoint=server.url, access_key_id="AKIATEST"
        )
        version = imported(tenant, base_model, "s3://theirs/runs/7")
    assert (version.status, version.reason.startswith(said)) == (status, True)
    assert stored_files(tmp_path) == []
    if status == "pending":
        # Not at once again: a source that lets us wait would have a worker to itself.
        assert version.retry_at is not None
        assert version.retry_at > timezone.now()
