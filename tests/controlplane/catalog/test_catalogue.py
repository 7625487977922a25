"""Checkpoints from a folder, S3 and a hub; digests of their files; variants; the operator's pages."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import boto3
import pytest
from django.test import Client
from django.utils import timezone
from moto.server import ThreadedMotoServer
from pytest_django import Settings

from contracts.base_routes import PROTECTED_PARAMETERS
from controlplane.catalog import digests
from controlplane.catalog.checkpoint_sources import checkpoint_source
from controlplane.catalog.digests import checkpoint_digest, digest_request, digest_run, digests_resume
from controlplane.catalog.models import BaseModel, CheckpointFile, Variant
from controlplane.catalog.services import base_model_register, base_model_update, variant_create
from controlplane.deployments.copies.publishing import base_publish
from controlplane.deployments.copies.services import copy_register, copy_remove
from controlplane.errors import ConflictError, InvalidInputError, UnavailableError
from controlplane.platform.audit.models import AuditRecord
from controlplane.platform.open_endpoints import OpenEndpoints
from controlplane.routes.selectors import route_base
from controlplane.tenants.models import Tenant
from controlplane.tenants.services import api_key_create, user_create
from tests.conftest import free_port
from tests.controlplane.adapters.test_races import at_once
from tests.controlplane.conftest import write_checkpoint

pytestmark = pytest.mark.django_db
COMMIT = "c0ffee" + "0" * 34


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "checkpoint")


def expected(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def digested(base_model: BaseModel) -> dict[str, str]:
    digest_run(base_model_id=base_model.pk)
    base_model.refresh_from_db()
    assert base_model.digest_status == "done", base_model.digest_reason
    files = {item.name: item.sha256 for item in base_model.files.all()}
    assert base_model.checkpoint_sha256 == checkpoint_digest(files)
    return files


def test_a_folders_files_are_digested(checkpoint: Path) -> None:
    (checkpoint / ".hidden").write_text("x")
    base_model = base_model_register(name="tiny", source=str(checkpoint), licence="Apache-2.0")
    (checkpoint / ".hidden").unlink()
    assert digested(base_model) == expected(checkpoint)
    assert (base_model.licence, base_model.source) == ("Apache-2.0", str(checkpoint))


@pytest.fixture
def bucket(settings: Settings, monkeypatch: pytest.MonkeyPatch, checkpoint: Path) -> Iterator[str]:
    """The checkpoint in an S3 bucket."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=free_port())
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    settings.GRAFTWORK = dataclasses.replace(settings.GRAFTWORK, s3_endpoint_url=url)
    client = boto3.client("s3", endpoint_url=url)
    client.create_bucket(Bucket="models")
    for path in checkpoint.iterdir():
        client.upload_file(str(path), "models", f"tiny/{path.name}")
    client.put_object(Bucket="models", Key="tiny/sub/other.bin", Body=b"x")
    yield "s3://models/tiny"
    server.stop()


@pytest.mark.costly("a real S3 server")
def test_a_checkpoint_in_s3(bucket: str, checkpoint: Path) -> None:
    base_model = base_model_register(name="tiny", source=bucket)
    assert (base_model.source, base_model.architecture) == ("s3://models/tiny/", "LlamaForCausalLM")
    assert digested(base_model) == expected(checkpoint)
    with pytest.raises(InvalidInputError, match="the file does not exist"):
        base_model_register(name="other", source="s3://models/nothing")
    with pytest.raises(InvalidInputError, match="cannot read s3://nowhere/x/"):
        base_model_register(name="other", source="s3://nowhere/x")


TOKEN = "hf_reads_the_gated_one"


class Hub(BaseHTTPRequestHandler):
    """A hub with a public and a gated repository: their descriptions, and files behind a redirect."""

    folder: Path
    has_ranges = True

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if "acme/gated" in path and self.headers["Authorization"] == f"Bearer {TOKEN}":
            path = path.replace("acme/gated", "acme/tiny")
        if path in ("/api/models/acme/tiny/revision/main", f"/api/models/acme/tiny/revision/{COMMIT}"):
            files = [{"rfilename": item.name, "size": item.stat().st_size} for item in self.folder.iterdir()]
            self._send(json.dumps({"sha": COMMIT, "siblings": files}).encode())
        elif path.startswith(f"/acme/tiny/resolve/{COMMIT}/"):
            self.send_response(302)
            self.send_header("Location", f"/cdn/{path.rpartition('/')[2]}")
            self.end_headers()
        elif path.startswith("/cdn/"):
            self._send_part((self.folder / path.removeprefix("/cdn/")).read_bytes())
        else:
            self.send_error(401 if "gated" in path else 503)

    def _send_part(self, data: bytes) -> None:
        """Send the bytes that the request's Range asks for, as CDNs do."""
        if (asked := re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"] or "")) and self.has_ranges:
            self._send(data[int(asked[1]) : int(asked[2]) + 1], status=206)
        else:
            self._send(data)

    def _send(self, data: bytes, *, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


def read_ranges(source: str, checkpoint: Path) -> None:
    """Compare ranges of a source's file with the folder's: a header and the last bytes."""
    name = "model-1.safetensors"
    whole = (checkpoint / name).read_bytes()
    found = checkpoint_source(source)
    assert found.sizes()[name] == len(whole)
    for start, size in ((0, 8), (8, int.from_bytes(whole[:8], "little")), (len(whole) - 3, 3)):
        assert found.read_range(name, start, size) == whole[start : start + size]


def test_ranges_of_a_folders_files_are_read(checkpoint: Path) -> None:
    read_ranges(str(checkpoint), checkpoint)


@pytest.mark.costly("a real S3 server")
def test_ranges_of_a_buckets_objects_are_read(bucket: str, checkpoint: Path) -> None:
    read_ranges(bucket, checkpoint)


@pytest.fixture
def hub(settings: Settings, checkpoint: Path) -> Iterator[str]:
    handler = type("OneHub", (Hub,), {"folder": checkpoint})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        host = f"127.0.0.1:{server.server_address[1]}"
        settings.GRAFTWORK = dataclasses.replace(
            settings.GRAFTWORK, hub_endpoint=f"http://{host}", outgoing_allow=OpenEndpoints.parse([host])
        )
        yield host
        server.shutdown()


def test_ranges_of_a_hubs_files_are_read(hub: str, checkpoint: Path) -> None:
    read_ranges("hf://acme/tiny", checkpoint)


def test_a_hub_without_ranges_is_refused_before_it_sends_the_whole_file(
    hub: str, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Hub, "has_ranges", False)
    with pytest.raises(UnavailableError, match="a part was requested"):
        read_ranges("hf://acme/tiny", checkpoint)


def test_a_checkpoint_of_a_hub_is_kept_at_its_commit(hub: str, checkpoint: Path) -> None:
    base_model = base_model_register(name="tiny", source="hf://acme/tiny")
    assert base_model.source == f"hf://acme/tiny@{COMMIT}"
    BaseModel.objects.update(source="hf://acme/tiny@main")
    assert digested(base_model) == expected(checkpoint)
    with pytest.raises(UnavailableError, match="503"):
        base_model_register(name="other", source="hf://acme/away")
    for wrong in ("hf://acme", "hf://a b/c", "hf://acme/tiny@../x", "ftp://x/y", "relative"):
        with pytest.raises(InvalidInputError):
            base_model_register(name="other", source=wrong)


def test_a_gated_repository_is_read_with_a_token_that_nobody_sees(hub: str, checkpoint: Path) -> None:
    staff = Client()
    staff.force_login(user_create(email="s@graft.test", password="long-enough-7", is_staff=True))
    body = {"name": "tiny", "source": "hf://acme/gated"}
    for token in ({}, {"hub_token": "hf_wrong"}):
        answer = staff.post("/api/v1/base-models", body | token, "application/json")
        (error,) = answer.json()["errors"]
        assert (answer.status_code, "set hub_token" in error["detail"]) == (400, True), error
    made = staff.post("/api/v1/base-models", body | {"hub_token": TOKEN}, "application/json")
    assert (made.status_code, TOKEN in made.text) == (201, False)
    base_model = BaseModel.objects.get()
    assert TOKEN not in base_model.sealed_hub_token
    assert digested(base_model) == expected(checkpoint)
    assert TOKEN not in staff.get("/api/v1/base-models/tiny").text
    assert TOKEN not in staff.get("/staff/base-models/tiny/").text
    assert not AuditRecord.objects.filter(after__icontains=TOKEN).exists()

    staff.patch("/api/v1/base-models/tiny", {"hub_token": "hf_revoked"}, "application/json")
    with pytest.raises(InvalidInputError, match="set hub_token"):
        checkpoint_source(base_model.source).sizes()
    staff.post("/staff/base-models/tiny/", {"max_lora_rank": "64", "hub_token": TOKEN})
    assert len(checkpoint_source(base_model.source).sizes()) == len(expected(checkpoint))
    staff.post("/staff/base-models/tiny/", {"max_lora_rank": "32", "hub_token": ""})
    base_model.refresh_from_db()
    assert (base_model.max_lora_rank, base_model.sealed_hub_token != "") == (32, True)
    folder = {"name": "other", "source": str(checkpoint), "hub_token": TOKEN}
    refused = staff.post("/api/v1/base-models", folder, "application/json")
    assert "valid only for a source hf://" in refused.text


def test_a_hub_that_is_away_is_a_503_and_no_traceback(hub: str, caplog: pytest.LogCaptureFixture) -> None:
    staff = Client()
    staff.force_login(user_create(email="s@graft.test", password="long-enough-7", is_staff=True))
    body = {"name": "other", "source": "hf://acme/away"}
    assert staff.post("/api/v1/base-models", body, "application/json").status_code == 503
    logged = [record for record in caplog.records if record.name == "django.request"]
    assert [(record.levelname, record.exc_info) for record in logged] == [("WARNING", None)]
    assert "503" in logged[0].getMessage()


def test_a_digest_that_died_goes_on_by_file(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base_model = base_model_register(name="tiny", source=checkpoint)
    real, read = digests._file_digest, list[str]()

    def dies(row: BaseModel, source: object, name: str) -> str:
        if read:
            raise MemoryError("killed here")
        read.append(name)
        return real(row, source, name)  # type: ignore[arg-type]

    monkeypatch.setattr(digests, "_file_digest", dies)
    with pytest.raises(MemoryError):
        digest_run(base_model_id=base_model.pk)
    monkeypatch.undo()
    digest_run(base_model_id=base_model.pk)
    base_model.refresh_from_db()
    assert (base_model.digest_status, base_model.files.count()) == ("running", 1)
    BaseModel.objects.update(digest_beat_at=timezone.now() - timedelta(minutes=3))
    assert digests_resume() == 1
    CheckpointFile.objects.update(sha256="ab" * 32)  # a file that is hashed again would lose this value
    assert set(digested(base_model).values()) > {"ab" * 32}
    digest_request(base_model=base_model)
    assert digested(base_model) == expected(checkpoint)


def test_a_checkpoint_that_went_away_is_told(checkpoint: Path) -> None:
    base_model = base_model_register(name="tiny", source=checkpoint)
    checkpoint.rename(checkpoint.with_name("moved"))
    digest_run(base_model_id=base_model.pk)
    base_model.refresh_from_db()
    assert (base_model.digest_status, "cannot read" in base_model.digest_reason) == ("failed", True)


@pytest.mark.django_db(transaction=True)
def test_of_two_variants_of_one_name_at_once_one_stays(checkpoint: Path) -> None:
    base_model = base_model_register(name="tiny", source=checkpoint)
    add = partial(variant_create, base_model=base_model, name="int8", dtype="int8", source="/models/int8")
    results = at_once([add] * 3)
    assert len([item for item in results if isinstance(item, ConflictError)]) == 2
    assert Variant.objects.count() == 1


def test_rest_for_tenants_and_staff(checkpoint: Path, tenant: Tenant) -> None:
    base_model = base_model_register(name="tiny", source=checkpoint)
    copy = copy_register(base_model=base_model, kind="worker", url="http://127.0.0.1:1")
    staff = Client()
    staff.force_login(user_create(email="s@graft.test", password="long-enough-7", is_staff=True))
    url, json_type = "/api/v1/base-models/tiny", "application/json"
    body = {"name": "int8", "dtype": "int8", "quantization": "w8a8", "source": "s3://models/int8"}
    assert staff.post(f"{url}/variants", body, content_type=json_type).status_code == 201
    change = {"licence": "MIT", "max_lora_rank": 32, "dropped_parameters": ["seed"]}
    answer = staff.patch(url, change, content_type=json_type)
    assert {name: answer.json()[name] for name in change} == change
    refused = staff.patch(url, {"dropped_parameters": ["n"]}, content_type=json_type)
    assert (refused.status_code, "n cannot be dropped" in refused.text) == (400, True)
    digest_run(base_model_id=base_model.pk)
    told = staff.get(f"{url}/checkpoint").json()
    assert (told["digest_status"], len(told["files"])) == ("done", len(expected(checkpoint)))
    _, key = api_key_create(tenant=tenant, name="m", scopes=["manage"])
    own = Client(headers={"Authorization": f"Bearer {key}"})
    seen = own.get(url).json()
    assert seen["copies"] == [{"id": copy.pk, "kind": "worker"}]
    assert seen["variants"][0]["quantization"] == "w8a8"
    assert str(checkpoint) not in str(seen)
    assert own.get(f"{url}/checkpoint").status_code == 403
    assert staff.delete(f"{url}/variants/int8").status_code == 204
    assert own.get(url).json()["variants"] == []


def test_dropped_parameters_are_published_beside_the_copies(checkpoint: Path) -> None:
    stale = base_model_register(name="tiny", source=checkpoint)
    copy = copy_register(base_model=stale, kind="worker", url="http://127.0.0.1:1")
    base_model_update(base_model=stale, dropped_parameters=["seed", "logit_bias", "seed"])
    _check_published("logit_bias", "seed")
    base_publish(stale)
    _check_published("logit_bias", "seed")
    copy_remove(copy=copy)
    _check_published("logit_bias", "seed")
    base_model_update(base_model=stale, licence="MIT")
    stale.refresh_from_db()
    assert (stale.licence, stale.dropped_parameters) == ("MIT", ["logit_bias", "seed"])
    base_model_update(base_model=stale, dropped_parameters=[])
    _check_published()


def _check_published(*names: str) -> None:
    entry = route_base(base_model="tiny")
    assert entry is not None
    assert entry.dropped_parameters == names


@pytest.mark.parametrize("name", [*sorted(PROTECTED_PARAMETERS), "", "a b", "extra_body.seed", "é", "x" * 65])
def test_what_may_not_be_dropped_is_refused_by_name(checkpoint: Path, name: str) -> None:
    base_model = base_model_register(name="tiny", source=checkpoint)
    said = (
        f"{name} cannot be dropped" if name in PROTECTED_PARAMETERS else f"{name[:64]!r} is not a parameter"
    )
    with pytest.raises(InvalidInputError, match=re.escape(said)) as caught:
        base_model_update(base_model=base_model, dropped_parameters=["seed", name])
    assert caught.value.field == "dropped_parameters"
    base_model.refresh_from_db()
    assert base_model.dropped_parameters == []


def test_the_list_of_dropped_parameters_has_a_bound(checkpoint: Path) -> None:
    base_model = base_model_register(name="tiny", source=checkpoint)
    names = [f"p{number}" for number in range(101)]
    with pytest.raises(InvalidInputError, match="at most 100"):
        base_model_update(base_model=base_model, dropped_parameters=names)
    base_model_update(base_model=base_model, dropped_parameters=names[1:])


def test_the_operators_pages(checkpoint: Path, tenant: Tenant) -> None:
    staff, member = Client(), Client()
    staff.force_login(user_create(email="s@graft.test", password="long-enough-7", is_staff=True))
    member.force_login(user_create(email="a@acme.test", password="long-enough-7", tenant=tenant))
    url = "/staff/base-models/"
    refused = staff.post(url, {"name": "tiny", "source": "/nowhere"})
    assert (refused.status_code, b"error-source" in refused.content) == (422, True)
    assert staff.post(url, {"name": "tiny", "source": str(checkpoint)})["Location"] == f"{url}tiny/"
    base_model = BaseModel.objects.get()
    assert f'hx-get="{url}tiny/digests"' in staff.get(f"{url}tiny/").content.decode()
    digest_run(base_model_id=base_model.pk)
    settled = staff.get(f"{url}tiny/digests").content.decode()
    assert "hx-get" not in settled
    assert expected(checkpoint)["config.json"] in settled
    terms = {"licence": "MIT", "max_lora_rank": "16", "dropped_parameters": "seed, logit_bias"}
    staff.post(f"{url}tiny/", terms)
    refused = staff.post(f"{url}tiny/", terms | {"dropped_parameters": "seed, max_tokens"})
    assert refused.status_code == 422
    assert "max_tokens cannot be dropped" in refused.text
    assert 'value="seed, max_tokens"' in refused.text
    assert staff.post(f"{url}tiny/", {"licence": "", "max_lora_rank": "0"}).status_code == 422
    variant = {"name": "int8", "dtype": "int8", "source": "/models/int8"}
    staff.post(f"{url}tiny/variants", variant)
    assert staff.post(f"{url}tiny/variants", variant).status_code == 422
    page = staff.get(f"{url}tiny/").content.decode()
    assert "/models/int8" in page
    assert 'value="MIT"' in page
    assert 'value="logit_bias, seed"' in page
    assert "No copies yet" in page
    staff.post(f"{url}tiny/variants", {"remove": "int8"})
    assert not Variant.objects.exists()
    staff.post(f"{url}tiny/digests")
    base_model.refresh_from_db()
    assert (base_model.digest_status, base_model.licence, base_model.max_lora_rank) == ("pending", "MIT", 16)
    for path in (url, f"{url}tiny/", f"{url}tiny/digests"):
        assert member.get(path).status_code == 404
        assert Client().get(path).status_code == 302
