"""`run` as a process: whole, killed anywhere, cancelled, without room, asked twice, asked for nonsense."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contracts.recipes.progress import EXIT_STATUS, Code
from kernels import native
from tests.optimizer.job_process import Ended, carry_out, command, end, events_of, start, write_order
from worker_engine.models import load_config

pytestmark = pytest.mark.costly("starts optimizers")


@pytest.fixture
def model(tiny_model: Path, tmp_path: Path) -> Path:
    """The tiny checkpoint, and a file of 48 MiB, so that copying takes a time in which to be killed."""
    folder = tmp_path / "source"
    shutil.copytree(tiny_model, folder)
    (folder / "extra.txt").write_bytes(random.Random(3).randbytes(48 << 20))
    return folder


def order(path: Path, source: Path, **fields: Any) -> Path:
    return write_order(path, {"source": str(source), "recipe": {"version": 1}} | fields)


def files_of(output: Path) -> set[str]:
    return {str(path.relative_to(output)) for path in output.rglob("*") if path.is_file()}


def refused(ended: Ended, code: Code) -> str:
    assert ended.last["event"] == "error", ended.stderr
    assert ended.last["code"] == code
    assert ended.status == EXIT_STATUS[code]
    return str(ended.last["message"])


def test_a_run_is_whole_named_by_its_content_and_done_once(model: Path, tmp_path: Path) -> None:
    spec, output = order(tmp_path / "order.json", model), tmp_path / "out"
    first = carry_out("run", spec, output)
    assert first.status == 0, first.stderr
    assert [event["phase"] for event in first.events if event["event"] == "phase"] == [
        "source",
        "checkpoint",
        "compilation",
        "verification",
    ]
    lineage = json.loads((output / "lineage.json").read_text())
    assert lineage["digest"] == first.last["digest"]
    assert files_of(output) == {*lineage["files"], "lineage.json", ".lock"}
    assert load_config(output / "checkpoint") == load_config(model)
    again = carry_out("run", spec, output)
    assert (again.last["digest"], again.last["reused"]) == (first.last["digest"], True)
    elsewhere = carry_out("run", spec, tmp_path / "elsewhere")
    assert elsewhere.last["digest"] == first.last["digest"]


def killed_at(spec: Path, output: Path, draw: random.Random) -> None:
    """kill -9 after some line of the job's, and a moment."""
    process = start("run", spec, output)
    for count, _ in enumerate(events_of(process)):
        if count >= draw.randrange(1, 12):
            break
    time.sleep(draw.uniform(0.0, 0.15))
    process.kill()
    process.communicate()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.slow
def test_killed_anywhere_it_goes_on_to_the_same_output(seed: int, model: Path, tmp_path: Path) -> None:
    """With weights packed where this CPU has loops for them, so that steps of all kinds are cut."""
    packed = {"version": 1, "compilation": {"packed": native.LIBRARY is not None}}
    spec = order(tmp_path / "order.json", model, recipe=packed)
    whole = carry_out("run", spec, tmp_path / "whole")
    draw, output = random.Random(seed), tmp_path / "out"
    for _ in range(4):
        killed_at(spec, output, draw)
        assert not (output / "lineage.json").exists() or carry_out("run", spec, output).status == 0
    ended = carry_out("run", spec, output)
    assert ended.status == 0, ended.stderr
    assert ended.last["digest"] == whole.last["digest"]
    assert files_of(output) == files_of(tmp_path / "whole")


def test_a_killed_quantization_comes_out_the_same(model: Path, tmp_path: Path) -> None:
    spec = order(tmp_path / "order.json", model, recipe={"version": 1, "quantization": "int8"})
    whole = carry_out("run", spec, tmp_path / "whole")
    assert whole.status == 0, whole.stderr
    draw, output = random.Random(7), tmp_path / "out"
    for _ in range(2):
        killed_at(spec, output, draw)
    ended = carry_out("run", spec, output)
    assert ended.status == 0, ended.stderr
    assert ended.last["digest"] == whole.last["digest"]
    assert files_of(output) == files_of(tmp_path / "whole")


def test_finished_steps_are_not_done_again(model: Path, tmp_path: Path) -> None:
    spec, output = order(tmp_path / "order.json", model), tmp_path / "out"
    process = start("run", spec, output)
    for event in events_of(process):
        if event["event"] == "phase" and event["phase"] == "compilation":
            break
    process.kill()
    process.communicate()
    if (output / "lineage.json").exists():
        pytest.skip("it was done before the kill came")
    made = (output / "checkpoint" / "extra.txt").stat().st_mtime_ns
    ended = carry_out("run", spec, output)
    assert ended.status == 0
    assert any("going on after checkpoint" in event.get("message", "") for event in ended.events)
    assert (output / "checkpoint" / "extra.txt").stat().st_mtime_ns == made


def test_what_was_killed_before_its_first_step_is_no_other_orders(
    model: Path, tiny_model: Path, tmp_path: Path
) -> None:
    """A checkpoint that stands there, made by a run that died before it recorded that."""
    spec, output = order(tmp_path / "order.json", model), tmp_path / "out"
    process = start("run", spec, output)
    for event in events_of(process):
        if event["event"] == "progress" and event["phase"] == "checkpoint":
            break
    process.kill()
    process.communicate()
    other = order(tmp_path / "other.json", tiny_model)
    assert "unfinished output of another order" in refused(
        carry_out("run", other, output), Code.OUTPUT_EXISTS
    )
    state = output / ".job" / "state.json"
    state.write_text(json.dumps(json.loads(state.read_text()) | {"versions": {"torch": "0.1"}}))
    (output / "checkpoint" / "left.json").write_text("{}")
    ended = carry_out("run", spec, output)
    assert ended.status == 0, ended.stderr
    assert any("begins anew" in event.get("message", "") for event in ended.events)
    assert not (output / "checkpoint" / "left.json").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_cancels_and_the_same_command_goes_on(number: int, model: Path, tmp_path: Path) -> None:
    spec, output = order(tmp_path / "order.json", model), tmp_path / "out"
    process = start("run", spec, output)
    for event in events_of(process):
        if event["event"] == "progress" and event["phase"] == "checkpoint":
            break
    process.send_signal(number)
    ended = end(process)
    assert "the same command goes on" in refused(ended, Code.CANCELLED)
    assert not (output / "lineage.json").exists()
    assert carry_out("run", spec, output).status == 0


def test_a_job_that_nobody_reads_ends(model: Path, tmp_path: Path) -> None:
    spec, output = order(tmp_path / "order.json", model), tmp_path / "out"
    process = start("run", spec, output)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr is not None
    process.stderr.close()
    assert process.wait(60) == EXIT_STATUS[Code.CANCELLED]
    assert not (output / "lineage.json").exists()


def test_two_at_once_do_not_write_the_same_folder(model: Path, tmp_path: Path) -> None:
    spec, output = order(tmp_path / "order.json", model), tmp_path / "out"
    process = start("run", spec, output)
    for event in events_of(process):
        if event["event"] == "phase" and event["phase"] == "checkpoint":
            process.send_signal(signal.SIGSTOP)
            break
    assert "another process" in refused(carry_out("run", spec, output), Code.BUSY)
    process.send_signal(signal.SIGCONT)
    assert end(process).status == 0


def test_other_output_is_left_alone(model: Path, tiny_model: Path, tmp_path: Path) -> None:
    spec, output = order(tmp_path / "order.json", tiny_model), tmp_path / "out"
    output.mkdir()
    (output / "theirs").touch()
    assert "holds other files" in refused(carry_out("run", spec, output), Code.OUTPUT_EXISTS)
    assert files_of(output) == {"theirs"}
    done = tmp_path / "done"
    assert carry_out("run", spec, done).status == 0
    other = order(tmp_path / "other.json", model)
    assert "of another order" in refused(carry_out("run", other, done), Code.OUTPUT_EXISTS)
    assert carry_out("run", spec, done).last["reused"] is True


def test_damage_is_found(tiny_model: Path, tmp_path: Path) -> None:
    spec, output = order(tmp_path / "order.json", tiny_model), tmp_path / "out"
    assert carry_out("run", spec, output).status == 0
    weights = output / "checkpoint" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert "model.safetensors" in refused(carry_out("run", spec, output), Code.OUTPUT_DAMAGED)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 16 MiB in all."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "none", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this user may not mount a disk of its own")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_without_room_is_told_before_anything_is_written(
    model: Path, tmp_path: Path, small_disk: Path
) -> None:
    spec = order(tmp_path / "order.json", model)
    message = refused(carry_out("run", spec, small_disk / "out"), Code.OUT_OF_DISK)
    assert "MiB free, the job needs" in message
    assert files_of(small_disk / "out") <= {".lock"}


FILLED = """
import sys
from optimizer import __main__, job
job._demand_room = lambda *_: None
sys.exit(__main__.main(sys.argv[1:]))
"""


def test_a_disk_that_fills_up_ends_the_job_and_room_lets_it_go_on(
    model: Path, tmp_path: Path, small_disk: Path
) -> None:
    spec, output = order(tmp_path / "order.json", model), small_disk / "out"
    late = [sys.executable, "-c", FILLED, *command("run", spec, output)[3:]]
    process = subprocess.Popen(late, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert "make room" in refused(end(process), Code.OUT_OF_DISK)
    assert not (output / "lineage.json").exists()
    subprocess.run(["mount", "-o", "remount,size=256m", str(small_disk)], check=True)
    assert carry_out("run", spec, output).status == 0


def test_what_does_not_go_together_leaves_no_folder(tiny_model: Path, tmp_path: Path) -> None:
    bad = {"version": 1, "quantization": "fp8", "tensor_parallel": {"degree": 2}}
    spec = order(tmp_path / "order.json", tiny_model, recipe=bad)
    ended = carry_out("run", spec, tmp_path / "out")
    refused(ended, Code.INCOMPATIBLE)
    told = {reason["code"] for reason in ended.last["reasons"]}
    assert told == {"fp8_hardware", "one_device"}
    assert not (tmp_path / "out").exists()


def test_an_architecture_that_is_not_served_leaves_no_folder(tiny_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "mamba"
    shutil.copytree(tiny_model, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["MambaForCausalLM"]}))
    ended = carry_out("run", order(tmp_path / "order.json", folder), tmp_path / "out")
    assert "MambaForCausalLM is not served" in refused(ended, Code.UNSUPPORTED_MODEL)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "cannot read"),
        ("[]", "must be an object"),
        ('{"version": 1}', "source must be a text"),
        ('{"version": 1, "source": "x", "recipe": {"version": 1}, "colour": 1}', "colour is not a"),
        ('{"version": 1, "source": "/nowhere", "recipe": {"version": 1}}', "/nowhere is not a folder"),
        (
            '{"version": 1, "source": "x", "recipe": {"version": 1, "target": {"engine": "sagemaker"}}}',
            "recipe.target.engine must be local",
        ),
    ],
)
def test_an_order_that_is_wrong_is_told(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "order.json").write_text(text)
    ended = carry_out("run", tmp_path / "order.json", tmp_path / "out")
    assert told in refused(ended, Code.BAD_ORDER)
    assert not (tmp_path / "out").exists()


def test_too_little_calibration_is_told_by_line_and_count(tiny_model: Path, tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    fields = {"calibration": str(data), "recipe": {"version": 1, "quantization": "awq_int4_g64"}}
    spec = order(tmp_path / "order.json", tiny_model, **fields)
    data.write_text('{"text": "one"}\n' * 15)
    assert "has 15 lines" in refused(carry_out("run", spec, tmp_path / "out"), Code.BAD_DATA)
    data.write_text('{"text": "one"}\n' * 15 + "{\n")
    assert "line 16" in refused(carry_out("run", spec, tmp_path / "out"), Code.BAD_DATA)
    assert not (tmp_path / "out").exists()
