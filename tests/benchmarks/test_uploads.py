"""The uploads' benchmark in small: every process, one cut, and a version that is ready."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.chaos.database import fresh_database
from benchmarks.uploads import files
from benchmarks.uploads.course import measured
from benchmarks.uploads.memory import PeakMemory
from benchmarks.uploads.plant import running

pytestmark = pytest.mark.slow


def test_an_upload_that_was_cut_off_becomes_a_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    base = files.write_checkpoint(tmp_path / "bases" / "one", layers=1)
    size = files.write_adapter(tmp_path / "one", layers=1)
    with fresh_database("", tmp_path) as database, running(tmp_path, database, bases={"one": base}) as plant:
        course, peaks = measured(plant, tmp_path / "one", "one", cuts=("client",))
        version = plant.get("/adapters/one-tune/versions/1")
    assert (version["status"], course.lost, course.runs) == ("ready", 0, 2)
    assert 0.5 <= course.cuts[0] < 1
    assert version["size_bytes"] == size + (tmp_path / "one" / "adapter_config.json").stat().st_size
    assert min(peaks.web, peaks.worker, peaks.client) > 20


def test_memory_that_was_given_back_still_counts() -> None:
    code = "a = bytearray(200 << 20); del a; print(1, flush=True); input()"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}])"
    process = subprocess.Popen([sys.executable, "-c", outer], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    with PeakMemory(lambda: process.pid) as peak:
        time.sleep(0.5)  # The peak is read at intervals; the memory was given back before the first.
    process.communicate(b"\n", timeout=30)
    assert 200 < peak.mib < 300
