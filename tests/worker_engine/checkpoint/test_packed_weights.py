"""Weights packed for the CPU's kernels: every copy maps them, and never those of other files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from kernels import native
from worker_engine.checkpoint.folder import weight_files
from worker_engine.checkpoint.packed_weights import content_name
from worker_engine.errors import CheckpointError
from worker_engine.models import load_config, load_model, pack_weights
from worker_engine.models.decoder import Decoder

pytestmark = pytest.mark.skipif(native.LIBRARY is None, reason="no native loops on this machine")


@pytest.fixture
def model(tiny_model: Path, tmp_path: Path) -> Path:
    return shutil.copytree(tiny_model, tmp_path / "model")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def load(model: Path, cache: Path | None, dtype: torch.dtype = torch.bfloat16) -> Decoder:
    config, device = load_config(model), torch.device("cpu")
    return load_model(model, config, max_model_len=64, dtype=dtype, device=device, packed_in=cache)


def blocks(decoder: Decoder) -> Sequence[torch.Tensor]:
    linears = [linear for layer in decoder.linears for linear in layer.values()]
    matrices = [linear.packed.matrix for linear in (*linears, decoder._head)]
    packed = [matrix.codes for matrix in matrices if matrix is not None]
    assert len(packed) == 4 * 3 + 1
    return packed


def mapped_from(decoder: Decoder, cache: Path) -> bool:
    """Return True if `/proc/self/maps` has every weight in a mapping of a file in `cache`."""
    spans = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split()
        if len(fields) > 5 and fields[5].startswith(str(cache)):
            spans.append(tuple(int(part, 16) for part in fields[0].split("-")))
    return all(
        any(start <= tensor.data_ptr() and tensor.data_ptr() + tensor.nbytes <= end for start, end in spans)
        for tensor in blocks(decoder)
    )


def change(model: Path) -> None:
    """Other weights of the same names, shapes and size."""
    path = model / "model.safetensors"
    save_file(
        {name: -tensor for name, tensor in load_file(path).items()}, path.with_name("new"), {"format": "pt"}
    )
    os.replace(path.with_name("new"), path)


def test_the_first_load_writes_and_every_load_maps(model: Path, cache: Path) -> None:
    own = load(model, None)
    assert not cache.exists()
    first = load(model, cache)
    (file,) = cache.iterdir()
    stamp = file.stat()
    second = load(model, cache)
    assert file.stat().st_mtime_ns == stamp.st_mtime_ns, "written again"
    assert stamp.st_mode & 0o077 == 0, "weights that others may change"
    for decoder in (first, second):
        assert mapped_from(decoder, cache)
        assert all(torch.equal(a, b) for a, b in zip(blocks(own), blocks(decoder), strict=True))
        assert all(tensor.data_ptr() % 64 == 0 for tensor in blocks(decoder)[:1]), "loads would cross lines"
    assert not mapped_from(own, cache)


def test_changed_files_are_packed_anew_and_the_old_ones_forgotten(model: Path, cache: Path) -> None:
    before = [tensor.clone() for tensor in blocks(load(model, cache))]
    (old,) = cache.iterdir()
    change(model)
    after = load(model, cache)
    assert [path.name for path in cache.iterdir()] != [old.name]
    assert len(list(cache.iterdir())) == 1
    assert mapped_from(after, cache)
    assert all(torch.equal(a, -b) for a, b in zip(before, blocks(after), strict=True))


def test_two_models_share_a_folder(model: Path, cache: Path, tmp_path: Path) -> None:
    other = shutil.copytree(model, tmp_path / "other")
    change(other)
    one, two = load(model, cache), load(other, cache)
    assert len(list(cache.iterdir())) == 2
    assert mapped_from(one, cache)
    assert mapped_from(two, cache)
    assert not torch.equal(blocks(one)[0], blocks(two)[0])


@pytest.mark.parametrize("damage", [b"", b"\xff" * 100, b"\x10" + b"\0" * 7 + b"{}"])
def test_a_damaged_file_is_replaced(model: Path, cache: Path, damage: bytes) -> None:
    load(model, cache)
    (file,) = cache.iterdir()
    file.write_bytes(damage)
    assert mapped_from(load(model, cache), cache)
    assert file.stat().st_size > 1000


def test_blocks_of_another_shape_are_not_taken(model: Path, cache: Path) -> None:
    own = load(model, cache)
    (file,) = cache.iterdir()
    held = {name: tensor.clone() for name, tensor in load_file(file).items()}
    save_file({name: tensor[1:] for name, tensor in held.items()}, file)
    assert all(torch.equal(a, b) for a, b in zip(blocks(own), blocks(load(model, cache)), strict=True))


def test_a_checkpoint_is_checked_as_ever(model: Path, cache: Path) -> None:
    """Weights come from the cache; the checkpoint is still checked against its config."""
    load(model, cache)
    path = model / "model.safetensors"
    tensors = load_file(path)
    save_file(tensors | {"model.layers.9.mlp.up_proj.weight": torch.zeros(2, 2)}, path, {"format": "pt"})
    with pytest.raises(CheckpointError, match="no place in the model"):
        load(model, cache)
    name = "model.layers.1.mlp.up_proj.weight"
    save_file(tensors | {name: tensors[name][1:]}, path, {"format": "pt"})
    with pytest.raises(CheckpointError, match="has shape"):
        load(model, cache)


def test_without_room_or_right_weights_stay_ones_own(
    model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    cache.write_text("no folder")
    assert not mapped_from(load(model, cache), cache)
    assert "not shared with other copies" in caplog.text
    cache.unlink()
    usage = shutil.disk_usage(model)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    assert not mapped_from(load(model, cache), cache)
    assert not list(cache.iterdir())
    assert "too little room" in caplog.text


def test_only_what_the_native_loops_read_is_kept(model: Path, cache: Path) -> None:
    load(model, cache, torch.float32)
    assert not cache.exists()


def test_weights_packed_elsewhere_are_taken_by_their_content(
    model: Path, cache: Path, tmp_path: Path
) -> None:
    """On another host the checkpoint has another path and other times."""
    carried = pack_weights(model, cache)
    assert {path.name for path in cache.iterdir()} == {carried.name}
    elsewhere = shutil.copytree(model, tmp_path / "elsewhere", copy_function=shutil.copyfile)
    decoder = load(elsewhere, cache)
    assert mapped_from(decoder, cache)
    assert len({path.stat().st_ino for path in cache.iterdir()}) == 1, "packed once more, not linked"
    assert all(torch.equal(a, b) for a, b in zip(blocks(load(model, None)), blocks(decoder), strict=True))


def test_weights_packed_elsewhere_are_of_no_other_checkpoint(model: Path, cache: Path) -> None:
    """Equal names, shapes and sizes; one number differs."""
    carried = pack_weights(model, cache)
    path = model / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    decoder = load(model, cache)
    assert len({path.stat().st_ino for path in cache.iterdir()}) == 2
    assert all(torch.equal(a, b) for a, b in zip(blocks(load(model, None)), blocks(decoder), strict=True))
    assert content_name(weight_files(model)) != carried.name


def test_a_read_only_folder_of_packed_weights_is_mapped_as_it_is(model: Path, cache: Path) -> None:
    pack_weights(model, cache)
    cache.chmod(0o500)
    try:
        assert mapped_from(load(model, cache), cache)
    finally:
        cache.chmod(0o700)
