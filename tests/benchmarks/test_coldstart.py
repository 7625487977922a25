"""The benchmark of starts on a tiny model: every kind of start, with the real processes."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

import pytest

from benchmarks import coldstart
from benchmarks.figure import Figure
from worker_engine.startup import PHASES

pytestmark = pytest.mark.slow


def test_every_start_is_told_by_phases(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dropped: list[Path] = []
    monkeypatch.setattr(coldstart, "MODEL", tiny_model)
    monkeypatch.setattr(coldstart, "ROUNDS", 1)
    monkeypatch.setattr(coldstart, "WARM_STARTS", 1)
    monkeypatch.setattr(coldstart, "drop_page_cache", dropped.append)
    figures: dict[str, Figure] = {figure.metric: figure for figure in coldstart.run()}
    for kind in coldstart.KINDS:
        phases = [figures[f"{kind}_{phase}_s"].value for phase in PHASES]
        whole = figures[f"{kind}_s"].value
        assert 0 < sum(phases) < whole, "a phase counts what is not of this start"
        assert 0 < figures[f"{kind}_first_token_s"].value < whole
    assert figures["warm_imports_s"].value < figures["cold_imports_s"].value / 5
    assert figures["warm_s"].baseline == figures["cold_s"].value
    assert (figures["warm_s"].goal, figures["another_copy_s"].baseline) == (0.44, 1.5)
    assert len(dropped) == 2
    assert "cold_prediction_error" not in figures, "one round predicts nothing"
    alone = figures["copy_pss_mib"].baseline
    assert alone is not None
    assert 10 < figures["copy_pss_mib"].value < alone, "two copies share what they map"


def test_rounds_are_predicted_from_those_before_them_alone() -> None:
    """Predict the worker's phases and the remaining time, from the fourth round on."""
    starts = [coldstart.Start(3.0 + number / 10, {"imports": 2.0, "weights": 0.5}) for number in range(5)]
    (figure,) = coldstart._predicted({"cold": starts})
    assert figure.value == pytest.approx((0.2 / 3.3 + 0.25 / 3.4) / 2, abs=1e-3)
    assert (figure.baseline, figure.goal, figure.met) == (0.15, 1.0, True)
    assert "the worst 0.074; rounds in s: 3.00 3.10 3.20 3.30 3.40" in figure.note


def test_what_is_dropped_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured by the process's waits for a disk."""
    path = tmp_path / "file"
    path.write_bytes(os.urandom(1 << 22))
    monkeypatch.setattr(coldstart, "MODEL", tmp_path)
    monkeypatch.setattr(coldstart, "ROOT", tmp_path)
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path / name))

    def read_from_disk() -> int:
        before = _read_bytes()
        path.read_bytes()
        return _read_bytes() - before

    assert read_from_disk() == 0
    coldstart.drop_page_cache(tmp_path)
    assert read_from_disk() >= 1 << 22


def _read_bytes() -> int:
    """Bytes that this process has read from disks."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))
