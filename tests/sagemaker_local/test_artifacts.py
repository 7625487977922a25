"""Archives from S3 that are unpacked on this host."""

from __future__ import annotations

import asyncio
import io
import tarfile
from pathlib import Path

import pytest

from sagemaker_local.copies.artifacts import Artifacts
from sagemaker_local.copies.errors import ArtifactError

pytestmark = [
    pytest.mark.parametrize("has_filter", [True, False]),
    pytest.mark.filterwarnings("ignore:.*filter:DeprecationWarning"),
]


class Bucket:
    """An S3 client that has one archive."""

    def __init__(self, *members: tarfile.TarInfo) -> None:
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as archive:
            for member in members:
                archive.addfile(member, io.BytesIO(bytes(member.size)))
        self._content = packed.getvalue()

    def download_file(self, bucket: str, key: str, path: str) -> None:
        assert (bucket, key) == ("models", "tiny.tar.gz")
        Path(path).write_bytes(self._content)


def member(name: str, **fields: object) -> tarfile.TarInfo:
    """A file of four bytes, unless `fields` say otherwise."""
    found = tarfile.TarInfo(name)
    found.size = 4
    for field, value in fields.items():
        setattr(found, field, value)
    return found


@pytest.fixture(autouse=True)
def python(has_filter: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current Python, or one without tarfile's filters, as Python 3.11.2 of Debian 12."""
    if not has_filter:
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
    elif not hasattr(tarfile, "data_filter"):
        pytest.skip("this Python has no filter")


def fetch(folder: Path, *members: tarfile.TarInfo) -> Path:
    return asyncio.run(Artifacts(folder, lambda: Bucket(*members)).fetch("s3://models/tiny.tar.gz"))


def test_an_archives_files_lie_in_its_folder(tmp_path: Path) -> None:
    told = fetch(
        tmp_path,
        member("adapters", type=tarfile.DIRTYPE, size=0, mode=0o700),
        member("adapters/bot/adapter_config.json", mode=0o4777),
        member("./config.json"),
    )
    files = sorted(path.relative_to(told).as_posix() for path in told.rglob("*") if path.is_file())
    assert files == ["adapters/bot/adapter_config.json", "config.json"]
    assert (told / "adapters/bot/adapter_config.json").stat().st_mode & 0o7022 == 0


@pytest.mark.parametrize(
    "bad",
    [
        member("../outside"),
        member("device", type=tarfile.CHRTYPE, size=0),
        member("link", type=tarfile.SYMTYPE, size=0, linkname="../../outside"),
    ],
    ids=lambda item: item.name,
)
def test_what_leads_out_of_it_is_refused_and_leaves_nothing(bad: tarfile.TarInfo, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError):
        fetch(tmp_path / "work", member("config.json"), bad)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
