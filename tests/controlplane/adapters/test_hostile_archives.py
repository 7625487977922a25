"""Archives made to do harm: each is refused in words, in bounded memory, and leaves nothing on disk."""

from __future__ import annotations

import gzip
import io
import random
import re
import struct
import tarfile
import tempfile
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from contracts.adapters.reference import ADAPTER_FILES
from controlplane.adapters.archives import unpack
from controlplane.adapters.models import Adapter, AdapterVersion
from controlplane.adapters.services import adapter_register
from controlplane.adapters.validation import version_validate
from controlplane.artifacts.store import ByteStream
from controlplane.catalog.models import BaseModel
from controlplane.errors import InvalidInputError
from controlplane.tenants.models import Tenant
from tests.controlplane.adapters.packing import (
    CHECKPOINTS,
    TRAINER_FILES,
    tar,
    tar_entry,
    tarred,
    zeros,
    zip_entry,
    zipped,
)
from tests.controlplane.conftest import adapter_files

pytestmark = pytest.mark.django_db
CONFIG, WEIGHTS = ADAPTER_FILES
FILES = adapter_files()
NESTED = {f"out/pirate/{name}": data for name, data in FILES.items()}


def patched_size(data: bytes, size: int) -> bytes:
    """A .zip whose directory, and whose entries' heads, claim `size` unpacked bytes for every entry."""
    edited, at = bytearray(data), 0
    for mark, offset in ((b"PK\x01\x02", 24), (b"PK\x03\x04", 22)):
        at = 0
        while (at := data.find(mark, at)) >= 0:
            edited[at + offset : at + offset + 4] = struct.pack("<I", size)
            at += 4
    return bytes(edited)


def large_with_hole() -> bytes:
    """A .zip of 2 MiB without a piece of its middle: its directory points before the file's start."""
    data = zipped({**FILES, "filler": random.Random(1).randbytes(2 << 20)})
    return data[: 1 << 20] + data[(1 << 20) + 9000 :]


def large_damaged() -> bytes:
    """A .zip whose weights of 2 MiB have a byte of their middle changed."""
    data = bytearray(zipped({**FILES, WEIGHTS: random.Random(1).randbytes(2 << 20)}))
    data[1 << 20] ^= 0x55
    return bytes(data)


def sparse_map() -> bytes:
    """A .tar with a sparse file of PAX's form 1.0, whose map claims a billion numbers."""
    info = tar_entry("out/x")
    info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "1"}
    return tarred(None, (info, b"1000000000\n" + b"0\n" * 500))


def long_header() -> bytes:
    """A .tar whose first header of its own kind is 100 MB long."""
    info = tar_entry("././@PaxHeader", tarfile.XHDTYPE)
    info.size = 100 << 20
    return gzip.compress(info.tobuf(tarfile.USTAR_FORMAT)) + zeros(100 << 20)


def large_directory() -> bytes:
    """A .zip whose directory holds 60,000 entries."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for number in range(60_000):
            archive.writestr(f"{number:060}", b"")
    return out.getvalue()


def tar_bomb() -> bytes:
    """An adapter, then 3 GB of zeros."""
    info = tar_entry("out/filler")
    info.size = 3 << 30
    return gzip.compress(tar()[:-10240]) + gzip.compress(info.tobuf()) + zeros(3 << 30)


Case = tuple[str, Callable[[], bytes], str]
HOSTILE: dict[str, Case] = {
    "zip bomb by ratio": (
        "a.zip",
        lambda: zipped({**FILES, "filler": bytes(20 << 20)}),
        "unpacks to more than 200 times its size",
    ),
    "zip bomb by size": (
        "a.zip",
        lambda: patched_size(zipped(), 2 << 30),
        "unpacks to more than 200 times its size",
    ),
    "zip that lies about sizes": ("a.zip", lambda: patched_size(zipped(), 5), "is damaged"),
    "zip of huge directory": ("a.zip", large_directory, "directory is too long"),
    "zip of many entries": (
        "a.zip",
        lambda: zipped({str(n): b"" for n in range(1001)}),
        "more than 1000 entries",
    ),
    "zip in a zip": ("a.zip", lambda: zipped({"a.zip": zipped()}), "holds no adapter_config.json"),
    "zip with a link": (
        "a.zip",
        lambda: zipped(FILES, (zip_entry("link", 0o120777), b"/etc/passwd")),
        "is a symbolic link",
    ),
    "zip whose weights are a link": (
        "a.zip",
        lambda: zipped({CONFIG: FILES[CONFIG]}, (zip_entry(WEIGHTS, 0o120777), b"/etc/passwd")),
        "is a symbolic link",
    ),
    "zip with a device": ("a.zip", lambda: zipped(FILES, (zip_entry("d", 0o020666), b"")), "is a device"),
    "zip with a pipe": ("a.zip", lambda: zipped(FILES, (zip_entry("d", 0o010666), b"")), "is a pipe"),
    "zip upwards": ("a.zip", lambda: zipped(FILES, (zip_entry("../../x"), b"x")), "leads out of its folder"),
    "zip absolute": ("a.zip", lambda: zipped(FILES, (zip_entry("/etc/cron.d/x"), b"x")), "is absolute"),
    "zip of a drive": ("a.zip", lambda: zipped(FILES, (zip_entry("C:x"), b"x")), "is absolute"),
    "zip with backslashes": ("a.zip", lambda: zipped(FILES, (zip_entry("..\\x"), b"x")), "holds a backslash"),
    "zip with NUL": ("a.zip", lambda: zipped(FILES, (zip_entry("x\0.txt"), b"x")), "control or invisible"),
    "zip with right-to-left": (
        "a.zip",
        lambda: zipped(FILES, (zip_entry("a\u202etxt"), b"")),
        "control or invisible",
    ),
    "zip twice": ("a.zip", lambda: zipped(FILES, (zip_entry(CONFIG), b"{}")), "is in the archive twice"),
    "zip twice by case": (
        "a.zip",
        lambda: zipped(FILES, (zip_entry(CONFIG.upper()), b"{}")),
        "archive twice",
    ),
    "zip twice by width": (
        "a.zip",
        lambda: zipped(FILES, (zip_entry("ａ" + CONFIG[1:]), b"{}")),
        "archive twice",
    ),
    "zip twice by accent": ("a.zip", lambda: zipped({"é": b"", "e\u0301": b""}), "archive twice"),
    "zip twice by dot": ("a.zip", lambda: zipped(FILES, (zip_entry("./" + CONFIG), b"{}")), "archive twice"),
    "zip of two adapters": ("a.zip", lambda: zipped({**FILES, **NESTED}), "in two folders"),
    "zip across folders": (
        "a.zip",
        lambda: zipped({"a/" + CONFIG: b"{}", "b/" + WEIGHTS: b"x"}),
        "lie in different folders",
    ),
    "zip of checkpoints alone": (
        "a.zip",
        lambda: zipped({f"out/{name}": data for name, data in CHECKPOINTS.items()}),
        r"2 checkpoints \(checkpoint-500, checkpoint-1000\) and no final adapter: choose one",
    ),
    "tar of checkpoints alone": ("a.tgz", lambda: tarred(CHECKPOINTS), "choose one checkpoint"),
    "tar of checkpoints and half an adapter": (
        "a.tar.gz",
        lambda: tarred({**CHECKPOINTS, CONFIG: FILES[CONFIG]}),
        "holds no adapter_model.safetensors",
    ),
    "zip of two adapters and checkpoints": (
        "a.zip",
        lambda: zipped({**CHECKPOINTS, **FILES, **NESTED}),
        "in two folders",
    ),
    "zip of pickled weights": (
        "a.zip",
        lambda: zipped({CONFIG: FILES[CONFIG], "adapter_model.BIN": b""}),
        "graftwork convert",
    ),
    "zip of shards": (
        "a.zip",
        lambda: zipped({CONFIG: FILES[CONFIG], f"{WEIGHTS}.index.json": b"{}"}),
        "saved in shards",
    ),
    "zip of mlx-lm's": (
        "a.zip",
        lambda: zipped({CONFIG: FILES[CONFIG], "adapters.safetensors": b""}),
        "saved by mlx-lm",
    ),
    "zip of a large config": (
        "a.zip",
        lambda: zipped({**FILES, CONFIG: bytes(2 << 20)}),
        "larger than the accepted 1048576",
    ),
    "zip cut off": ("a.zip", lambda: zipped()[:-40], "is damaged"),
    "large zip cut off": ("a.zip", lambda: large_damaged()[:-30], "is damaged"),
    "large zip with a hole": ("a.zip", large_with_hole, "is damaged"),
    "large zip with a changed byte": ("a.zip", large_damaged, "is damaged"),
    "no zip": ("a.zip", lambda: b"PK" + bytes(100), "is damaged"),
    "tar bomb": ("a.tar.gz", tar_bomb, "unpacks to more than 200 times its size"),
    "tar with a link": (
        "a.tar.gz",
        lambda: tarred(FILES, (tar_entry("l", tarfile.SYMTYPE, "/etc/passwd"), b"")),
        "a symbolic link",
    ),
    "tar with a hard link": (
        "a.tgz",
        lambda: tarred(FILES, (tar_entry("l", tarfile.LNKTYPE, "/etc/passwd"), b"")),
        "is a hard link",
    ),
    "tar with a device": (
        "a.tar.gz",
        lambda: tarred(FILES, (tar_entry("l", tarfile.CHRTYPE), b"")),
        "is a device",
    ),
    "tar with a block device": (
        "a.tgz",
        lambda: tarred(FILES, (tar_entry("l", tarfile.BLKTYPE), b"")),
        "a device",
    ),
    "tar with a pipe": (
        "a.tar.gz",
        lambda: tarred(FILES, (tar_entry("l", tarfile.FIFOTYPE), b"")),
        "is a pipe",
    ),
    "tar with a sparse file": ("a.tgz", sparse_map, "sparse file"),
    "tar with a long header": ("a.tar.gz", long_header, "has a header of 104857600 bytes"),
    "tar upwards": (
        "a.tar.gz",
        lambda: tarred(FILES, (tar_entry("a/../../x"), b"x")),
        "leads out of its folder",
    ),
    "tar absolute": ("a.tar.gz", lambda: tarred(FILES, (tar_entry("/etc/x"), b"x")), "is absolute"),
    "tar twice": ("a.tar.gz", lambda: tarred(FILES, (tar_entry(CONFIG), b"{}")), "is in the archive twice"),
    "tar twice by case": ("a.tgz", lambda: tarred(FILES, (tar_entry(WEIGHTS.title()), b"")), "archive twice"),
    "tar of pickled weights": (
        "a.tar.gz",
        lambda: tarred({CONFIG: FILES[CONFIG], "adapter_model.bin": b""}),
        "graftwork convert",
    ),
    "tar of a large config": (
        "a.tgz",
        lambda: tarred({**FILES, CONFIG: bytes(2 << 20)}),
        "larger than the accepted 1048576",
    ),
    "tar cut off": ("a.tar.gz", lambda: tarred()[:-30], "is damaged"),
    "gzip of nothing": ("a.tar.gz", lambda: gzip.compress(b"") * 200_000, "larger than its contents"),
    "no tar": ("a.tar.gz", lambda: gzip.compress(b"x" * 5000), "is damaged"),
    "no gzip": ("a.tar.gz", lambda: tar(), "is damaged"),
}


def files_left(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()] if folder.exists() else []


@pytest.fixture
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files."""
    folder = tmp_path / "spool"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.mark.parametrize("case", HOSTILE)
@pytest.mark.costly("one of the archives is large")
def test_uploaded_it_is_refused_at_once(
    tenant: Tenant, base_model: BaseModel, tmp_path: Path, spool: Path, case: str
) -> None:
    name, make, reason = HOSTILE[case]
    data = io.BytesIO(make())
    tracemalloc.start()
    try:
        with pytest.raises(InvalidInputError, match=reason) as refusal:
            adapter_register(tenant=tenant, name="pirate", base_model=base_model, files={name: data})
        assert tracemalloc.get_traced_memory()[1] < 24 << 20
    finally:
        tracemalloc.stop()
    assert refusal.value.field == "files"
    assert files_left(tmp_path / "artifacts") + files_left(spool) == []
    assert not Adapter.objects.exists()


@pytest.mark.parametrize(
    "case", [case for case in HOSTILE if case not in ("tar bomb", "zip of huge directory")]
)
def test_imported_it_is_refused_by_the_validation(
    tenant: Tenant, base_model: BaseModel, graftwork: Path, tmp_path: Path, spool: Path, case: str
) -> None:
    name, make, reason = HOSTILE[case]
    (graftwork / name).write_bytes(make())
    uri = (graftwork / name).as_uri()
    version = adapter_register(tenant=tenant, name="pirate", base_model=base_model, uri=uri)
    version_validate(version_id=version.pk)
    version.refresh_from_db()
    assert version.status == "refused"
    assert re.search(reason, version.reason)
    assert version.staging == ""
    assert files_left(tmp_path / "artifacts") + files_left(spool) == []


PACKED: list[tuple[str, Callable[[], bytes]]] = [
    ("a.zip", zipped),
    ("a.zip", lambda: zipped(NESTED)),
    (
        "A.ZIP",
        lambda: zipped(
            {**FILES, "README.md": b"x", "über/模型 说明.md": b"x", "handler.py": b"raise SystemExit"}
        ),
    ),
    ("a.zip", lambda: zipped(FILES, (zip_entry("folder/", 0o040755), b""))),
    ("a.tar.gz", tarred),
    ("a.tgz", lambda: tarred(NESTED, (tar_entry("out", tarfile.DIRTYPE), b""))),
    ("a.zip", lambda: zipped({**FILES, **TRAINER_FILES})),
    ("a.tgz", lambda: tarred({**TRAINER_FILES, **FILES})),
    ("a.zip", lambda: zipped({**CHECKPOINTS, **FILES})),
    ("a.tgz", lambda: tarred({**CHECKPOINTS, **FILES})),
    ("a.tar.gz", lambda: tarred({**NESTED, **{f"out/pirate/{name}": b"" for name in CHECKPOINTS}})),
    ("a.zip", lambda: zipped({f"out/checkpoint-500/{name}": data for name, data in FILES.items()})),
    ("a.tgz", lambda: tarred({f"checkpoint-500/{name}": data for name, data in FILES.items()})),
    ("a.tar.gz", lambda: tarred({**FILES, "n" * 150 + "/README.md": b"x"})),
]


@pytest.mark.parametrize("how", ["upload", "import"])
@pytest.mark.parametrize("number", range(len(PACKED)))
def test_a_packed_adapter_becomes_ready(
    tenant: Tenant, base_model: BaseModel, graftwork: Path, tmp_path: Path, spool: Path, how: str, number: int
) -> None:
    name, make = PACKED[number]
    data = make()
    if how == "upload":
        version = adapter_register(
            tenant=tenant, name="pirate", base_model=base_model, files={name: io.BytesIO(data)}
        )
    else:
        (graftwork / name).write_bytes(data)
        uri = (graftwork / name).as_uri()
        version = adapter_register(tenant=tenant, name="pirate", base_model=base_model, uri=uri)
        assert version.source == uri
    version_validate(version_id=version.pk)
    version = AdapterVersion.objects.get(pk=version.pk)
    assert (version.status, version.reason) == ("ready", "")
    stored = files_left(tmp_path / "artifacts") + files_left(spool)
    assert {path.name: path.read_bytes() for path in stored} == FILES


@pytest.mark.parametrize(("name", "pack"), [("a.zip", zipped), ("a.tgz", tarred)])
def test_checkpoints_beside_an_adapter_are_left_out_unread(name: str, pack: Callable[..., bytes]) -> None:
    """Of a .tar.gz, which is read once, the first checkpoint may come before the adapter."""
    read: list[tuple[str, bytes]] = []

    def put(file: str, stream: ByteStream) -> None:
        read.append((file, stream.read()))

    unpack(name, io.BytesIO(pack({**FILES, **CHECKPOINTS})), put)
    assert sorted(read) == sorted(FILES.items())
    read.clear()
    unpack(name, io.BytesIO(pack({**CHECKPOINTS, **FILES, "README.md": b"# Bot"})), put)
    assert read[-3:] == [*sorted(FILES.items()), ("README.md", b"# Bot")]
    assert len(read) == (3 if name == "a.zip" else 5)
