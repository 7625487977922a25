"""Files made to do harm, in the requests of a real client: refused in words, and nothing stays."""

from __future__ import annotations

import json
import random
import struct
import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from contracts.adapters.reference import ADAPTER_FILES
from controlplane.adapters.models import Adapter, AdapterVersion
from controlplane.adapters.services import adapter_register
from controlplane.adapters.validation import version_validate
from controlplane.catalog.models import BaseModel
from controlplane.tenants.models import Tenant
from controlplane.tenants.services import api_key_create
from tests.controlplane.adapters.packing import TRAINER_FILES, zipped
from tests.controlplane.conftest import CONFIG, adapter_files, adapter_tensors, safetensors

pytestmark = pytest.mark.django_db
CONFIG_FILE, WEIGHTS = ADAPTER_FILES
FIRST, SECOND, *_, LAST = adapter_tensors()


def headed(edit: Callable[[dict[str, Any]], None]) -> bytes:
    """The adapter's weights under an edited header."""
    data = safetensors(adapter_tensors())
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    edit(header)
    return written(json.dumps(header).encode(), data[8 + length :])


def written(header: bytes, data: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header)) + header + data


def offsets(*values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda header: header[LAST].update(data_offsets=list(values))


def shape(values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda header: header[FIRST].update(shape=values)


def overlap(header: dict[str, Any]) -> None:
    header[SECOND] = dict(header[FIRST])


WEIGHT_FILES: dict[str, tuple[Callable[[], bytes], str]] = {
    "overlapping": (lambda: headed(overlap), "begins at byte"),
    "beyond the end": (lambda: headed(offsets(1 << 40, (1 << 40) + 16)), "begins at byte 1099511627776"),
    "before the start": (lambda: headed(offsets(-32, 0)), "but its data_offsets are [-32, 0]"),
    "backwards": (lambda: headed(offsets(64, 32)), "but its data_offsets are [64, 32]"),
    "no numbers": (lambda: headed(offsets("0", "32")), "must have dtype, shape and data_offsets"),
    "three offsets": (lambda: headed(offsets(0, 32, 64)), "must have dtype, shape and data_offsets"),
    "a hole": (lambda: headed(lambda header: header.pop(FIRST)), "begins at byte"),
    "a negative shape": (lambda: headed(shape([-2, -8])), "expected non-negative integers"),
    "a boolean shape": (lambda: headed(shape([True, 8])), "expected non-negative integers"),
    "a fractional shape": (lambda: headed(shape([2.0, 8])), "expected non-negative integers"),
    "an endless shape": (lambda: headed(shape([1 << 62] * 300_000)), "has 300000 dimensions"),
    "an immense shape": (lambda: headed(shape([1 << 62] * 8)), "needs"),
    "a header of 100 MB": (lambda: written(b" " * (100 << 20)), "its header claims 104857600 bytes"),
    "a deep header": (lambda: written(b"[" * 1_000_000), "its header is not JSON"),
    "a header that is a list": (lambda: written(b"[]"), "must be a JSON object"),
    "a long number": (lambda: written(b'{"a": ' + b"9" * 5000 + b"}"), "its header is not JSON"),
    "a tensor twice": (lambda: written(b'{"a": 1, "a": 2}'), "names a tensor twice"),
    "not Unicode": (lambda: written(b'{"\xff": 1}'), "its header is not JSON"),
    "a name of control characters": (
        lambda: headed(lambda header: header.update({"a\u202e\0b": header.pop(LAST)})),
        "is not served: expected base_model.model.",
    ),
    "a name of half a surrogate pair": (
        lambda: headed(lambda header: header.update({"a\ud800": header.pop(LAST)})),
        "is not served: expected base_model.model.",
    ),
    "a pickle in disguise": (lambda: b"\x80\x04\x95" + bytes(100), "its header claims"),
    "a zip in disguise": (lambda: zipped(), "its header claims"),
    "empty": (lambda: b"", "too few for a header"),
}


def stored(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "artifacts").rglob("*") if path.is_file()]


def validated(tenant: Tenant, base_model: BaseModel, files: dict[str, bytes]) -> AdapterVersion:
    streams = {name: BytesIO(data) for name, data in files.items()}
    version = adapter_register(tenant=tenant, name="pirate", base_model=base_model, files=streams)
    version_validate(version_id=version.pk)
    version.refresh_from_db()
    return version


@pytest.mark.parametrize("case", WEIGHT_FILES)
def test_weights_are_refused(tenant: Tenant, base_model: BaseModel, tmp_path: Path, case: str) -> None:
    make, reason = WEIGHT_FILES[case]
    files = adapter_files() | {WEIGHTS: make()}
    begun = time.process_time()
    version = validated(tenant, base_model, files)
    assert time.process_time() - begun < 5
    assert (version.status, version.staging, version.attempts) == ("refused", "", 1)
    assert reason in version.reason
    assert len(version.reason) < 5000
    assert stored(tmp_path) == []


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({**CONFIG, "auto_map": {"AutoModel": "modeling_evil.Evil"}}, "auto_map is not served"),
        ({**CONFIG, "trust_remote_code": True}, "trust_remote_code is not served"),
        ({**CONFIG, "custom_code": "import os"}, "custom_code is not served"),
        ({**CONFIG, "target_modules": "(a+)+$"}, "target"),
        (b"[" * 500_000, "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        ({**CONFIG, "lora_alpha": float("nan")}, "holds NaN at lora_alpha"),
        ({**CONFIG, "alpha_pattern": {"q_proj": float("inf")}}, "number at alpha_pattern.q_proj"),
        (b'{"peft_type": "LORA", "r": 1e999}', "holds an infinite number at r"),
        ({**CONFIG, "target_modules": ["q_proj", "v_proj", "\0"]}, "a NUL character"),
        ({**CONFIG, "modules_to_save": ["\ud800"]}, "half of a surrogate pair"),
        (b"null", "must hold an object"),
    ],
)
def test_configurations_are_refused(
    tenant: Tenant, base_model: BaseModel, tmp_path: Path, config: Any, reason: str
) -> None:
    data = config if isinstance(config, bytes) else json.dumps(config).encode()
    version = validated(tenant, base_model, adapter_files() | {CONFIG_FILE: data})
    assert (version.status, version.attempts) == ("refused", 1)
    assert reason in version.reason
    assert stored(tmp_path) == []


def test_faults_in_fields_that_are_not_read_stop_nothing(tenant: Tenant, base_model: BaseModel) -> None:
    """PEFT serves it; the version keeps the configuration without what no database holds."""
    deep: list[object] = []
    for _ in range(900):
        deep = [deep]
    unread = {
        "eva_config": deep,
        "lora_dropout": float("nan"),
        "revision": "a\0\ud800",
        "loftq_config": {"a": [1e999]},
    }
    data = json.dumps({**CONFIG, **unread}).encode()
    version = validated(tenant, base_model, adapter_files() | {CONFIG_FILE: data})
    assert (version.status, version.reason, version.attempts) == ("ready", "", 1)
    assert version.config is not None
    assert {name: version.config[name] for name in unread} == dict.fromkeys(unread)


@pytest.mark.parametrize("cut", [slice(0, -30), slice(9000, None), slice(0, 2 << 20)])
def test_a_damaged_archive_in_a_request_is_a_bad_request(
    tenant: Tenant, base_model: BaseModel, tmp_path: Path, cut: slice
) -> None:
    """Beyond 1 MiB a request's file lies on disk, where the same damage ends in other errors."""
    data = zipped({**adapter_files(), "filler": random.Random(1).randbytes(3 << 20)})
    _, key = api_key_create(tenant=tenant, name="k", scopes=["manage"])
    files = [SimpleUploadedFile("a.zip", data[cut])]
    form = {"name": "pirate", "base_model": "tiny-base", "files": files}
    reply = Client().post("/api/v1/adapters", form, headers={"Authorization": f"Bearer {key}"})
    assert (reply.status_code, reply.json()["errors"][0]["attr"]) == (400, "files")
    assert "a.zip is damaged" in reply.json()["errors"][0]["detail"]
    assert stored(tmp_path) == []


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        ([CONFIG_FILE, "adapter_model.bin"], "graftwork convert"),
        ([CONFIG_FILE, "adapter_model.PT"], "graftwork convert"),
        ([CONFIG_FILE, "adapters.safetensors"], "saved by mlx-lm"),
        ([CONFIG_FILE, f"{WEIGHTS}.index.json", "optimizer.pt"], "saved in shards"),
        ([CONFIG_FILE, WEIGHTS, WEIGHTS], "was sent twice"),
        ([CONFIG_FILE, WEIGHTS, WEIGHTS.upper()], "was sent twice"),
        ([CONFIG_FILE, WEIGHTS, "ａ" + WEIGHTS[1:]], "was sent twice"),
        ([CONFIG_FILE, "model.safetensors"], "send the files"),
        ([CONFIG_FILE, "a.zip"], "send the files"),
        (["a.zip"], "is damaged"),
    ],
)
def test_names_of_uploads_are_refused(
    tenant: Tenant, base_model: BaseModel, tmp_path: Path, names: list[str], reason: str
) -> None:
    _, key = api_key_create(tenant=tenant, name="k", scopes=["manage"])
    files = [SimpleUploadedFile(name, b"x") for name in names]
    form = {"name": "pirate", "base_model": "tiny-base", "files": files}
    reply = Client().post("/api/v1/adapters", form, headers={"Authorization": f"Bearer {key}"})
    assert (reply.status_code, reply.json()["errors"][0]["attr"]) == (400, "files")
    assert reason in reply.json()["errors"][0]["detail"]
    assert stored(tmp_path) == []
    assert not Adapter.objects.exists()


def test_what_peft_saves_beside_an_adapter_is_left_out(
    tenant: Tenant, base_model: BaseModel, tmp_path: Path
) -> None:
    more = {
        **TRAINER_FILES,
        "README.md": b"x",
        "tokenizer.json": b"{}",
        "handler.py": b"raise SystemExit",
        "説明.txt": b"x",
    }
    version = validated(tenant, base_model, {**adapter_files(), **more})
    assert (version.status, version.reason) == ("ready", "")
    assert sorted(path.name for path in stored(tmp_path)) == sorted(ADAPTER_FILES)
