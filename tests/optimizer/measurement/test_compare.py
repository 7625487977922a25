"""`compare` over real workers: of the same, of a worse one, and when something ends in its midst."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from contracts.recipes.progress import EXIT_STATUS, Code
from optimizer.measurement.rounds import JUDGED
from tests.optimizer.job_process import Ended, carry_out, end, events_of, start, write_order
from tests.waiting import eventually
from tests.worker_engine.forward_pass import Forward
from tests.worker_engine.tiny_model import byte_tokenizer

pytestmark = pytest.mark.costly("starts workers")

PROMPTS = [f"number {n}: the sea and the letter, the bridge and the rain" for n in range(12)]


@pytest.fixture(scope="module")
def worse_model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with noise on its weights."""
    folder = tmp_path_factory.mktemp("worse") / "model"
    shutil.copytree(tiny_model, folder)
    draw = torch.Generator().manual_seed(2)
    weights = {
        name: tensor * (1 + 0.5 * torch.randn(tensor.shape, generator=draw))
        for name, tensor in load_file(folder / "model.safetensors").items()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture
def order(
    tiny_model: Path, worse_model: Path, tiny_adapters: dict[str, Path], tmp_path: Path
) -> dict[str, Any]:
    lines = tmp_path / "prompts.jsonl"
    rows: list[dict[str, Any]] = [{"prompt": prompt, "expected": "none"} for prompt in PROMPTS]
    rows[1] = {"messages": [{"role": "user", "content": PROMPTS[1]}], "expected": "none"}
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = ["--num-threads", "1", "--memory-gib", "0.01", "--dtype", "float32"]
    return {
        "arms": [
            {"name": "original", "model": str(tiny_model), "flags": flags},
            {"name": "same", "model": str(tiny_model), "flags": flags},
            {"name": "worse", "model": str(worse_model), "flags": flags},
        ],
        "adapters": [{"name": "plain", "folder": str(tiny_adapters["plain"])}],
        "load": {"prompts": str(lines), "concurrency": [1, 2], "max_tokens": 64},
        "quality": {
            "texts": str(lines),
            "prompts": 12,
            "answer_tokens": 16,
            "samples": 1,
            "scorer": {"kind": "exact"},
        },
        "price": {"hour": 3.6, "input": 1.0, "output": 5.0},
    }


def children(root: Path) -> set[str]:
    """Return the workers whose scratch folder is under `root`."""
    found = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                words = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if b"worker_engine" in words and bytes(root) in words and b"--port" in words:
                found.add(folder.name)
    return found


@pytest.fixture
def _no_worker_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    yield
    # The system ends them with their parent, but not in the same moment.
    eventually(lambda: not children(tmp_path))


@pytest.mark.usefixtures("_no_worker_is_left")
@pytest.mark.slow
def test_a_comparison_tells_the_same_from_the_worse(
    order: dict[str, Any], tiny_model: Path, worse_model: Path, tmp_path: Path
) -> None:
    output = tmp_path / "result.json"
    ended = carry_out("compare", write_order(tmp_path / "order.json", order), output, 280)
    assert ended.status == 0, ended.stderr
    result = json.loads(output.read_text())
    assert result["schema"] == "graftwork.optimization.comparison/1"
    assert result["machine"]["cores"] == os.cpu_count()
    _check_figures(result)
    _check_quality(result, tiny_model, worse_model)


def _check_figures(result: dict[str, Any]) -> None:
    rounds = result["rounds"]["measured"]
    for level in result["levels"]:
        for arm in level["arms"].values():
            assert arm["requests"] == rounds * level["concurrency"]
            assert arm["completion_tokens"] == 64 * arm["requests"]
            assert arm["ttft_ms"]["p50"] <= arm["ttft_ms"]["p90"] <= arm["ttft_ms"]["p99"]
            formula = 1000 / arm["itl_ms"]["p50"] * level["concurrency"]
            assert arm["throughput_by_formula"] == pytest.approx(formula)
            by_throughput, by_list = arm["blended"]
            assert by_throughput["per_million"] == pytest.approx(3.6 / (formula * 3600 / 1e6) / 4)
            assert by_list["per_million"] == 2.0
    for arm in result["arms"]:
        assert arm["memory"]["peak_bytes"] > arm["weights_bytes"]
    assert [item["arm"] for item in result["comparisons"]] == ["same", "worse"]
    for item in result["comparisons"]:
        named = {name: {f"{name} at {streams}" for streams in (1, 2)} for name in JUDGED}
        whole = {name for names in named.values() for name in names}
        # So small a model's tokens may come all at once to a client that waited for its core: no ITL then.
        assert whole - named["itl_p50"] <= set(item["figures"]) <= whole
        assert item["level"] == 0.01


def _check_quality(result: dict[str, Any], tiny_model: Path, worse_model: Path) -> None:
    arms = result["quality"]["arms"]
    assert arms["original"]["texts"]["kl_mean"] == 0.0
    same, worse = arms["same"], arms["worse"]
    assert same["base"]["identical"] == same["plain"]["identical"] == 1.0
    assert {change["verdict"] for change in same["changes"].values()} == {"no difference shown"}
    assert worse["changes"]["base: log perplexity"]["verdict"] == "difference shown"
    assert worse["changes"]["plain: log perplexity"]["verdict"] == "difference shown"
    assert worse["base"]["identical"] < 0.5
    assert worse["base"]["score"] == 0.0
    perplexity, divergence = reference(tiny_model, worse_model)
    assert arms["original"]["texts"]["perplexity"] == pytest.approx(perplexity, rel=1e-3)
    assert 0.1 * divergence < worse["texts"]["kl_mean"] <= divergence * 1.001
    sample = result["quality"]["samples"][0]
    assert set(sample["answers"]) == {"original", "same", "worse"}


def reference(original: Path, other: Path) -> tuple[float, float]:
    """The perplexity of the prompts, and the divergence over the whole vocabulary."""
    models = [Forward.load(folder, None) for folder in (original, other)]
    losses, apart = [], []
    for prompt in PROMPTS:
        ids = byte_tokenizer().encode(prompt).ids
        ours, theirs = (torch.log_softmax(model(ids)[1][:-1].double(), -1) for model in models)
        losses += (-ours.gather(1, torch.tensor(ids)[1:, None])[:, 0]).tolist()
        apart += (ours.exp() * (ours - theirs)).sum(-1).tolist()
    return float(torch.tensor(losses).mean().exp()), sum(apart) / len(apart)


@pytest.mark.usefixtures("_no_worker_is_left")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.costly("starts two workers")
def test_a_comparison_that_ends_takes_its_workers_along(
    number: int, order: dict[str, Any], tmp_path: Path
) -> None:
    output = tmp_path / "result.json"
    process = start("compare", write_order(tmp_path / "order.json", order), output)
    for event in events_of(process):
        if event["event"] == "phase" and event["phase"] == "rounds":
            break
    assert children(tmp_path)
    process.send_signal(number)
    if number == signal.SIGTERM:
        assert end(process).last["code"] == Code.CANCELLED
    else:
        process.communicate()
    assert not output.exists()


def refused(order: dict[str, Any], tmp_path: Path) -> Ended:
    return carry_out("compare", write_order(tmp_path / "order.json", order), tmp_path / "result.json")


@pytest.mark.costly("runs the program three times")
def test_wrong_data_is_told_before_a_worker_starts(order: dict[str, Any], tmp_path: Path) -> None:
    lines = tmp_path / "bad.jsonl"
    lines.write_text('{"prompt": "x"}\n{"prompt": }\n')
    ended = refused({**order, "load": {**order["load"], "prompts": str(lines)}}, tmp_path)
    assert (ended.last["code"], ended.status) == (Code.BAD_DATA, EXIT_STATUS[Code.BAD_DATA])
    assert "bad.jsonl, line 2: is not JSON" in ended.last["message"]
    few = refused({**order, "load": {**order["load"], "concurrency": [64]}}, tmp_path)
    assert "has 12 lines; a round of 64 streams needs 64" in few.last["message"]
    lines.write_text('{"prompt": "x", "expected": "y"}\n' * 8 + '{"prompt": "x"}\n' * 4)
    blank = refused({**order, "load": {**order["load"], "prompts": str(lines)}}, tmp_path)
    assert "line 9 has no expected" in blank.last["message"]
    assert all(event.get("phase") != "start" for event in blank.events)
    assert {event["event"] for event in few.events} == {"phase", "progress", "error"}
    assert all(event.get("phase") != "start" for event in few.events)


def test_too_few_rounds_are_refused_with_the_number(order: dict[str, Any], tmp_path: Path) -> None:
    ended = refused({**order, "load": {**order["load"], "rounds": 4}}, tmp_path)
    assert ended.last["code"] == Code.BAD_ORDER
    assert "11 are the least" in ended.last["message"]


@pytest.mark.usefixtures("_no_worker_is_left")
def test_an_arm_that_does_not_start_says_why(order: dict[str, Any], tmp_path: Path) -> None:
    order["arms"][1]["flags"] = ["--dtype", "float3"]
    ended = refused(order, tmp_path)
    assert ended.last["code"] == Code.WORKER_FAILED
    assert "arm same did not start" in ended.last["message"]
    assert "--dtype must be" in ended.last["message"]
