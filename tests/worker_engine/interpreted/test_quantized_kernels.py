"""Quantized checkpoints in the engine, weights as a GPU holds them, multiplied by the Triton kernels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels import selection
from kernels.quantization import Fp8Matrix, reference
from tests.worker_engine.conftest import EngineFactory, drain, request, tokens
from tests.worker_engine.forward_pass import load_adapter, prompts_for
from tests.worker_engine.graph_case import CPU, Run, build_engine, compare
from tests.worker_engine.quantized_case import write_quantized
from tests.worker_engine.tiny_adapter import make_adapter
from tests.worker_engine.tiny_model import write_model
from worker_engine.layers import linear_weight
from worker_engine.layers.linear_weight import TritonWeight
from worker_engine.models import load_config, load_model

pytestmark = pytest.mark.costly("Triton's interpreter")

SIZES: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "head_dim": 16}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("plain"), seed=9, num_hidden_layers=2, **SIZES)


@pytest.fixture(autouse=True)
def kernels() -> Iterator[None]:
    yield
    selection.select([], CPU)


@pytest.mark.parametrize("form", ["int4-32", "int4-32-zeros", "awq-32", "mxfp4"])
def test_tokens_are_those_of_the_weights_made_whole(
    plain: Path, tmp_path: Path, form: str, make_engine: EngineFactory
) -> None:
    """Alone and with adapters, DoRA's too, whose magnitudes come from the dequantized weights."""
    folder, whole = tmp_path / "quantized", tmp_path / "whole"
    write_quantized(plain, folder, whole, form)
    modules = ["q_proj", "v_proj", "o_proj", "gate_proj", "down_proj"]
    made: dict[str, Any] = {
        "lora": make_adapter(whole, tmp_path / "lora", seed=1, r=6, target_modules=modules),
        "dora": make_adapter(whole, tmp_path / "dora", seed=2, r=4, target_modules=modules, use_dora=True),
    }
    prompts = prompts_for([None, *made], 256)
    said = []
    for ops in ((), ("quantization",)):
        selection.select(ops, CPU)
        engine = make_engine(folder)
        for name, prompt in prompts.items():
            adapter = load_adapter(folder, made[name], tmp_path / "c") if name else None
            engine.add_request(request(str(name), prompt, 10), adapter)
        deltas = drain(engine)
        said.append({name: tokens(deltas[str(name)]) for name in prompts})
        engine.close()
    assert said[0] == said[1]
    assert len({tuple(ids) for ids in said[0].values()}) == 3


def test_fp8_is_what_its_specification_says(
    plain: Path, tmp_path: Path, make_engine: EngineFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inputs are rounded, too: the same tokens as by the reference in the kernels' place."""
    folder = tmp_path / "quantized"
    write_quantized(plain, folder, tmp_path / "whole", "fp8")
    adapter = make_adapter(
        tmp_path / "whole", tmp_path / "lora", seed=1, r=6, target_modules=["q_proj", "down_proj"]
    )
    prompts = prompts_for([None, "lora"], 256)
    selection.select(["quantization"], CPU)
    said = []
    for specified in (True, False):
        with monkeypatch.context() as patch:
            if specified:
                patch.setattr(linear_weight, "quantized_linear", as_specified)
            engine = make_engine(folder)
            for name, prompt in prompts.items():
                loaded = load_adapter(folder, adapter, tmp_path / "c") if name else None
                engine.add_request(request(str(name), prompt, 10), loaded)
            deltas = drain(engine)
            said.append({name: tokens(deltas[str(name)]) for name in prompts})
            engine.close()
    assert said[0] == said[1]
    assert said[0][None] != said[0]["lora"]


def as_specified(
    x: torch.Tensor, matrix: Fp8Matrix, bias: torch.Tensor | None, residual: torch.Tensor | None
) -> torch.Tensor:
    assert isinstance(matrix, Fp8Matrix)
    return reference.fp8_linear(x, matrix.weight(), bias, residual)


def test_weights_stay_packed_and_what_has_no_kernel_is_whole(plain: Path, tmp_path: Path) -> None:
    selection.select(["quantization"], CPU)
    for form in ("int4-32", "int8", "fp8", "mxfp4"):
        folder = tmp_path / form
        write_quantized(plain, folder, tmp_path / f"whole-{form}", form, skip=("layers.1.mlp.down_proj",))
        model = load_model(folder, load_config(folder), max_model_len=64, dtype=torch.float32, device=CPU)
        packed = [
            {name for name, linear in layer.items() if isinstance(linear.packed, TritonWeight)}
            for layer in model.linears
        ]
        every = {"qkv", "o", "gate_up", "down"}
        assert packed == ([every, every - {"down"}] if form != "int8" else [set(), set()])
        if form == "int4-32":
            for linear in model.linears[0].values():
                assert isinstance(linear.packed, TritonWeight)
                assert linear.packed.device_matrix.nbytes <= 0.29 * 2 * linear.weight.numel()


def test_replayed_steps(plain: Path, tmp_path: Path) -> None:
    """Kernels of captured CUDA graphs give the same results as eager ones."""
    folder = tmp_path / "quantized"
    write_quantized(plain, folder, tmp_path / "whole", "int4-32-zeros")
    eager = Run(build_engine(folder, replays=False, max_num_seqs=3))
    eager.serve([None], 4, prompt=9, out=8)
    selection.select(["quantization", "lora_graph", "attention_graph"], CPU)
    replayed = Run(build_engine(folder, replays=True, max_num_seqs=3))
    replayed.serve([None], 4, prompt=9, out=8)
    compare(eager, replayed)
    assert replayed.engine.graphs is not None
    assert replayed.engine.graphs.num_replays > 3
