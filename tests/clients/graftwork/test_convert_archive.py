"""Archives and folders of several adapters: pickles and shards become safetensors, all else is kept."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from graftwork.convert_archive import convert_all
from graftwork.errors import ConfigurationError
from safetensors.torch import load, save

from tests.clients.graftwork.test_convert import CONFIG, NAME, Command, sharded

WEIGHTS = "adapter_model.safetensors"
HELD = {NAME.format(part): torch.randn(4, 4, dtype=torch.bfloat16) for part in "AB"}


def tree(path: Path) -> Path:
    """The customer's archive: two pickled adapters, a converted one, one in shards, and a pickled base."""
    for name in ("es", "fr", "ready"):
        (path / "adapters" / name).mkdir(parents=True)
        (path / "adapters" / name / "adapter_config.json").write_text(json.dumps(CONFIG))
    for name in ("es", "fr"):
        torch.save(HELD, path / "adapters" / name / "adapter_model.bin")
    (path / "adapters" / "ready" / WEIGHTS).write_bytes(save(HELD))
    (path / "adapters" / "es" / "README.md").write_text("es")
    sharded(path / "adapters" / "ru", HELD)
    (path / "model").mkdir()
    torch.save(HELD, path / "model" / "pytorch_model.bin")
    (path / "model" / "config.json").write_text("{}")
    return path


def tarred(folder: Path, path: Path) -> Path:
    with tarfile.open(path, "w" if path.suffix == ".tar" else "w:gz") as archive:
        archive.add(folder, ".")
    return path


def zipped(folder: Path, path: Path) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for item in sorted(folder.rglob("*")):
            archive.write(item, item.relative_to(folder))
    return path


def content(path: Path) -> dict[str, bytes]:
    """Every file of a folder or an archive."""
    if path.is_dir():
        files = [item for item in path.rglob("*") if item.is_file()]
        return {item.relative_to(path).as_posix(): item.read_bytes() for item in files}
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as packed:
            assert packed.testzip() is None
            return {item.filename: packed.read(item) for item in packed.infolist() if not item.is_dir()}
    with tarfile.open(path) as archive:
        members = [item for item in archive.getmembers() if item.isfile()]
        streams = {item.name.removeprefix("./"): archive.extractfile(item) for item in members}
        return {name: stream.read() for name, stream in streams.items() if stream is not None}


KINDS: dict[str, Callable[[Path, Path], Path]] = {
    "adapters.tar.gz": tarred,
    "adapters.tgz": tarred,
    "adapters.tar": tarred,
    "adapters.zip": zipped,
    "adapters": lambda folder, path: Path(shutil.copytree(folder, path)),
}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.costly("loads PyTorch in two processes")
def test_every_adapter_is_converted_and_all_else_is_kept(name: str, tmp_path: Path) -> None:
    source = KINDS[name](tree(tmp_path / "tree"), tmp_path / name)
    target = tmp_path / "deep" / f"new-{name}"
    found = convert_all(source, target)
    assert [where.removeprefix("./") for where in found] == ["adapters/es", "adapters/fr", "adapters/ru"]
    before, after = content(source), content(target)
    made = {f"adapters/{adapter}/{WEIGHTS}" for adapter in ("es", "fr", "ru")}
    gone = {f"adapters/{adapter}/adapter_model.bin" for adapter in ("es", "fr")}
    gone |= {file for file in before if file.startswith("adapters/ru/adapter_model")}
    assert set(after) == (set(before) - gone) | made
    assert {file: after[file] for file in after if file not in made} == {
        file: before[file] for file in before if file not in gone
    }
    for file in made:
        tensors = load(after[file])
        assert tensors.keys() == HELD.keys()
        assert all(torch.equal(tensors[key], HELD[key]) for key in HELD)
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("name", ["adapters.tar.gz", "adapters.zip"])
@pytest.mark.costly("loads PyTorch in a process")
def test_a_pickle_that_would_run_code_is_refused_by_its_adapter(name: str, tmp_path: Path) -> None:
    marker, folder = tmp_path / "marker", tree(tmp_path / "tree")
    torch.save({"a": Command(f"touch {marker}")}, folder / "adapters" / "es" / "adapter_model.bin")
    source = KINDS[name](folder, tmp_path / name)
    with pytest.raises(ConfigurationError, match=r"adapter (\./)?adapters/es: .* holds objects other than"):
        convert_all(source, tmp_path / f"new-{name}")
    assert not marker.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["tree", name])


@pytest.mark.costly("loads PyTorch in a process")
def test_a_link_in_the_place_of_the_weights_is_not_followed(tmp_path: Path) -> None:
    folder, outside = tmp_path / "source" / "es", tmp_path / "outside"
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps(CONFIG))
    torch.save(HELD, folder / "adapter_model.bin")
    (folder / WEIGHTS).symlink_to(outside)
    assert convert_all(tmp_path / "source", tmp_path / "new") == ["es"]
    assert not outside.exists()
    assert (tmp_path / "new" / "es" / WEIGHTS).read_bytes()


@pytest.mark.costly("loads PyTorch in a process")
def test_links_are_kept_as_links_and_odd_names_lead_nowhere(tmp_path: Path) -> None:
    source, target = tmp_path / "odd.tar.gz", tmp_path / "new.tar.gz"
    pickled = io.BytesIO()
    torch.save(HELD, pickled)
    with tarfile.open(source, "w:gz") as archive:
        for name, data in (
            ("../outside/adapter_config.json", b"{}"),
            ("../outside/adapter_model.bin", pickled.getvalue()),
            ("/etc/absolute.txt", b"x"),
        ):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    assert convert_all(source, target) == ["../outside"]
    with tarfile.open(target) as archive:
        names = {member.name: member for member in archive.getmembers()}
    assert set(names) == {
        "../outside/adapter_config.json",
        f"../outside/{WEIGHTS}",
        "/etc/absolute.txt",
        "link",
    }
    assert (names["link"].issym(), names["link"].linkname) == (True, "/etc/passwd")
    assert not (tmp_path.parent / "outside").exists()


def test_what_cannot_be_converted_is_said(tmp_path: Path) -> None:
    folder = tree(tmp_path / "tree")
    source = tarred(folder, tmp_path / "adapters.tar.gz")
    for place, target, reason in (
        (source, "new.zip", r"new\.zip must end in \.tar\.gz"),
        (source, "adapters.tar.gz", "already exists"),
        (folder / "model" / "config.json", "new", "is not a folder, .zip"),
        (tmp_path / "absent.zip", "new.zip", "cannot be read"),
        (folder / "model", "new", "nothing to convert"),
    ):
        with pytest.raises(ConfigurationError, match=reason):
            convert_all(place, tmp_path / target)
    (tmp_path / "torn.tar.gz").write_bytes(source.read_bytes()[:200])
    with pytest.raises(ConfigurationError, match="cannot be read"):
        convert_all(tmp_path / "torn.tar.gz", tmp_path / "new.tar.gz")
    assert {path.name for path in tmp_path.iterdir()} == {"tree", "adapters.tar.gz", "torn.tar.gz"}
