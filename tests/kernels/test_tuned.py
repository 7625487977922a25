"""Tuned configurations: what a file may hold, which entry a batch takes, and the procedure that writes it."""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels import tuned
from kernels.attention.tile import AttentionTile
from kernels.attention.tuned_tiles import LEVELS as ATTENTION_LEVELS
from kernels.attention.tuning import TUNING as ATTENTION
from kernels.lora import LoraPair, Owners, concatenate
from kernels.lora.plan import Plan
from kernels.lora.rank_rows import RankRows
from kernels.lora.tile import FEW, SINGLE, Tile
from kernels.lora.tuned_tiles import LEVELS
from kernels.lora.tuning import TUNING as LORA
from kernels.tune import OPS
from kernels.tuning import Clock, Tuning, candidates

pytestmark = pytest.mark.costly("tunes kernels")

ROOT = Path(__file__).parent.parent.parent
CPU = torch.device("cpu")


def entry(
    rows: int, adapters: int, inner: int = 64, outer: int = 32, rank: int = 8, **config: Any
) -> dict[str, Any]:
    sizes = {"rows": 1 if rows == 1 else 16, "ranks": 16, "inner": 32, "outer": 32}
    return {
        "shape": dict(zip(LEVELS, (4, rows, adapters, inner, outer, rank), strict=True)),
        "config": sizes | config,
        "microseconds": 5.0,
        "default_microseconds": 6.0,
        "tried": 9,
    }


def content(*entries: dict[str, Any], **other: Any) -> dict[str, Any]:
    head = {
        "op": "lora",
        "gpu": "cpu",
        "measured_on": "cpu",
        "torch": "2",
        "triton": "3",
        "date": "2026-01-01",
    }
    return head | {"entries": list(entries)} | other


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(tuned.VARIABLE, str(tmp_path))
    return tmp_path


def load(folder: Path, values: object) -> tuned.Tuned[Tile] | None:
    text = values if isinstance(values, str) else json.dumps(values)
    (folder / tuned.file_name(tuned.gpu_name(CPU), "lora")).write_text(text)
    return tuned.load("lora", CPU, LEVELS, Tile.parse)


def table(ranks: list[int]) -> RankRows:
    pairs = [LoraPair(torch.zeros(rank, 64), torch.zeros(rank, 32)) for rank in ranks]
    weights = concatenate([pairs], [32], Owners())
    assert weights is not None
    return RankRows.stacked(weights)


def test_without_a_file_the_built_in_tiles_run_and_a_log_says_so(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "kernels.tuned"):
        for _ in range(2):
            assert tuned.load("lora", CPU, LEVELS, Tile.parse) is None
    assert [record.args for record in caplog.records] == [(folder / "cpu_lora.json",)]
    assert Plan.build([0], table([8])).parts[0].tile == SINGLE


def test_the_files_in_use_are_listed_and_a_missing_folder_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuned, "_loaded", set())
    load(folder, content())
    assert tuned.loaded_files() == (), "a file without entries"
    tuned._read.cache_clear()
    load(folder, content(entry(1, 8, splits=1)))
    assert tuned.loaded_files() == ("cpu_lora.json",)
    monkeypatch.setenv(tuned.VARIABLE, str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match=r"GRAFTWORK_TUNED_CONFIG_DIR: .*nowhere is not a folder; unset it"):
        tuned.folder()


def test_the_nearest_shape_by_ratio_level_by_level(folder: Path) -> None:
    found = load(
        folder,
        content(
            entry(1, 8, splits=1),
            entry(1, 64, rank=8, splits=2),
            entry(1, 64, rank=64, splits=4),
            entry(64, 8, splits=8),
        ),
    )
    assert found is not None

    def splits(*shape: int) -> int:
        return found.nearest(dict(zip(LEVELS, (4, *shape), strict=True))).config.splits

    assert splits(1, 8, 64, 32, 64) == 1  # active adapters outweigh the rank
    assert splits(1, 20, 64, 32, 8) == 1  # 20 is nearer to 8 than to 64, by ratio
    assert splits(1, 23, 64, 32, 8) == 2
    assert splits(2, 64, 64, 32, 60) == 4
    assert splits(1000, 64, 64, 32, 8) == 8


def test_a_plan_takes_the_tile_of_the_adapters_with_rows_in_the_batch(folder: Path) -> None:
    load(folder, content(entry(1, 2, splits=2), entry(1, 32, splits=4), entry(4, 2, splits=16)))
    rows = table([8] * 40)
    assert Plan.build([0, 1], rows).parts[0].tile.splits == 2
    assert Plan.build(list(range(40)), rows).parts[0].tile.splits == 4
    mixed = Plan.build([0, 1, 1, 1], rows)
    assert [part.tile.splits for part in mixed.parts] == [2, 16]


def test_a_kind_of_segment_or_weight_that_was_not_measured_keeps_the_built_in_tile(folder: Path) -> None:
    load(folder, content(entry(1, 2, splits=2)))
    assert Plan.build([0] * 3, table([8])).parts[0].tile.outer != 32
    half = [LoraPair(torch.zeros(8, 64).half(), torch.zeros(8, 32).half())]
    weights = concatenate([half], [32], Owners())
    assert weights is not None
    assert Plan.build([0], RankRows.stacked(weights)).parts[0].tile == SINGLE
    assert Plan.build([0, 0], RankRows.stacked(weights)).parts[0].tile == FEW


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("{", "not JSON"),
        ([], "list; expected an object"),
        ({"op": "lora"}, "date, entries, gpu, measured_on, torch, triton missing"),
        (content(speed=9), "unknown speed"),
        (content(op="attention"), "op is 'attention'; expected 'lora'"),
        (content(entries={}), "entries is dict; expected a list"),
        (content(entry(1, 2) | {"note": ""}), r"entries\[0\]: unknown note"),
        (content({name: value for name, value in entry(1, 2).items() if name != "tried"}), "tried missing"),
        (
            content(entry(1, 2), entry(1, 2) | {"shape": {"rank": 8}}),
            r"entries\[1\]: shape: active_adapters, ",
        ),
        (content(entry(1, 0)), r"entries\[0\]: shape: active_adapters is 0; expected a positive integer"),
        (
            content(entry(1, 2, block=9)),
            r"entries\[0\]: config: unknown block; expected some of blocks, depth",
        ),
        (content(entry(1, 2, ranks=48)), r"entries\[0\]: config: ranks is 48; expected a power of two"),
        (content(entry(1, 2, warps="4")), r"config: warps is '4'; expected a power of two"),
        (content(entry(1, 2, fused=1)), r"config: fused is 1; expected true or false"),
        (content(entry(8, 2, ranks=8)), r"config: rows, ranks, inner, outer and depth of .* at least 16"),
        (content(entry(1, 2) | {"config": {"rows": 1}}), "config: inner, outer, ranks missing"),
    ],
)
def test_a_malformed_file_is_named_with_its_key(folder: Path, values: object, message: str) -> None:
    with pytest.raises(ValueError, match=rf"cpu_lora\.json: .*{message}"):
        load(folder, values)


@pytest.mark.parametrize("op", ["lora", "attention"])
def test_a_gpu_refuses_what_was_not_measured_on_one(
    op: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H200")
    (folder / f"NVIDIA_H200_{op}.json").write_text(json.dumps(content(op=op)))
    levels = LEVELS if op == "lora" else ATTENTION_LEVELS
    with pytest.raises(ValueError, match=rf"NVIDIA_H200_{op}\.json: measured_on is 'cpu'; expected 'cuda'"):
        tuned.load(op, torch.device("cuda"), levels, dict)


def tune(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kernels.tune", *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)


@pytest.mark.parametrize(
    ("op", "level", "values", "levels", "parse"),
    [
        ("lora", "rows_per_segment", {1, 2, 17}, LEVELS, Tile.parse),
        pytest.param(
            "attention", "rows", {2, 36}, ATTENTION_LEVELS, AttentionTile.parse, marks=pytest.mark.slow
        ),
    ],
)
def test_the_procedure_writes_what_the_loader_reads_and_resumes(
    folder: Path,
    op: str,
    level: str,
    values: set[int],
    levels: tuple[str, ...],
    parse: Callable[[Mapping[str, object]], object],
) -> None:
    options = ("--device", "cpu", "--quick", "--op", op, "--out", str(folder))
    first = tune(*options, "--shapes", f"{level}={min(values)}")
    assert first.returncode == 0, first.stderr
    assert f"{op}: 1 shapes, " in first.stdout
    path = folder / f"cpu_{op}.json"
    written = json.loads(path.read_text())
    (alone,) = written["entries"]
    alone["microseconds"] = 1.25  # a mark that a second measurement would wipe out
    path.write_text(json.dumps(written))
    second = tune(*options)
    assert second.returncode == 0, second.stderr
    assert f"{op}: {len(values) - 1} shapes, " in second.stdout
    found = tuned.load(op, CPU, levels, parse)
    assert found is not None
    assert {entry.shape[level] for entry in found.entries} == values
    assert found.nearest(alone["shape"]).microseconds == 1.25
    for one in found.entries:
        assert found.nearest(one.shape) == one
    assert json.loads(path.read_text())["measured_on"] == "cpu"
    assert list(folder.iterdir()) == [path]


def test_every_op_that_can_be_tuned_is_found() -> None:
    assert OPS == ("attention", "lora")


@pytest.mark.parametrize(("tuning", "most"), [(LORA, 26), (ATTENTION, 20)], ids=["lora", "attention"])
def test_candidates_are_few_and_the_built_in_configuration_is_worth_its_trial(
    tuning: Tuning, most: int
) -> None:
    """A shape is done within a minute where a trial with its compilation takes two seconds."""
    clock = Clock(CPU, 232_448, 1, False, math.inf)
    for shape in tuning.shapes(quick=False):
        assert 5 < candidates(tuning, shape, clock) <= most
        assert tuning.fits(shape, tuning.default(shape), clock.shared_memory)
        assert tuning.parse(tuning.default(shape).written()) == tuning.default(shape)


def test_without_a_gpu_nothing_is_measured(tmp_path: Path) -> None:
    done = tune("--out", str(tmp_path))
    assert done.returncode == 2
    assert "no GPU here" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_wheel_holds_the_files(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "kernels" / "configs").mkdir(parents=True)
    for name in ("pyproject.toml", "README.md", "LICENSE", "kernels/__init__.py", "kernels/tuned.py"):
        shutil.copy(ROOT / name, tree / name)
    (tree / "kernels" / "configs" / "NVIDIA_H200_lora.json").write_text(json.dumps(content()))
    options = ["--no-deps", "--no-build-isolation", "--no-index", "-q", "-w", str(tmp_path), str(tree)]
    command = [sys.executable, "-m", "pip", "wheel", *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as held:
        assert {"kernels/tuned.py", "kernels/configs/NVIDIA_H200_lora.json"} <= set(held.namelist())
