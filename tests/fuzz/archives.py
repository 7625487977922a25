"""Damaged adapters, packed and unpacked, through registration and validation: ready, or refused in words."""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
import os
import shutil
import struct
import tarfile
import tempfile
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

import django
from django.apps import apps
from django.conf import settings
from django.db import transaction
from django.test.utils import override_settings

from contracts.adapters.reference import ADAPTER_FILES
from tests.fuzz.drawing import changed_json, json_value, spliced
from tests.fuzz.target import Target, demand

if TYPE_CHECKING:
    from controlplane.catalog.models import BaseModel
    from controlplane.tenants.models import Tenant

_CONFIG, _WEIGHTS = ADAPTER_FILES
_BYTES: Final = (
    b"",
    b"\0",
    b"\xff",
    b"\0\0\0\0",
    b"\xff\xff\xff\xff",
    b"\xff\xff\xff\x7f",
    b"PK\x01\x02",
    b"PK\x03\x04",
    b"PK\x05\x06",
    b"PK\x06\x06",
    b"PK\x06\x07",
    b"\x1f\x8b\x08",
    b"ustar",
    b"../",
    b"/",
    b"\\",
    b"7777777",
    b"-1",
    b"\x80\0\0\0\0\0\0\x01",
    b"L",
    b"x",
    b"S",
    b"1",
    b"2",
    b"30 mtime=1e999\n",
    b"21 GNU.sparse.map=9,9\n",
    b"22 GNU.sparse.major=1\n",
    b"22 GNU.sparse.minor=0\n",
    b"23 GNU.sparse.size=-1\n",
    b"18 size=99999999\n",
    b"20 path=../../../x\n",
    b"22 hdrcharset=BINARY\n",
    b"{",
    b"}",
    b'"',
    b",",
    b"[",
    b"NaN",
    b"1e999",
    b"-",
    b"9" * 30,
    b"\xed\xa0\x80",
    b"\\ud800",
    b"null",
)
_NAMES: Final = (
    _CONFIG,
    _WEIGHTS,
    "README.md",
    "a/README.md",
    "../x",
    "/x",
    "C:x",
    "a\\b",
    "x\0y",
    "\u202e",
    "é",
    "e\u0301",
    ".",
    "..",
    "",
    "a/" + _CONFIG,
    "./" + _CONFIG,
    "adapter_model.bin",
    _CONFIG.upper(),
    "x" * 300,
    "a//b",
    "a/./b",
    "\udc80",
    "con",
    "\n",
)
_FIELDS: Final[dict[str, tuple[Any, ...]]] = {
    "r": (1, 2, 0, -1, 2.0, 10**9, 1e300, True, "2"),
    "lora_alpha": (4, 0, -1, 1e38, 1e-300, 10**400, "4"),
    "target_modules": (
        ["q_proj"],
        "all-linear",
        "(a+)+$",
        ".*_proj",
        "[",
        [],
        [1],
        ["x" * 10**5],
        "(" * 500,
        "\\p{L}*" * 200,
    ),
    "exclude_modules": ("v_proj", ["v_proj"], "(?=x)", {}),
    "rank_pattern": ({"q_proj": 1}, {".*": 2}, {"(": 3}, {"q_proj": -1}, [], {"^a{999}{999}$": 1}),
    "alpha_pattern": ({"q_proj": 1e300}, {"v_proj": "x"}),
    "layers_to_transform": ([0], 1, [-1], [10**30], "all", [0.5]),
    "layers_pattern": ("layers", ["h"], "(", []),
    "modules_to_save": (["lm_head"], ["embed_tokens"], "norm", [""], [None]),
    "trainable_token_indices": ([1, 2], {"embed_tokens": [0]}, [-1], [10**12], {"x": []}, [0.0]),
    "use_dora": (True, 1),
    "use_rslora": (True,),
    "bias": ("all", "lora_only", "x"),
    "lora_bias": (True,),
    "init_lora_weights": ("pissa", True, "gaussian", {}),
    "peft_type": ("LOHA", None, 3),
    "task_type": (None, "X", []),
}


class ArchiveCases:
    """Registers and validates adapters of one tenant; a case leaves no row and no file."""

    def __init__(self, folder: Path, tenant: Tenant, base_model: BaseModel) -> None:
        self._artifacts, self._spool = folder / "artifacts", folder / "spool"
        self._tenant, self._base_model = tenant, base_model
        self._spool.mkdir()

    def run(self, draw: Random) -> str:
        files = _sent(draw)
        kept, tempfile.tempdir = tempfile.tempdir, str(self._spool)
        try:
            with transaction.atomic():
                outcome = self._register(files)
                transaction.set_rollback(True)
            if outcome != "ready":
                assert not self._stored_files(), self._stored_files()
        finally:
            tempfile.tempdir = kept
            shutil.rmtree(self._artifacts, ignore_errors=True)
        return outcome

    def _register(self, files: dict[str, bytes]) -> str:
        from controlplane.adapters import validation
        from controlplane.adapters.services import adapter_register
        from controlplane.errors import InvalidInputError

        streams: Any = {name: io.BytesIO(data) for name, data in files.items()}
        try:
            version = adapter_register(
                tenant=self._tenant, name="pirate", base_model=self._base_model, files=streams
            )
        except InvalidInputError as error:
            demand(error.field == "files" and 0 < len(str(error)) < 5000, error)
            return "refused at once"
        validation.version_validate(version_id=version.pk)
        version.refresh_from_db()
        assert version.status in ("ready", "refused"), version.status
        assert bool(version.reason) == (version.status == "refused")
        assert len(version.reason) < 5000, version.reason
        return str(version.status)

    def _stored_files(self) -> list[Path]:
        return [
            path for folder in (self._artifacts, self._spool) for path in folder.rglob("*") if path.is_file()
        ]


def _sent(draw: Random) -> dict[str, bytes]:
    """Return what a client sends: the files of an adapter, or one archive, mostly with some damage."""
    files = _files(draw)
    kind = draw.choice(("files", "zip", "tar"))
    if kind == "files":
        return (
            files if draw.random() < 0.9 else {draw.choice(_NAMES): data for data in files.values()} | files
        )
    entries = [*files.items()]
    if draw.random() < 0.4:
        entries += [
            (draw.choice(_NAMES), draw.randbytes(draw.choice((0, 9, 3000))))
            for _ in range(draw.randrange(1, 4))
        ]
        draw.shuffle(entries)
    data = _zip(draw, entries) if kind == "zip" else _tar(draw, entries)
    if draw.random() < 0.6:
        data = spliced(draw, data, _BYTES, 3)
    if draw.random() < 0.1:
        data = data[: draw.randrange(len(data) + 1)]
    return {"a.zip" if kind == "zip" else draw.choice(("a.tar.gz", "a.tgz")): data}


def _files(draw: Random) -> dict[str, bytes]:
    from tests.controlplane.conftest import CONFIG, adapter_files, adapter_tensors

    config: Any = dict(CONFIG)
    for _ in range(draw.choice((0, 0, 1, 2))):
        name = draw.choice(list(_FIELDS))
        config[name] = draw.choice(_FIELDS[name])
    if draw.random() < 0.2:
        config = changed_json(draw, config, 0.1)
    if draw.random() < 0.1 and isinstance(config, dict):
        config[draw.choice(("eva_config", "revision", "x"))] = json_value(draw, 4)
    data = json.dumps(config).encode()
    files = adapter_files(tensors=adapter_tensors(draw.choice((1, 2, 2, 2))))
    files[_CONFIG] = spliced(draw, data, _BYTES, 2) if draw.random() < 0.2 else data
    files[_WEIGHTS] = _weights(draw, files[_WEIGHTS])
    if draw.random() < 0.1:
        files["README.md"] = draw.randbytes(40) + b"---\nlicense: x\n---\n# Card <script>"
    return files


def _weights(draw: Random, data: bytes) -> bytes:
    """Return a safetensors file with a changed header, changed bytes, or both."""
    if draw.random() < 0.3:
        length = int.from_bytes(data[:8], "little")
        header = changed_json(draw, json.loads(data[8 : 8 + length]), draw.choice((0.01, 0.05)))
        if draw.random() < 0.5 and isinstance(header, dict) and header:
            tensor = header.get(draw.choice(list(header)))
            if isinstance(tensor, dict):
                tensor["shape"] = draw.choice(([2, 8], [-2, -8], [0], [], [1 << 62] * 3, [2.0, 8], [16]))
                tensor["dtype"] = draw.choice(("BF16", "F16", "F32", "F64", "I8", "F8_E4M3", 7, ""))
        text = json.dumps(header).encode()
        data = (
            struct.pack("<Q", draw.choice((len(text), len(text), len(text) + 1, 1 << 63)))
            + text
            + data[8 + length :]
        )
    return spliced(draw, data, _BYTES, 3) if draw.random() < 0.3 else data


def _zip(draw: Random, entries: list[tuple[str, bytes]]) -> bytes:
    out = io.BytesIO()
    method = draw.choice((zipfile.ZIP_DEFLATED, zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED, zipfile.ZIP_LZMA))
    with warnings.catch_warnings(), zipfile.ZipFile(out, "w", method) as archive:
        warnings.simplefilter("ignore")  # of a name that is there twice
        for name, data in entries:
            info = zipfile.ZipInfo("x")
            info.filename, info.compress_type = name.encode(errors="replace").decode(), method
            info.external_attr = draw.choice((0o100644, 0o100644, 0o100644, 0o120777, 0o040755, 0)) << 16
            archive.writestr(info, data)
    return out.getvalue()


def _tar(draw: Random, entries: list[tuple[str, bytes]]) -> bytes:
    out = io.BytesIO()
    form = draw.choice((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT))
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for name, data in entries:
            info = tarfile.TarInfo(name or "empty")
            info.size = len(data)
            if draw.random() < 0.05:
                info.type = draw.choice(b"0 1 2 3 5 7 L K x g S V".split())
            if draw.random() < 0.1:
                info.pax_headers = {
                    draw.choice(("path", "size", "mtime", "comment", "GNU.sparse.map")): "7,1"
                }
            archive.addfile(info, io.BytesIO(data))
    data = out.getvalue()
    if draw.random() < 0.5:
        data = spliced(draw, data, _BYTES, 3)
    return gzip.compress(data, draw.choice((0, 6)), mtime=0)


def set_up_django(folder: Path) -> None:
    """Give Django a migrated SQLite database, unless pytest has set it up already."""
    if apps.ready:
        return
    os.environ["DJANGO_SETTINGS_MODULE"] = "controlplane.settings"
    os.environ["GRAFTWORK_DATABASE_URL"] = f"sqlite://{folder / 'fuzz.db'}"
    django.setup()
    from tests.database_templates import sqlite_copy

    sqlite_copy(folder / "fuzz.db")


@contextmanager
def open_target(folder: Path) -> Iterator[Target]:
    """Opens a control plane with a tenant and a small base model; under pytest a test's `db` is needed."""
    set_up_django(folder)
    from controlplane.catalog.services import base_model_register
    from controlplane.tenants.services import tenant_create
    from tests.controlplane.conftest import write_checkpoint

    graftwork = dataclasses.replace(settings.GRAFTWORK, artifact_store=f"file://{folder / 'artifacts'}")
    with override_settings(GRAFTWORK=graftwork), transaction.atomic():
        base_model = base_model_register(name="tiny-base", source=write_checkpoint(folder / "checkpoint"))
        tenant = tenant_create(slug="acme", name="Acme")
        yield Target(ArchiveCases(folder, tenant, base_model).run)
        transaction.set_rollback(True)
