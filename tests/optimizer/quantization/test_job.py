"""Quantization as a step of an optimization job: its process, its output, and what it says when it cannot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from contracts.recipes.progress import Code
from tests.optimizer.job_process import carry_out, write_order
from tests.optimizer.quantization.test_quantize import strayed, whole, written
from worker_engine.models import load_config

pytestmark = pytest.mark.costly("quantizes in a process")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("plain"))


def order(path: Path, source: Path, scheme: str, calibration: Path) -> Path:
    recipe = {"version": 1, "quantization": scheme}
    return write_order(path, {"source": str(source), "recipe": recipe, "calibration": str(calibration)})


@pytest.mark.costly("quantizes a model in a process")
def test_a_job_writes_what_the_worker_serves(plain: Path, tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    lines = [json.dumps({"text": f"{number} " + "abcdefghij klmnop " * 20}) for number in range(20)]
    data.write_text("\n".join(lines))
    spec = order(tmp_path / "order.json", plain, "awq_int4_g64", data)
    ended = carry_out("run", spec, tmp_path / "out")
    assert ended.status == 0, ended.stderr
    made = tmp_path / "out" / "checkpoint"
    assert load_config(made).quantization is not None
    assert strayed(made, plain) < 0.6 * float(whole(plain).std())
    assert [path.name for path in (tmp_path / "out").iterdir() if "quantizing" in path.name] == []


def test_too_few_tokens_are_told_as_bad_data(plain: Path, tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text('{"text": "a few bytes"}\n' * 16)
    spec = order(tmp_path / "order.json", plain, "awq_int4_g64", data)
    ended = carry_out("run", spec, tmp_path / "out")
    assert ended.last["code"] == Code.BAD_DATA
    assert "at least 1024 are needed" in ended.last["message"]
