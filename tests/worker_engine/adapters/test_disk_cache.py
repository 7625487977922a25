"""The adapters' folder on disk: bounded, the one read longest ago leaves, and nothing of a crash stays."""

from __future__ import annotations

import fcntl
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from contracts.adapters.reference import ADAPTER_FILES
from worker_engine.adapters.disk_cache import AdapterDiskCache, files_digest


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


@pytest.mark.costly("fills a cache")
def test_a_full_cache_is_walked_once_in_many_stores(tmp_path: Path) -> None:
    walks = held = 0

    class Counted(AdapterDiskCache):
        def _held(self) -> Iterator[tuple[float, int, str]]:
            nonlocal walks
            walks += 1
            return super()._held()

    cache = Counted(tmp_path, max_bytes=256 * 100)
    for number in range(512):
        cache.store(f"{number:064}", files(number % 256, 100))
        held = sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file())
        assert held <= 256 * 100
    assert held >= 250 * 100
    assert walks <= 512 / 4 + 2


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


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    cache = AdapterDiskCache(tmp_path / "file" / "cache", max_bytes=3000)
    cache.store("0" * 64, files(1))
    assert cache.num_failed == 1
    assert "cannot keep an adapter's files in" in caplog.text


def test_a_full_disk_keeps_no_half_adapter(tmp_path: Path) -> None:
    """A limit on a file's size fails the write where a full disk would, and Python ignores its signal."""
    cache = AdapterDiskCache(tmp_path, max_bytes=1 << 20)
    small = store(cache, tmp_path, 1, age=0)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        cache.store("f" * 64, files(2, 9000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [folder.name for folder in tmp_path.iterdir()] == [small]
    assert cache.num_failed == 1
    assert cache.read(small) == files(1)


def test_of_two_that_store_the_same_one_is_kept(tmp_path: Path) -> None:
    cache = AdapterDiskCache(tmp_path, max_bytes=3000)
    sha256 = store(cache, tmp_path, 1, age=0)
    cache.store(sha256, files(1))
    assert [folder.name for folder in tmp_path.iterdir()] == [sha256]
    assert cache.num_failed == 0
