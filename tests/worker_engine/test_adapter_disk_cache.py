"""The adapters' folder on disk: bounded, the one read longest ago leaves, and nothing of a crash stays."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from worker_engine.adapters.disk_cache import AdapterDiskCache, files_digest
from worker_engine.errors import AdapterUnavailable
from worker_engine.protocol import ADAPTER_FILES


def files(number: int, size: int = 1000) -> dict[str, bytes]:
    return dict(zip(ADAPTER_FILES, (b"{}", bytes([number]) * (size - 2)), strict=True))


def store(cache: AdapterDiskCache, folder: Path, number: int, *, age: float) -> str:
    sha256 = files_digest(files(number))
    cache.store(sha256, files(number))
    if sha256 in cache:
        os.utime(folder / sha256, (1e9 - age, 1e9 - age))
    return sha256


def test_what_was_read_longest_ago_leaves(tmp_path: Path) -> None:
    cache = AdapterDiskCache(tmp_path, max_bytes=3000)
    first, second, third = (store(cache, tmp_path, number, age=10 - number) for number in range(3))
    assert cache.read(first) == files(0)
    fourth = store(cache, tmp_path, 3, age=0)
    assert [sha256 in cache for sha256 in (first, second, third, fourth)] == [True, False, True, True]
    assert sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file()) <= 3000


def test_one_larger_than_all_is_not_kept(tmp_path: Path) -> None:
    cache = AdapterDiskCache(tmp_path, max_bytes=1500)
    small = store(cache, tmp_path, 1, age=0)
    cache.store("f" * 64, files(2, 1501))
    assert small in cache
    assert "f" * 64 not in cache


def test_a_rotten_copy_is_no_hit_and_goes(tmp_path: Path) -> None:
    cache = AdapterDiskCache(tmp_path, max_bytes=3000)
    sha256 = store(cache, tmp_path, 1, age=0)
    (tmp_path / sha256 / ADAPTER_FILES[1]).write_bytes(b"rot")
    assert cache.read(sha256) is None
    assert sha256 not in cache
    assert cache.read("0" * 64) is None


def test_a_start_removes_what_a_crash_left_and_nothing_else(tmp_path: Path) -> None:
    dead, alive = tmp_path / ".part-dead", tmp_path / ".part-alive"
    for part in (dead, alive):
        part.mkdir()
        (part / ADAPTER_FILES[0]).write_bytes(b"{")
    kept = store(AdapterDiskCache(tmp_path / "elsewhere", max_bytes=10), tmp_path, 1, age=0)
    (tmp_path / kept).mkdir()
    descriptor = os.open(alive, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    AdapterDiskCache(tmp_path, max_bytes=3000)
    assert not dead.exists()
    assert alive.exists(), "another worker writes there"
    assert (tmp_path / kept).exists()
    os.close(descriptor)


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = AdapterDiskCache(tmp_path / "file" / "cache", max_bytes=3000)
    with pytest.raises(AdapterUnavailable, match="cannot write"):
        cache.store("0" * 64, files(1))
