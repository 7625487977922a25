"""`python -m optimizer run` with an adapter: whole, repeated, cancelled, refused."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from contracts.recipes.progress import EXIT_STATUS, Code
from tests.optimizer.job_process import Ended, carry_out, end, events_of, start, write_order
from tests.optimizer.merging.layouts import LAYOUTS, write_adapter, write_base
from tests.optimizer.merging.test_exact import merged_into, weights_of
from tests.worker_engine.tiny_model import write_model

pytestmark = pytest.mark.costly("starts optimizers")
LAYOUT = LAYOUTS["linear"]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_base(tmp_path / "base", LAYOUT, dtype="bfloat16", shard_bytes=60_000)


@pytest.fixture
def adapter(base: Path, tmp_path: Path) -> Path:
    return write_adapter(base, tmp_path / "adapter", LAYOUT)


def order(path: Path, base: Path, adapter: Path, **fields: Any) -> Path:
    return write_order(
        path, {"source": str(base), "recipe": {"version": 1}, "adapter": str(adapter), **fields}
    )


def refused(ended: Ended, code: Code) -> str:
    assert ended.last["event"] == "error", ended.stderr
    assert (ended.last["code"], ended.status) == (code, EXIT_STATUS[code])
    return str(ended.last["message"])


def test_a_merged_copy_is_whole_and_named_by_its_content(base: Path, adapter: Path, tmp_path: Path) -> None:
    spec = order(tmp_path / "order.json", base, adapter)
    first = carry_out("run", spec, tmp_path / "out")
    assert first.status == 0, first.stderr
    lineage = json.loads((tmp_path / "out" / "lineage.json").read_text())
    by_hand = weights_of(merged_into(base, adapter, tmp_path / "again"))
    found = weights_of(tmp_path / "out" / "checkpoint")
    assert all(found[name].equal(tensor) for name, tensor in by_hand.items())
    assert lineage["identity"]["adapter"]
    assert lineage["serve"]["flags"] == []
    assert not list((tmp_path / "out").glob(".adapter-*")), "the adapter's files stay behind"
    again = carry_out("run", spec, tmp_path / "out")
    assert (again.last["digest"], again.last["reused"]) == (first.last["digest"], True)


def test_cancelled_it_goes_on_to_the_same_output(base: Path, adapter: Path, tmp_path: Path) -> None:
    spec = order(tmp_path / "order.json", base, adapter)
    process = start("run", spec, tmp_path / "out")
    for event in events_of(process):
        if event["event"] == "phase" and event["phase"] == "checkpoint":
            break
    process.send_signal(signal.SIGTERM)
    assert end(process).last["code"] == Code.CANCELLED
    whole = carry_out("run", spec, tmp_path / "out")
    assert whole.status == 0, whole.stderr
    elsewhere = carry_out("run", spec, tmp_path / "elsewhere")
    assert whole.last["digest"] == elsewhere.last["digest"]


def test_quantized_weights_are_refused_with_the_remedy(base: Path, adapter: Path, tmp_path: Path) -> None:
    config = json.loads((base / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "compressed-tensors"}
    (base / "config.json").write_text(json.dumps(config))
    message = refused(
        carry_out("run", order(tmp_path / "order.json", base, adapter), tmp_path / "out"), Code.INCOMPATIBLE
    )
    assert "the base's weights are quantized (compressed-tensors)" in message
    assert "register the unquantized checkpoint as a base model and merge there" in message


def test_quantization_in_one_step_is_refused(base: Path, adapter: Path, tmp_path: Path) -> None:
    spec = order(tmp_path / "order.json", base, adapter, recipe={"version": 1, "quantization": "int8"})
    message = refused(carry_out("run", spec, tmp_path / "out"), Code.INCOMPATIBLE)
    assert "leave quantization at none" in message


def test_a_base_with_experts_is_refused_by_name(tmp_path: Path, adapter: Path) -> None:
    base = write_model(tmp_path / "experts", seed=1)
    config = json.loads((base / "config.json").read_text())
    config |= {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 8}
    (base / "config.json").write_text(json.dumps(config))
    spec = order(tmp_path / "order.json", base, adapter)
    message = refused(carry_out("run", spec, tmp_path / "out"), Code.INCOMPATIBLE)
    assert "MixtralForCausalLM has experts, whose checkpoints are not quantized or merged here" in message


def test_a_folder_without_an_adapter_is_a_bad_order(base: Path, tmp_path: Path) -> None:
    spec = order(tmp_path / "order.json", base, tmp_path)
    message = refused(carry_out("run", spec, tmp_path / "out"), Code.BAD_ORDER)
    assert "adapter must be a folder with adapter_config.json and adapter_model.safetensors" in message
