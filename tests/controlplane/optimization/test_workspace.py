"""Copies of checkpoints on a host, and what is held to them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import pytest

from controlplane.catalog.models import BaseModel
from controlplane.errors import InvalidInputError, UnavailableError
from controlplane.optimization import workspace
from controlplane.optimization.claims import Claim
from controlplane.optimization.orders import JobOrder
from controlplane.optimization.workspace import FileLock, checkpoint_folder, host_lock, work_folder
from tests.controlplane.optimization.conftest import Ask

pytestmark = pytest.mark.django_db


@dataclasses.dataclass
class Bucket:
    """A bucket's checkpoint, in memory."""

    files: dict[str, bytes]
    uri: str = "s3://models/small/"

    def sizes(self) -> dict[str, int]:
        return {name: len(data) for name, data in self.files.items()}

    @contextmanager
    def open(self, name: str) -> Iterator[BytesIO]:
        yield BytesIO(self.files[name])


@pytest.fixture
def bucket(tiny_base: BaseModel, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """The small base, as if it lay in a bucket."""
    source = Path(tiny_base.source)
    made = Bucket({item.name: (source / item.name).read_bytes() for item in tiny_base.files.all()})
    tiny_base.source = made.uri
    tiny_base.save(update_fields=["source"])
    monkeypatch.setattr(workspace, "checkpoint_source", lambda text: made)
    return made


def copied(base: BaseModel, heartbeat: Callable[[], None] = lambda: None) -> Path:
    return checkpoint_folder(base, base.source, base.checkpoint_sha256, heartbeat=heartbeat)


def test_a_copy_is_held_to_its_digests(tiny_base: BaseModel, bucket: Bucket) -> None:
    folder = copied(tiny_base)
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"} == bucket.files
    (folder / "model-1.safetensors").unlink()
    data = bytearray(bucket.files["model-1.safetensors"])
    data[-1] ^= 1
    bucket.files["model-1.safetensors"] = bytes(data)
    with pytest.raises(InvalidInputError, match=r"model-1\.safetensors is not what its digest was taken of"):
        copied(tiny_base)
    assert not (folder / "model-1.safetensors").exists()
    assert not list(folder.glob(".*.part"))


def test_two_works_do_not_copy_the_same_at_once(tiny_base: BaseModel, bucket: Bucket) -> None:
    def another() -> None:
        with pytest.raises(UnavailableError, match="another job is copying"):
            copied(tiny_base)

    folder = copied(tiny_base, heartbeat=another)
    assert (folder / "model-1.safetensors").read_bytes() == bucket.files["model-1.safetensors"]


def test_hosts_that_share_a_folder_do_not_share_a_cpu(
    optimization_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = host_lock("cpu")
    with pytest.raises(workspace.HeldError):
        host_lock("cpu")
    monkeypatch.setattr(workspace, "_host", lambda: "another")
    host_lock("cpu").close()
    mine.close()


def test_what_was_made_of_other_bytes_than_the_bases_is_not_kept(tiny_base: BaseModel, ask: Ask) -> None:
    """A file changed in place, its size the same, between the digests and the job."""
    job = ask(tiny_base)
    folder = work_folder(job)
    folder.mkdir(parents=True)
    order = JobOrder(job)
    order.prepare(folder, lambda: None)
    (folder / "output").mkdir()
    (folder / "output" / "lineage.json").write_text(
        json.dumps({"source": {"digest": "ab" * 32}, "files": {}})
    )
    claim = Claim.take(kind="job", pk=job.pk)
    assert claim is not None
    with pytest.raises(InvalidInputError, match="was changed since its digests were taken"):
        order.keep(claim, folder, {}, lambda: None)


def test_a_lock_is_one(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "lock")
    with pytest.raises(workspace.HeldError):
        FileLock(tmp_path / "lock")
    lock.close()
    FileLock(tmp_path / "lock").close()
