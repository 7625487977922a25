"""Quantized checkpoints: what stays quantized in memory, what is refused, what is packed once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from safetensors.torch import load_file, save_file

from kernels import native
from kernels.quantization import prepare
from kernels.quantization.formats import unpack_columns
from kernels.quantization.quantize import round_to_nearest
from tests.worker_engine.conftest import EngineFactory
from tests.worker_engine.forward_pass import draw, load, logits
from tests.worker_engine.quantized_case import FORMS, compressed, config_of, weights_of, write_quantized
from tests.worker_engine.tiny_model import write_model
from worker_engine.errors import CheckpointError, ConfigError
from worker_engine.layers.linear_weight import LinearWeight, NativeQuantizedWeight, packed_weight
from worker_engine.model_runner import choose_dtype
from worker_engine.models import load_config, load_model
from worker_engine.models.decoder import Decoder

needed = pytest.mark.skipif(native.LIBRARY is None, reason="no native loops on this machine")
CPU: Final = torch.device("cpu")
ROOT: Final = Path(__file__).resolve().parents[2]
SIZES: Final = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4, "head_dim": 32}
LENGTHS: Final = (40, 7, 1)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("plain"), seed=9, dtype="bfloat16", **SIZES)


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def quantized(plain: Path, tmp_path: Path, form: str, **options: Any) -> tuple[Path, Path]:
    folder, whole = tmp_path / "quantized", tmp_path / "whole"
    write_quantized(plain, folder, whole, form, **options)
    return folder, whole


def linear_weights(model: Decoder) -> list[LinearWeight]:
    return [linear.packed for layer in model.linears for linear in layer.values()]


@needed
@pytest.mark.parametrize("form", [form for form in FORMS if form not in ("fp8", "mxfp4")])
def test_weights_stay_quantized_in_memory(plain: Path, tmp_path: Path, form: str) -> None:
    folder, _ = quantized(plain, tmp_path, form)
    model, _ = load(folder, torch.bfloat16)
    whole, _ = load(plain, torch.bfloat16)
    sizes = [
        sum(part.matrix.nbytes for part in linear_weights(each) if part.matrix is not None)
        for each in (model, whole)
    ]
    assert all(isinstance(part, NativeQuantizedWeight) for part in linear_weights(model))
    assert sizes[0] <= sizes[1] * (0.52 if form.startswith("int8") else 0.33)


@needed
@pytest.mark.parametrize("form", ["int4-64", "int4-128-zeros", "int8"])
def test_the_stack_takes_quantized_layers(plain: Path, tmp_path: Path, form: str) -> None:
    folder, _ = quantized(plain, tmp_path, form)
    model, kv = load(folder, torch.bfloat16)
    assert model._stack is not None
    assert model._stack._possible
    together = torch.cat(logits(model, kv, draw(LENGTHS), 5))
    assert model._stack._built is not None
    model, kv = load(folder, torch.bfloat16)
    model._stack = None
    assert torch.equal(torch.cat(logits(model, kv, draw(LENGTHS), 5)), together)


@needed
@pytest.mark.parametrize("form", ["int4-128-zeros", "int8", "awq-64"])
def test_packed_once_and_mapped_after(plain: Path, tmp_path: Path, form: str) -> None:
    folder, _ = quantized(plain, tmp_path, form)
    config, cache = load_config(folder), tmp_path / "packed"

    def loaded(packed_in: Path | None) -> list[torch.Tensor]:
        model = load_model(
            folder, config, max_model_len=64, dtype=torch.bfloat16, device=CPU, packed_in=packed_in
        )
        matrices = [part.matrix for part in linear_weights(model)]
        assert all(matrix is not None and matrix.bits < 16 for matrix in matrices)
        parts = [(m.codes, m.scales, m.zeros) for m in matrices if m is not None]
        return [part for each in parts for part in each if part is not None]

    own, first, again = loaded(None), loaded(cache), loaded(cache)
    (file,) = cache.iterdir()
    stored = {tensor.data_ptr() for tensor in load_file(file).values()}
    assert stored.isdisjoint(tensor.data_ptr() for tensor in own)
    for one, two, three in zip(own, first, again, strict=True):
        assert torch.equal(one, two)
        assert torch.equal(one, three)
    names = set(load_file(file))
    assert "model.layers.0.qkv.codes" in names
    assert ("model.layers.0.qkv.zeros" in names) is (form != "int8")


def test_auto_computes_in_bf16_where_codes_are_multiplied(plain: Path, tmp_path: Path) -> None:
    folder, _ = quantized(plain, tmp_path, "awq-64")
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"dtype": "float16"}))
    expected = torch.float32 if native.LIBRARY is None else torch.bfloat16
    assert choose_dtype("auto", load_config(folder), CPU) is expected


def test_merging_is_refused(plain: Path, tmp_path: Path, make_engine: EngineFactory) -> None:
    folder, _ = quantized(plain, tmp_path, "int8")
    with pytest.raises(ConfigError, match="--merge-adapter auto needs unquantized weights"):
        make_engine(folder, merge_adapter="auto")


def _group(**changes: Any) -> dict[str, Any]:
    return compressed(weights_of(64, symmetric=True, **changes))


def _fp8(weights: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Any]:
    config = config_of("fp8")
    group = config["config_groups"]["group_0"]
    group["weights"] |= weights
    group["input_activations"] |= inputs
    return config


def _mxfp4(**changes: Any) -> dict[str, Any]:
    values = {"type": "float", "scale_dtype": "torch.uint8"} | changes
    return compressed(weights_of(32, symmetric=True, **values), "mxfp4-pack-quantized")


REFUSED: Final[dict[str, tuple[dict[str, Any], str]]] = {
    "method": ({"quant_method": "gptq", "bits": 4}, "bits 4 is not served"),
    "no-method": ({"bits": 4}, "quant_method is missing"),
    "format": (compressed(weights_of(64, symmetric=True), "marlin-24"), "format 'marlin-24' is not served"),
    "mxfp4-group": (_mxfp4(group_size=16), "group_size 16 is not served, only 32"),
    "mxfp4-scales": (
        _mxfp4(scale_dtype="torch.float8_e4m3fn"),
        "scale_dtype .* is not served, only 'torch.uint8'",
    ),
    "mxfp4-ints": (_mxfp4(type="int"), "type 'int' is not served, only 'float'"),
    "mxfp4-inputs": (
        compressed(weights_of(32, symmetric=True), "mxfp4-pack-quantized", input_activations={"num_bits": 4}),
        "input_activations .* is not served: only weights",
    ),
    "fp8-ints": (
        compressed(weights_of(64, symmetric=True), "float-quantized"),
        "input_activations is missing",
    ),
    "fp8-weights": (_fp8({"type": "int"}, {}), "type 'int' is not served, only 'float'"),
    "fp8-tensor": (_fp8({"strategy": "tensor"}, {}), "strategy 'tensor'"),
    "fp8-static": (_fp8({}, {"dynamic": False}), "dynamic False is not served, only True"),
    "fp8-inputs-by-tensor": (
        _fp8({}, {"strategy": "tensor"}),
        "strategy 'tensor' is not served, only 'token'",
    ),
    "fp8-inputs-int": (_fp8({}, {"type": "int"}), "type 'int' is not served"),
    "bits": (_group(num_bits=3), "num_bits 3 with strategy 'group'"),
    "group": (_group(group_size=16), "group_size 16 is not served, only 32, 64, 128"),
    "strategy": (_group(strategy="tensor"), "strategy 'tensor'"),
    "float": (_group(type="float"), "type 'float' is not served"),
    "order": (_group(actorder="group"), "actorder is not served"),
    "asymmetric-8": (compressed(weights_of(0, symmetric=False, bits=8)), "symmetric false is not served"),
    "activations": (
        compressed(weights_of(0, symmetric=True, bits=8), input_activations={"num_bits": 8}),
        "input_activations .* is not served: only weights",
    ),
    "kv-cache": (_group() | {"kv_cache_scheme": {"num_bits": 8}}, "kv_cache_scheme"),
    "transform": (_group() | {"transform_config": {"r1": {}}}, "transform_config"),
    "sparsity": (_group() | {"sparsity_config": {"format": "sparse-24"}}, "sparsity_config: format"),
    "unknown": (_group() | {"rotation": "hadamard"}, "rotation is not served"),
    "awq-bits": (config_of("awq-64") | {"bits": 8}, "bits 8 is not served"),
    "awq-zeros": (config_of("awq-64") | {"zero_point": False}, "zero_point false is not served"),
    "awq-version": (config_of("awq-64") | {"version": "gemv"}, "version 'gemv' is not served"),
    "awq-group": (config_of("awq-64") | {"group_size": -1}, "group_size -1 is not served"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_served_is_refused_by_its_field(case: str, plain: Path, tmp_path: Path) -> None:
    config, message = REFUSED[case]
    values = json.loads((plain / "config.json").read_text()) | {"quantization_config": config}
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(CheckpointError, match=rf"config.json: quantization_config.*{message}"):
        load_config(tmp_path)


def _changed(folder: Path, name: str, tensor: torch.Tensor | None) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors.pop(name, None)
    save_file(tensors | ({} if tensor is None else {name: tensor}), path, metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("form", "part", "tensor", "message"),
    [
        ("int4-64", "weight_scale", None, "no tensor .*q_proj.weight_scale"),
        ("int4-64", "weight_scale", torch.ones(128, 4), r"shape \[128, 4\], expected \[128, 2\]"),
        ("int4-64", "weight_packed", torch.ones(128, 16), "float32, expected torch.int32"),
        ("int4-64", "weight_g_idx", torch.zeros(128, dtype=torch.int32), "weight_g_idx"),
        ("int4-32-zeros", "weight_zero_point", None, "no tensor .*weight_zero_point"),
        ("awq-64", "qzeros", None, "no tensor .*qzeros"),
        ("int8-plain", "weight", torch.ones(128, 128), "expected torch.int8"),
        ("fp8", "weight", torch.ones(128, 128, dtype=torch.int8), "expected torch.float8_e4m3fn"),
        ("mxfp4", "weight_packed", torch.ones(128, 128, dtype=torch.uint8), r"expected \[128, 64\]"),
        ("mxfp4", "weight_scale", torch.ones(128, 4), "float32, expected torch.uint8"),
        ("fp8", "weight_scale", torch.ones(128), r"shape \[128\], expected \[128, 1\]"),
    ],
)
def test_parts_that_are_missing_or_wrong_are_named(
    plain: Path, tmp_path: Path, form: str, part: str, tensor: torch.Tensor | None, message: str
) -> None:
    folder, _ = quantized(plain, tmp_path, form)
    _changed(folder, f"model.layers.0.self_attn.q_proj.{part}", tensor)
    with pytest.raises(CheckpointError, match=message):
        load(folder, torch.bfloat16)


def test_a_module_without_a_scheme_is_named(plain: Path, tmp_path: Path) -> None:
    folder, _ = quantized(plain, tmp_path, "int4-64")
    path = folder / "config.json"
    values = json.loads(path.read_text())
    values["quantization_config"]["config_groups"]["group_0"]["targets"] = ["re:.*self_attn.*"]
    path.write_text(json.dumps(values))
    with pytest.raises(CheckpointError, match=r"no group of quantization_config targets model\.layers.*mlp"):
        load(folder)


def test_zeros_of_older_files(plain: Path, tmp_path: Path) -> None:
    """int8 [out, groups], less 8."""
    folder, _ = quantized(plain, tmp_path, "int4-32-zeros")
    before, kv = load(folder)
    first = torch.cat(logits(before, kv, draw(LENGTHS), 64))
    path = folder / "model.safetensors"
    tensors = load_file(path)
    for name, tensor in list(tensors.items()):
        if name.endswith("weight_zero_point"):
            out = int(tensors[name.replace("zero_point", "shape")][0])
            tensors[name] = (unpack_columns(tensor, 4, out).short() - 8).to(torch.int8)
    save_file(tensors, path, metadata={"format": "pt"})
    model, kv = load(folder)
    assert torch.equal(torch.cat(logits(model, kv, draw(LENGTHS), 64)), first)


@needed
def test_a_layer_made_whole_again() -> None:
    """A quantized layer's `weight` is the matrix that its product uses."""
    weight = round_to_nearest(torch.randn(48, 64), bits=4, group=32, zeros=True)
    matrix = prepare(weight, torch.bfloat16)
    assert matrix is not None
    assert torch.equal(packed_weight(matrix).dense(), weight.dequantize().bfloat16())


def test_gptqs_inputs_out_of_order_are_refused_by_the_tensors_name(plain: Path, tmp_path: Path) -> None:
    folder, whole = tmp_path / "quantized", tmp_path / "whole"
    write_quantized(plain, folder, whole, "gptq-64")
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.0.self_attn.q_proj.g_idx"
    save_file(tensors | {name: torch.arange(128, dtype=torch.int32) // 64}, folder / "model.safetensors")
    load(folder, torch.float32)
    save_file(tensors | {name: torch.arange(128, dtype=torch.int32) % 2}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=rf"tensor {name}: inputs out of order are not served"):
        load(folder, torch.float32)
