"""Uploads by tus over REST, and what becomes of them."""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.utils import timezone

from contracts.adapters.reference import ADAPTER_FILES
from controlplane.adapters.models import Adapter, AdapterVersion
from controlplane.adapters.services import adapter_register
from controlplane.adapters.validation import version_validate
from controlplane.artifacts.uploads import append, services
from controlplane.artifacts.uploads.append import upload_append
from controlplane.artifacts.uploads.bodies import WholeBody
from controlplane.artifacts.uploads.models import Upload, UploadPart
from controlplane.artifacts.uploads.services import upload_create, uploads_expire
from controlplane.catalog.models import BaseModel
from controlplane.errors import ConflictError, InvalidInputError
from controlplane.tenants.models import Tenant
from controlplane.tenants.services import api_key_create
from tests.controlplane.adapters.packing import zipped
from tests.controlplane.conftest import adapter_files

pytestmark = pytest.mark.django_db(transaction=True)
PATCH_TYPE = "application/offset+octet-stream"
WEIGHTS = ADAPTER_FILES[1]


@pytest.fixture
def client(tenant: Tenant) -> Client:
    _, key = api_key_create(tenant=tenant, name="k", scopes=["manage"])
    return Client(headers={"Authorization": f"Bearer {key}", "Tus-Resumable": "1.0.0"})


def begin(client: Client, name: str, size: int) -> str:
    metadata = f"filename {base64.b64encode(name.encode()).decode()},type eA=="
    headers = {"Upload-Length": str(size), "Upload-Metadata": metadata}
    reply = client.post("/api/v1/uploads", headers=headers)
    assert reply.status_code == 201, reply.content
    return str(reply["Location"]).removeprefix("http://testserver")


def send(client: Client, place: str, offset: int, data: bytes, **headers: str) -> Any:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return client.patch(
        place,
        data,
        content_type=named.pop("Content-Type", PATCH_TYPE),
        headers={"Upload-Offset": str(offset), **named},
    )


def upload(client: Client, name: str, data: bytes, step: int = 1 << 20) -> str:
    place = begin(client, name, len(data))
    for offset in range(0, len(data), step):
        assert send(client, place, offset, data[offset : offset + step]).status_code == 204
    return place.rpartition("/")[2]


def files_in(tmp_path: Path, folder: str) -> list[Path]:
    return [path for path in (tmp_path / "artifacts" / folder).rglob("*") if path.is_file()]


def register(client: Client, *ids: str) -> Any:
    body = {"name": "pirate", "base_model": "tiny-base", "uploads": list(ids)}
    return client.post("/api/v1/adapters", body, content_type="application/json")


def validated() -> AdapterVersion:
    version = AdapterVersion.objects.latest("pk")
    version_validate(version_id=version.pk)
    version.refresh_from_db()
    return version


def test_what_a_tus_client_is_told(client: Client) -> None:
    reply = client.options("/api/v1/uploads")
    assert (reply.status_code, reply["Tus-Version"]) == (204, "1.0.0")
    assert reply["Tus-Extension"] == "creation,expiration,checksum,termination"
    place = begin(client, WEIGHTS, 10)
    send(client, place, 0, b"abc")
    head = client.head(place)
    assert (head.status_code, head["Upload-Offset"], head["Upload-Length"]) == (200, "3", "10")
    assert (head["Cache-Control"], head["Tus-Resumable"]) == ("no-store", "1.0.0")
    assert "GMT" in head["Upload-Expires"]
    shown = client.get(place).json()
    assert (shown["name"], shown["size"], shown["offset"]) == (WEIGHTS, 10, 3)
    assert [row["id"] for row in client.get("/api/v1/uploads").json()["results"]] == [shown["id"]]
    assert client.delete(place).status_code == 204
    assert client.head(place).status_code == 404


@pytest.mark.parametrize("packed", [True, False])
def test_uploads_become_a_version_and_leave_nothing(
    client: Client, base_model: BaseModel, tmp_path: Path, packed: bool
) -> None:
    files = {"a.zip": zipped()} if packed else adapter_files()
    ids = [upload(client, name, data, step=100) for name, data in files.items()]
    reply = register(client, *ids)
    assert reply.status_code == 201, reply.content
    assert client.get("/api/v1/uploads").json()["results"] == []
    assert register(client, *ids).status_code == 409
    version = validated()
    assert (version.status, version.reason, version.number) == ("ready", "", 1)
    stored = {path.name: path.read_bytes() for path in files_in(tmp_path, "adapters")}
    assert stored == adapter_files()
    assert files_in(tmp_path, "uploads") + files_in(tmp_path, "incoming") == []
    assert not Upload.objects.exists()


def test_a_refused_version_takes_its_uploads_along(
    client: Client, base_model: BaseModel, tmp_path: Path
) -> None:
    assert register(client, upload(client, "a.zip", b"no archive at all")).status_code == 201
    version = validated()
    assert (version.status, "is damaged" in version.reason) == ("refused", True)
    assert files_in(tmp_path, "") == []
    assert not Upload.objects.exists()


def test_a_registration_that_fails_leaves_the_uploads_free(client: Client, base_model: BaseModel) -> None:
    whole, other = upload(client, "a.zip", zipped()), begin(client, WEIGHTS, 10).rpartition("/")[2]
    for ids, status in (([whole, other], 400), ([whole, "0" * 32], 400), ([], 400)):
        reply = register(client, *ids)
        assert (reply.status_code, reply.json()["errors"][0]["attr"].split(".")[0]) == (status, "uploads")
    assert not Adapter.objects.exists()
    assert register(client, whole).status_code == 201


@pytest.mark.parametrize(
    ("headers", "data", "status", "text"),
    [
        ({"Upload-Offset": "0"}, b"abc", 409, "at byte 5, not 0"),
        ({"Upload-Offset": "x"}, b"abc", 400, "must be a number of bytes"),
        ({"Upload-Offset": "-5"}, b"abc", 400, "must be a number of bytes"),
        ({"Upload-Offset": "5"}, b"abcdef", 400, "announced size of 10 bytes"),
        ({"Upload-Offset": "5", "Tus-Resumable": "0.2.2"}, b"abc", 412, "speaks tus 1.0.0"),
        ({"Upload-Offset": "5", "Content-Type": "text/plain"}, b"abc", 415, "send the bytes as"),
        ({"Upload-Offset": "5", "Upload-Checksum": "sha256 AAAA"}, b"abc", 460, "send them again"),
        ({"Upload-Offset": "5", "Upload-Checksum": "crc32 AAAA"}, b"abc", 400, "checksums are"),
        ({"Upload-Offset": "5", "Upload-Checksum": "sha256 ?"}, b"abc", 400, "no base64"),
    ],
)
def test_bytes_that_do_not_fit_are_refused_and_not_kept(
    client: Client, tmp_path: Path, headers: dict[str, str], data: bytes, status: int, text: str
) -> None:
    place = begin(client, WEIGHTS, 10)
    assert send(client, place, 0, b"first").status_code == 204
    offset = headers.pop("Upload-Offset")
    reply = client.patch(
        place,
        data,
        content_type=headers.pop("Content-Type", PATCH_TYPE),
        headers={"Upload-Offset": offset, **headers},
    )
    assert (reply.status_code, text in reply.json()["errors"][0]["detail"]) == (status, True), reply.content
    assert client.head(place)["Upload-Offset"] == "5"
    assert [path.read_bytes() for path in files_in(tmp_path, "uploads")] == [b"first"]
    assert send(client, place, 5, b"later").status_code == 204


@pytest.mark.parametrize("algorithm", ["sha1", "sha256"])
def test_a_right_checksum_is_taken(client: Client, algorithm: str) -> None:
    place = begin(client, WEIGHTS, 5)
    digest = base64.b64encode(hashlib.new(algorithm, b"bytes").digest()).decode()
    assert send(client, place, 0, b"bytes", Upload_Checksum=f"{algorithm} {digest}").status_code == 204
    assert client.head(place)["Upload-Offset"] == "5"


@pytest.mark.parametrize(
    ("name", "size", "field", "text"),
    [
        ("adapter_model.bin", 10, "name", "graftwork convert"),
        ("optimizer.pt", 10, "name", "is a trainer's state and not part of an adapter: leave it out"),
        ("adapters.safetensors", 10, "name", "saved by mlx-lm"),
        ("model.safetensors", 10, "name", "adapter_model.safetensors, or a .zip"),
        ("../a.zip", 10, "name", "or a .zip"),
        ("a\u202e.zip", 10, "name", "or a .zip"),
        (WEIGHTS, (15 << 30) + 1, "size", "may have 1 to 16106127360 bytes"),
        ("adapter_config.json", 2 << 20, "size", "1048576"),
        (WEIGHTS, 0, "size", ""),
    ],
)
def test_files_that_no_adapter_has_are_refused_before_a_byte(
    client: Client, name: str, size: int, field: str, text: str
) -> None:
    reply = client.post("/api/v1/uploads", {"name": name, "size": size}, content_type="application/json")
    error = reply.json()["errors"][0]
    assert (reply.status_code, error["attr"], text in error["detail"]) == (400, field, True), error


def test_a_tenant_has_a_bounded_number_of_uploads_under_way(
    tenant: Tenant, other_tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "MAX_OPEN", 2)
    for _ in range(2):
        upload_create(tenant=tenant, name=WEIGHTS, size=10)
    with pytest.raises(ConflictError, match="at most 2 uploads"):
        upload_create(tenant=tenant, name=WEIGHTS, size=10)
    monkeypatch.setattr(services, "MAX_OPEN_BYTES", 15)
    upload_create(tenant=other_tenant, name=WEIGHTS, size=10)
    with pytest.raises(ConflictError):
        upload_create(tenant=other_tenant, name=WEIGHTS, size=10)


class Meeting(WholeBody):
    """A body during which something else happens."""

    def __init__(self, data: bytes, meanwhile: Callable[[], None]) -> None:
        super().__init__(data)
        self._meanwhile = meanwhile

    def read(self, size: int, *, seconds: float) -> bytes:
        self._meanwhile()
        return super().read(size, seconds=seconds)


def test_a_second_writer_is_refused_while_the_first_lives(tenant: Tenant, tmp_path: Path) -> None:
    row, seen = upload_create(tenant=tenant, name=WEIGHTS, size=10), list[str]()

    def knock() -> None:
        with pytest.raises(ConflictError, match="another request is writing") as refusal:
            upload_append(upload=Upload.objects.get(), offset=0, body=WholeBody(b"other"))
        seen.append(str(refusal.value))

    assert upload_append(upload=row, offset=0, body=Meeting(b"bytes", knock)).offset == 5
    assert len(seen) == 1
    assert Upload.objects.get().writer == ""
    assert [path.read_bytes() for path in files_in(tmp_path, "uploads")] == [b"bytes"]


def test_a_writer_that_lost_its_lease_adds_nothing(tenant: Tenant, tmp_path: Path) -> None:
    row = upload_create(tenant=tenant, name=WEIGHTS, size=10)

    def sleep_while_another_writes() -> None:
        Upload.objects.update(writer_seen_at=timezone.now() - 2 * append.LEASE)
        upload_append(upload=Upload.objects.get(), offset=0, body=WholeBody(b"other"))

    with pytest.raises(ConflictError, match="took over the upload"):
        upload_append(upload=row, offset=0, body=Meeting(b"bytes", sleep_while_another_writes))
    assert Upload.objects.get().offset == 5
    assert [path.read_bytes() for path in files_in(tmp_path, "uploads")] == [b"other"]


def test_of_two_writers_at_once_one_writes(tenant: Tenant, tmp_path: Path) -> None:
    row, outcomes = upload_create(tenant=tenant, name=WEIGHTS, size=10), list[str]()
    together = threading.Barrier(2, timeout=20)

    def write(data: bytes) -> None:
        together.wait()
        try:
            upload_append(upload=Upload.objects.get(pk=row.pk), offset=0, body=WholeBody(data))
            outcomes.append("written")
        except ConflictError:
            outcomes.append("refused")
        finally:
            connection.close()

    threads = [threading.Thread(target=write, args=(data,)) for data in (b"first", b"other")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["refused", "written"]
    assert UploadPart.objects.count() == 1
    assert len(files_in(tmp_path, "uploads")) == 1


def test_too_small_pieces_end_an_upload(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(append, "MAX_PARTS", 2)
    row = upload_create(tenant=tenant, name=WEIGHTS, size=10)
    for offset in range(2):
        upload_append(upload=row, offset=offset, body=WholeBody(b"x"))
    with pytest.raises(InvalidInputError, match="send larger ones"):
        upload_append(upload=row, offset=2, body=WholeBody(b"x"))


def test_what_nobody_finishes_expires_with_its_bytes(
    client: Client, base_model: BaseModel, tenant: Tenant, tmp_path: Path
) -> None:
    old, young, busy = (upload_create(tenant=tenant, name=WEIGHTS, size=10) for _ in range(3))
    taken = upload(client, "a.zip", zipped())
    for row in (old, young, busy):
        upload_append(upload=row, offset=0, body=WholeBody(b"bytes"))
    past = timezone.now() - dt.timedelta(seconds=1)
    Upload.objects.filter(pk__in=[old.pk, busy.pk]).update(expires_at=past)
    Upload.objects.filter(pk=busy.pk).update(writer="x", writer_seen_at=timezone.now())
    assert client.head(f"/api/v1/uploads/{old.pk}").status_code == 404
    register(client, taken)
    assert uploads_expire() == 1
    assert set(Upload.objects.values_list("pk", flat=True)) == {young.pk, busy.pk, taken}
    assert {path.parent.name for path in files_in(tmp_path, "uploads")} == {young.pk, busy.pk, taken}
    Upload.objects.update(writer="")
    Upload.objects.filter(pk=taken).update(expires_at=past)
    assert uploads_expire() == 2
    assert "no longer exists: upload the file again" in validated().reason


def test_another_tenants_upload_does_not_exist(
    client: Client, base_model: BaseModel, other_tenant: Tenant
) -> None:
    theirs = upload_create(tenant=other_tenant, name="a.zip", size=5)
    upload_append(upload=theirs, offset=0, body=WholeBody(b"bytes"))
    place = f"/api/v1/uploads/{theirs.pk}"
    assert client.head(place).status_code == send(client, place, 5, b"").status_code == 404
    assert client.delete(place).status_code == 404
    assert register(client, theirs.pk).status_code == 400
    uri = f"upload:{theirs.pk}"
    with pytest.raises(InvalidInputError, match="accepted URIs are"):
        adapter_register(tenant=other_tenant, name="pirate", base_model=base_model, uri=uri)
