"""The GPU report runs to its end on a CPU, says that it did so there, and survives what kernels can do."""

from __future__ import annotations

import itertools
import json
import math
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import (
    command,
    engine_checks,
    lora_checks,
    quantized_checks,
    quantized_decode,
    quantized_rows,
    roofline,
    table,
)
from benchmarks.gpu.lora_inputs import Work
from benchmarks.gpu.parts import correctness, engine, kernels, quantization, tune
from benchmarks.gpu.peers import FOLDER
from benchmarks.gpu.quantized_checks import QuantizedCheck
from benchmarks.gpu.random_model import StepBytes, build_engine
from benchmarks.gpu.report import Report, finite
from benchmarks.gpu.runner import Budget, Worker, run_part
from benchmarks.gpu.shapes import BATCHES, MODELS, RANKS, grid
from benchmarks.gpu.task import Bench, Ceilings, Row
from kernels.quantization import linear as quantized_linear
from tests.benchmarks import broken_part
from tests.kernels.made_up_op import LimitedClock, MadeUp
from worker_engine.checkpoint.model_config import ModelConfig

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
CPU = Bench(torch.device("cpu"), True, Ceilings(1e10, 1e11), Path())


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny products gain nothing from two threads."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def quick(part: str, out: Path, *more: str) -> int:
    return command.main(["--part", part, "--device", "cpu", "--quick", "--out", str(out), *more])


def held(out: Path, part: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((out / f"{part}.json").read_text())
    return value


@pytest.mark.parametrize("part", command.PARTS)
def test_part_runs_to_its_end_on_a_cpu(part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert quick(part, tmp_path) == 0
    result = held(tmp_path, part)
    assert result["rows"]
    assert not result["left"]
    assert {row["measured_on"] for row in result["rows"]} == {result["measured_on"]} == {"cpu"}
    assert not [row for row in result["rows"] if "error" in row]
    shown = capsys.readouterr().out
    assert "measured on a CPU: NOT GPU figures" in shown
    assert "MET" not in shown
    assert "MISSED" not in shown
    with tarfile.open(tmp_path / "gpu_report.tar.gz") as archive:
        names = archive.getnames()
    assert f"gpu_report/{part}.json" in names
    assert ("gpu_report/roofline.png" in names) == (part == "kernels")
    assert ("gpu_report/quantization-roofline.png" in names) == (part == "quantization")


def test_script_needs_no_installation_and_resumes_what_was_left(tmp_path: Path) -> None:
    script = [sys.executable, str(ROOT / "benchmarks" / "gpu_report.py"), "--part", "kernels"]
    options = ["--device", "cpu", "--quick", "--out", str(tmp_path / "out")]
    for more in (["--budget", "0"], ["--resume"]):
        done = subprocess.run([*script, *options, *more], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        if more == ["--resume"]:
            assert "left 0" in done.stdout
        else:
            assert "rows 0" in done.stdout
            assert "LEFT" in done.stdout
    keys = [row["key"] for row in held(tmp_path / "out", "kernels")["rows"]]
    assert sorted(keys) == sorted(task.key for task in kernels.tasks(True, "cpu"))


def test_resume_makes_only_what_is_missing_and_keeps_devices_apart(tmp_path: Path) -> None:
    report = Report.open(tmp_path, "kernels", device="cpu", quick=True, resume=False)
    report.begin({"bandwidth": 1.0, "matmul": 1.0})
    report.add({"key": kernels.tasks(True, "cpu")[0].key, "mark": "kept"})
    report = Report.open(tmp_path, "kernels", device="cpu", quick=True, resume=True)
    budget = Budget(60.0)
    with Worker("kernels", "cpu", True, tmp_path) as worker:
        run_part(kernels.tasks(True, "cpu")[:2], report, worker, budget)
    assert [row.get("mark") for row in report.rows] == ["kept", None]
    assert [row["run"] for row in report.rows] == [0, 1]
    with pytest.raises(ValueError, match=r"has rows of --device cpu --quick; expected those of this run"):
        Report.open(tmp_path, "kernels", device="cuda", quick=False, resume=True)


def test_a_task_that_raises_hangs_or_dies_costs_its_own_row(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    report = Report.open(tmp_path, "broken", device="cpu", quick=True, resume=False)
    with Worker(broken_part.__name__, "cpu", True, tmp_path) as worker:
        run_part(broken_part.tasks(True, "cpu"), report, worker, Budget(120.0))
    rows = {row["key"]: row for row in report.rows}
    assert rows["raises"]["error"] == "ValueError: no such shape"
    assert rows["hangs"]["error"] == "no answer within 1 s: hung, killed"
    assert rows["dies"]["error"] == "the process ended with code 7"
    assert [row["key"] for row in report.failed] == ["raises", "hangs", "dies"]
    assert rows["first"]["pid"] == rows["second"]["pid"] != rows["other"]["pid"]
    assert (rows["second"]["variable"], rows["other"]["variable"]) == (None, "set")
    shown = list(table.lines(report, [], []))
    assert "FAILED dies: the process ended with code 7" in shown
    assert shown[-1] == "rows 6, failed 3, left 0"


def test_engine_rows_fail_for_another_adapters_weights_and_for_tokens_that_lack() -> None:
    device = CPU.device
    engine_under_test, model = engine_checks._engine(device, engine_checks.CHECKS[0])
    known = engine_checks.expected(model, device)
    base, first, *others = engine_checks._adapters(model, device)
    turned = engine_checks.serve(engine_under_test, model, [base, *others, first])
    assert not engine_checks.judge(known, turned)["passed"]
    assert engine_checks.judge(known, known)["passed"]
    short = known | {"3": known["3"][:-1]}
    assert "request 3 has" in engine_checks.judge(known, short)["reason"]


def gpu_row(**changes: Any) -> Row:
    inputs = {"op": "lora", "phase": "decode", "spread": "distinct", "adapters": 64, "batch": "64x64"}
    row = {
        "key": "row",
        "measured_on": "cuda",
        "inputs": inputs,
        "time_us": {"median": 30.0},
        "bytes": 100_000_000,
        "flops": 200_000_000,
        "bandwidth_fraction": 0.9,
        "roofline_us": 27.0,
        "roofline_ratio": 1.11,
        "peer": {"speedup": 1.5, "time_us": {"median": 45.0}},
    }
    return row | changes


def test_kernel_goals_follow_the_rows_of_a_gpu_alone() -> None:
    def met(*rows: Row) -> list[bool | None]:
        return [goal.met for goal in kernels.goals(rows)]

    assert met(gpu_row()) == [True] * 4
    assert met(gpu_row(measured_on="cpu")) == [None] * 4
    assert met(gpu_row(bandwidth_fraction=0.84)) == [False, True, True, True]
    assert met(gpu_row(roofline_ratio=1.16)) == [True, False, True, True]
    assert met(gpu_row(roofline_ratio=9.0, time_us={"median": 19.0}), gpu_row()) == [True] * 4
    slow = gpu_row(peer={"speedup": 0.94})
    assert met(*[gpu_row(peer={"speedup": 2.0})] * 9, slow) == [True, True, True, False]
    assert met(gpu_row(peer={"absent": "no vllm"})) == [True, True, None, None]


def test_engine_goals_compare_equal_outputs_only() -> None:
    def row(rate: float, out: int = 600, **inputs: Any) -> Row:
        held = {"triton": True, "adapters": 0, "concurrency": 16, "loaded": False, "modules": "all"}
        held |= {"graphs": True, "overlap": True}
        figures = {"otps": 1.0, "decode_steps": 5, "step_roofline_ratio": 1.1}
        return {
            "measured_on": "cuda",
            "inputs": held | inputs,
            "out_tokens": out,
            "out_tokens_per_s": rate,
            **figures,
        }

    attention: dict[str, Any] = {"adapters": 8, "modules": "attention"}
    found = engine.goals([row(100.0), row(98.0, loaded=True), row(96.0, **attention)])
    assert [goal.met for goal in found[:4]] == [True, None, False, True]
    slower = row(1.0, graphs=False, step_roofline_ratio=9.0)
    assert [goal.met for goal in engine.goals([row(100.0), slower])[:1]] == [True]
    found = engine.goals([row(100.0), row(96.0, out=300, **attention)])
    assert (found[3].met, found[3].value) == (None, "outputs shortened differently")


def test_quantization_goals_compare_like_with_like() -> None:
    """Steps of the same load in one report, on a GPU; and all layers at one row."""

    def step(form: str, us: float, **changes: Any) -> Row:
        inputs = {
            "op": "decode",
            "form": form,
            "batch": 1,
            "adapters": 0,
            "prompt_tokens": 9,
            "out_tokens": 9,
        }
        figures = {"measured_on": "cuda", "decode_step_us": us, "step_roofline_ratio": 1.2}
        return {"key": f"quantization.decode.{form}", "inputs": inputs | changes, **figures}

    def layers(form: str, speedup: float, rows: int = 1) -> Row:
        times = {"time_us": {"median": 1.0}, "whole_us": {"median": speedup}, "roofline_ratio": 1.3}
        inputs = {"op": "layers", "form": form, "rows": rows}
        return {"measured_on": "cuda", "inputs": inputs, "speedup": speedup, **times}

    def met(*rows: Row) -> list[bool | None]:
        return [goal.met for goal in quantization.goals(rows)]

    assert met() == [None] * 4
    assert met(step("bf16", 50.0), step("int4_g128", 20.0)) == [True, None, None, None]
    assert met(step("bf16", 49.0), step("awq_g128", 20.0)) == [None, None, False, None]
    assert met(step("bf16", 90.0, batch=8), step("int4_g128", 20.0)) == [None] * 4
    assert met(step("bf16", 50.0), step("int4_g128", 20.0) | {"measured_on": "cpu"}) == [None] * 4
    assert met(layers("int4_g128", 2.6), layers("awq_g128", 2.4)) == [None, True, None, False]
    assert met(layers("int4_g128", 2.6, rows=8)) == [None] * 4
    shown = quantization.summary([step("bf16", 50.0), step("int4_g128", 20.0), layers("awq_g128", 2.4)])
    assert shown[2].split() == ["decode.int4_g128", "20.0", "50.0", "2.50", "1.20"]
    assert shown[3].split() == ["layers", "awq_g128", "1", "rows", "1.0", "2.4", "2.40", "1.30"]


def test_counted_bytes_of_a_step_over_quantized_weights() -> None:
    whole, packed = (
        StepBytes.for_model(load_shape(quantized_decode.config_of(form) if form else None))
        for form in (None, quantized_rows.QUICK_FORMS[1])
    )
    linear = 2 * (64 * 128 + 64 * 64 + 64 * 192 + 96 * 64)
    assert whole.base - packed.base == 2 * linear - linear // 2 - 3 * linear // 32
    assert whole.kv == packed.kv


def load_shape(quantization_config: dict[str, Any] | None) -> ModelConfig:
    built, model = build_engine(True, CPU.device, quantization=quantization_config, memory_gib=0.01)
    built.close()
    return model


def test_a_quantized_product_that_is_wrong_fails_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    check = QuantizedCheck(3, 40, 64, 32, zeros=True, dtype="bfloat16")
    assert quantized_checks.run(CPU, check)["passed"]
    monkeypatch.setattr(quantized_checks, "linear", lambda *arguments: quantized_linear(*arguments) * 1.1)
    assert not quantized_checks.run(CPU, check)["passed"]


def test_correctness_sees_a_wrong_op(monkeypatch: pytest.MonkeyPatch) -> None:
    check = next(lora_checks.checks(True, "cpu"))
    assert lora_checks.run(CPU, check)["passed"]
    right = lora_checks.apply

    def off_by_a_bit(check: Any, inputs: Any, out: torch.Tensor) -> None:
        right(check, inputs, out)
        out[0, 0] += 0.25

    monkeypatch.setattr(lora_checks, "apply", off_by_a_bit)
    assert not lora_checks.run(CPU, check)["passed"]
    monkeypatch.setattr(lora_checks, "apply", lambda check, inputs, out: out.add_(1))
    assert lora_checks.run(CPU, check)["reason"] == "a row without adapter changed"
    monkeypatch.setattr(lora_checks, "apply", lambda check, inputs, out: out.fill_(float("nan")))
    row = lora_checks.run(CPU, check)
    assert not row["passed"]
    assert json.loads(json.dumps(finite(row), allow_nan=False))["passed"] is False
    assert correctness.summary([finite(row) | {"inputs": {"op": "lora"}}]) == [
        "lora         0 passed, 1 failed"
    ]


def test_correctness_goal_needs_every_case_on_a_gpu() -> None:
    rows: list[Row] = [{"measured_on": "cuda", "passed": True}, {"measured_on": "cuda", "passed": False}]
    assert [goal.met for goal in correctness.goals(rows)] == [False]
    assert [goal.met for goal in correctness.goals(rows[:1])] == [True]
    assert [goal.met for goal in correctness.goals([{"measured_on": "cpu", "passed": True}])] == [None]


def test_counted_work_of_multi_lora() -> None:
    # Adapters 0 and 2 work, on 2 and 1 rows; 1 has no rows, 3 no rank, and row 3 no adapter.
    work = Work.for_batch([4, 8, 2, 0], (10, 6), 12, [0, 2, 0, -1, 3], 2)
    weights = (4 + 2) * (12 + 10) + (4 + 2) * (12 + 6)
    assert work.nbytes == 2 * (weights + 3 * 12 + 2 * 3 * 16)
    assert work.flops == 2 * (2 * 4 + 1 * 2) * (12 + 10 + 12 + 6)


def test_first_fifth_of_the_grid_pairs_everything() -> None:
    rows = list(grid(False))
    layers = sum(len(model.layers) for model in MODELS)
    assert len(set(rows)) == len(rows) == layers * len(RANKS) * len(BATCHES)
    first = rows[: len(rows) // len(RANKS)]
    for one, other in itertools.combinations(range(3), 2):
        found = {(row[one], row[other]) for row in first}
        assert found == {(row[one], row[other]) for row in rows}


def test_a_shape_that_time_cut_off_keeps_its_best_and_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(torch.device("cpu"), True, CPU.ceilings, tmp_path)
    report = Report.open(tmp_path, "tune", device="cpu", quick=True, resume=False)
    report.begin({"bandwidth": 1.0, "matmul": 1.0})
    made: list[MadeUp] = []
    for turns in (4, math.inf):
        made.append(MadeUp())
        clock = LimitedClock(bench.device, 1, 1, False, math.inf, made[-1], turns)
        monkeypatch.setattr(tune, "_tuning", lambda _, op=made[-1]: op)
        monkeypatch.setattr(tune, "_clock", lambda _, clock=clock: clock)
        report.add({"key": "tune"} | tune.run(bench, "made_up", {"rows": 1}))
        assert not report.failed
        if turns == 4:
            (row,) = report.rows
            assert (row["tried"], row["unfinished"], report.keys) == (4, True, set())
            assert (row["gain"], row["entry"]["microseconds"]) == (1.5, 12.0)
            assert tune.summary(report.rows) == [
                "1 shapes in configs/, 1 of them unfinished; 4 configurations tried"
            ]
    (row,) = report.rows
    assert report.keys == {"tune"}
    assert row["entry"]["microseconds"] == 10.0
    assert row["tried"] == len(set(made[0].tried + made[1].tried)) == len(made[0].tried + made[1].tried)


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_roofline_is_drawn_and_says_where_it_was_measured(device: str, tmp_path: Path) -> None:
    report = Report.open(tmp_path, "kernels", device=device, quick=False, resume=False)
    machine = {"gpu": {"name": "Some GPU"}, "cpu": "Some CPU"}
    report.begin({"bandwidth": 4.3e12, "matmul": 7.9e14, "machine": machine})
    assert roofline.draw(report) is None
    report.add(gpu_row(measured_on=device))
    path = roofline.draw(report)
    assert path is not None
    assert path.read_bytes().startswith(b"\x89PNG")
    title = roofline.title(report, report.rows)
    assert title.startswith("Some GPU" if device == "cuda" else "MEASURED ON A CPU (Some CPU)")


def test_kernels_pass_the_checks_in_the_interpreter(tmp_path: Path) -> None:
    """The checks that a GPU will run, over the kernels themselves: pages, mixes, DoRA, changing batches."""
    options = ["--part", "correctness", "--device", "cpu", "--quick", "--out", str(tmp_path)]
    command_line = [sys.executable, "-W", "ignore", str(ROOT / "benchmarks" / "gpu_report.py"), *options]
    done = subprocess.run(
        command_line, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = held(tmp_path, "correctness")["rows"]
    assert {row["implementation"] for row in rows if "implementation" in row} == {"interpreter"}
    assert {"lora.graph.decode", "lora.paged.decode", "attention.graph"} <= {row["key"] for row in rows}


PEER = """
import torch
from benchmarks.gpu.lora_checks import judge
from benchmarks.gpu.lora_inputs import LoraInputs
from benchmarks.gpu.peers import VllmOps

torch.manual_seed(0)
ops = VllmOps.load()
for widths, row_adapter in (((48,), [2, -1, 0, 1, 2, 2]), ((64, 16, 16), [1, 0, 2, -1, -1, 2, 0])):
    device = torch.device("cpu")
    inputs = LoraInputs.draw([8, 16, 4], widths, 64, row_adapter, dtype=torch.float16, device=device)
    result = inputs.out.clone()
    ops.calls([inputs])[0]()
    result, inputs.out[:] = inputs.out.clone(), result
    row = judge(inputs, result)
    assert row["passed"], row
"""


@pytest.mark.skipif(not os.environ.get(FOLDER), reason=f"{FOLDER} names no folder of vLLM's Triton ops")
def test_vllms_ops_run_and_compute_the_same() -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PEER], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


PRESENT = """
import sys
import jinja2, numpy, safetensors.torch, tokenizers, torch, triton.language
before = set(sys.modules)
from benchmarks.gpu import command, worker
for part in command.PARTS:
    worker.load_part(part)
print(*sorted({name.partition(".")[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)))
"""


def test_report_loads_no_more_than_a_gpu_image_has() -> None:
    """PyTorch, Triton and what the engine needs; no installation of ours, no server, no grammar library."""
    done = subprocess.run([sys.executable, "-c", PRESENT], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    own = {"benchmarks", "contracts", "kernels", "worker_engine"}
    of_theirs = {"jinja2", "numpy", "safetensors", "tokenizers", "torch", "triton", "triton_kernels"}
    assert own <= (found := set(done.stdout.split()))
    assert found <= own | of_theirs
