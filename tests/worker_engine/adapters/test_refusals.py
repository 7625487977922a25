"""Damaged, foreign or unsupported adapters are refused by name, and other requests are unaffected."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from contracts.adapters.config import LoraConfig
from contracts.adapters.reference import AdapterRef
from contracts.strict_json import find_fault
from tests.worker_engine.conftest import EngineFactory, drain, request, tokens
from tests.worker_engine.tiny_adapter import adapter_ref
from worker_engine.adapters.loader import AdapterLoader
from worker_engine.errors import AdapterRefused

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
Q = "base_model.model.model.layers.1.self_attn.q_proj"
A, B = f"{Q}.lora_A.weight", f"{Q}.lora_B.weight"
Damage = Callable[[Path], object]


def change(**fields: Any) -> Damage:
    def apply(folder: Path) -> None:
        config = json.loads((folder / CONFIG).read_text())
        (folder / CONFIG).write_text(json.dumps(config | fields))

    return apply


def tensors(**changes: Any) -> Damage:
    """Each is a tensor or what makes one of the former; None leaves it out."""

    def apply(folder: Path) -> None:
        held = load_file(folder / WEIGHTS)
        for name, item in changes.items():
            made = item(held[name]) if callable(item) else item
            held.pop(name, None)
            if made is not None:
                held[name] = made.contiguous()
        save_file(held, folder / WEIGHTS)

    return apply


def raw(edit: Callable[[bytes], bytes]) -> Damage:
    def apply(folder: Path) -> None:
        (folder / WEIGHTS).write_bytes(edit((folder / WEIGHTS).read_bytes()))

    return apply


def one(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def apply(tensor: torch.Tensor) -> torch.Tensor:
        tensor[-1, -1] = value
        return tensor

    return apply


REFUSALS = {
    "truncated": (raw(lambda data: data[:-3]), "is not a safetensors file"),
    "no-header": (raw(lambda data: data[:6]), "is not a safetensors file"),
    "huge-header": (raw(lambda data: b"\xff" * 8 + data[8:]), "is not a safetensors file"),
    "pickle": (raw(lambda data: pickle.dumps({"a": 1})), "is not a safetensors file"),
    "nan-tensor": (tensors(**{B: one(float("nan"))}), f"{B} holds NaN or infinite"),
    "infinite": (tensors(**{A: one(float("-inf"))}), f"{A} holds NaN or infinite"),
    "overflows-once-scaled": (tensors(**{B: one(3e38)}), "weights of .*q_proj overflow"),
    "shape": (tensors(**{A: torch.zeros(4, 71)}), rf"{A} has shape \[4, 71\], expected \[4, 72\]"),
    "rank": (change(r=5), r"lora_A.weight has shape \[4, 72\], expected \[5, 72\]"),
    "integers": (tensors(**{A: torch.zeros(4, 72, dtype=torch.int16)}), f"{A} is torch.int16"),
    "double": (tensors(**{A: torch.zeros(4, 72, dtype=torch.float64)}), f"{A} is torch.float64"),
    "half-a-pair": (tensors(**{B: None}), f"{B} is missing"),
    "another-model": (
        tensors(**{A.replace("layers.1", "layers.7"): torch.zeros(4, 72)}),
        "base model has no module model.layers.7",
    ),
    "not-a-lora-name": (tensors(extra=torch.zeros(1)), "tensor extra is not served"),
    "matches-nothing": (lambda folder: save_file({}, folder / WEIGHTS), "holds no LoRA tensor"),
    "not-targeted": (change(target_modules=["v_proj"]), "target_modules does not name .*q_proj"),
    "nowhere": (change(target_modules=["q_proj", "v_proj", "o_proj"]), "targets 'o_proj', but no tensor"),
    "none-excluded": (
        change(target_modules=["q_proj", "v_proj", "o_proj"], exclude_modules=r".*\.0\..*o_proj"),
        "targets 'o_proj', but no tensor",
    ),
    "other-layers": (change(layers_to_transform=[0, 2]), "layers.1.self_attn.q_proj, so PEFT ignores it"),
    "excluded": (change(exclude_modules=r".*\.1\..*"), "layers.1.self_attn.q_proj, so PEFT ignores it"),
    "many-saved": (change(modules_to_save=["x"] * 65), "modules_to_save has more than 64 names"),
    "many-expressions": (change(rank_pattern={f"{i}.*": 4 for i in range(65)}), "more than 64 regular"),
    "no-expression": (change(target_modules="(q_proj"), "target_modules is not a regular expression"),
    "twice": (tensors(**{A.replace(".weight", ".default.weight"): torch.zeros(4, 72)}), "in the file twice"),
    "nan": (change(lora_alpha=float("nan")), "holds NaN at lora_alpha"),
    "nan-within": (change(alpha_pattern={"q_proj": float("inf")}), "number at alpha_pattern.q_proj"),
    "nul": (change(target_modules=["q_proj", "v_proj", "\0"]), "a NUL character at target_modules.2"),
    "surrogate": (change(target_modules=["q_proj", "v_proj", "\ud800"]), "pair at target_modules.2"),
    "nul-in-a-name": (change(**{"a\0": None}), "holds a NUL character, which"),
    "mlx": (
        lambda folder: (folder / CONFIG).write_text(json.dumps({"lora_parameters": {"rank": 8}})),
        "saved by mlx-lm.*transpose both",
    ),
    "mlx-tensors": (
        tensors(**{"model.layers.0.self_attn.q_proj.lora_a": torch.zeros(72, 4)}),
        "is not PEFT's: the adapter was saved by mlx-lm",
    ),
    "loftq": (change(init_lora_weights="loftq"), "'loftq' changed the base's weights.*registered"),
    "resized": (
        tensors(**{"base_model.model.model.embed_tokens.weight": torch.zeros(260, 72)}),
        "modules_to_save does not name model.embed_tokens; PEFT saves it unasked.*trainable_token_indices",
    ),
    "resized-and-named": (
        lambda folder: (
            change(modules_to_save=["embed_tokens"])(folder),
            tensors(**{"base_model.model.model.embed_tokens.weight": torch.zeros(260, 72)})(folder),
        ),
        "a vocabulary of 260 tokens, the base model has 256.*trainable_token_indices",
    ),
    "look-behind": (change(rank_pattern={"(?<=q)_proj": 4}), "cannot be matched in linear time"),
    "dora-without": (change(use_dora=True), "_proj.lora_magnitude_vector is missing"),
    "whole-linear": (
        tensors(**{f"{Q.replace('q_proj', 'k_proj')}.weight": torch.zeros(24, 72)}),
        "modules_to_save does not name",
    ),
    "no-bias-there": (tensors(**{f"{Q}.base_layer.bias": torch.zeros(72)}), "sets bias to 'none'"),
    "token-out-of-range": (change(trainable_token_indices=[999]), "trainable_token_indices names"),
    "tokens-twice": (change(trainable_token_indices=[1, 1]), "a list of different tokens"),
    **{
        name: (change(**{name: value}), f"{name}.*(not served|must be|alters)")
        for name, value in {
            "fan_in_fan_out": True,
            "layer_replication": [[0, 2], [1, 3]],
            "use_qalora": True,
            "arrow_config": {"top_k": 3},
            "alora_invocation_tokens": [1, 2],
            "target_parameters": ["experts.gate_up_proj"],
            "megatron_config": {"a": 1},
            "task_type": "SEQ_CLS",
            "peft_type": "LOHA",
            "bias": "some",
            "init_lora_weights": "pissa_niter_4",
            "something_new": 1,
        }.items()
    },
}


def rename(old: str, new: str) -> Damage:
    def apply(folder: Path) -> None:
        held = load_file(folder / WEIGHTS)
        save_file({name.replace(old, new): tensor for name, tensor in held.items()}, folder / WEIGHTS)

    return apply


def add_trainer_files(folder: Path) -> None:
    for name in ("training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth"):
        (folder / name).write_bytes(b"x")


SERVED: dict[str, Damage] = {
    "trainer's files": add_trainer_files,
    "all of a name is excluded": change(
        target_modules=["q_proj", "v_proj", "o_proj", "down_proj"], exclude_modules=["o_proj", "down_proj"]
    ),
    "names that the base lacks": change(target_modules=["q_proj", "v_proj", "gate_up_proj", "w1"]),
    "whole paths": change(
        target_modules=[f"model.layers.{i}.self_attn.{m}_proj" for i in range(3) for m in ("q", "v")]
    ),
    "a saved module that the base lacks": change(modules_to_save=["classifier"]),
    "lookahead": change(target_modules=r"^(?!.*visual).*(?:q_proj|v_proj)$"),
    "a backreference": change(target_modules=r"(.*)\.(q|v)_\1?proj"),
    "lookahead in exclude_modules": change(exclude_modules=r"(?!.*[qv]_proj).*"),
    "an expression beyond the bound": change(target_modules="|".join([r".*\.[qv]_proj"] * 500)),
    "the adapter's name in keys": rename(".weight", ".default.weight"),
    "NaN in a field of training": change(lora_dropout=float("nan"), eva_config={"rho": float("inf")}),
    "NUL in a field of training": change(base_model_name_or_path="a\0b\ud800"),
    "VeLoRA's projection": tensors(**{f"{Q}.lora_velora_embed": torch.zeros(2)}),
    "tied embeddings without any": change(ensure_weight_tying=True),
}
"""Changes that PEFT too serves as the adapter without them (tests/parity, test_adapter_configs.py)."""


@pytest.fixture
def loader(tiny_model: Path, tmp_path: Path) -> AdapterLoader:
    return AdapterLoader(tiny_model, tmp_path / "c", dtype=torch.float32, device=torch.device("cpu"))


@pytest.mark.parametrize("case", REFUSALS)
def test_it_is_refused_by_name(
    case: str, loader: AdapterLoader, tiny_adapters: dict[str, Path], tmp_path: Path
) -> None:
    damage, reason = REFUSALS[case]
    folder = shutil.copytree(tiny_adapters["plain"], tmp_path / "a")
    loader.load(adapter_ref(folder))
    damage(folder)
    with pytest.raises(AdapterRefused, match=reason):
        loader.load(adapter_ref(folder))


@pytest.mark.parametrize("case", SERVED)
def test_it_is_served_as_without(
    case: str, loader: AdapterLoader, tiny_adapters: dict[str, Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny_adapters["plain"], tmp_path / "a")
    expected = loader.load(adapter_ref(folder))
    SERVED[case](folder)
    adapter = loader.load(adapter_ref(folder))
    assert [layer.keys() for layer in adapter.layers] == [layer.keys() for layer in expected.layers]
    for layer, other in zip(adapter.layers, expected.layers, strict=True):
        for name, pair in layer.items():
            assert torch.equal(pair.a, other[name].a)
            assert torch.equal(pair.b, other[name].b)
    config = LoraConfig.from_bytes((folder / CONFIG).read_bytes())
    assert find_fault(dict(config.raw)) is None


def test_an_embedding_that_is_not_the_bases_is_refused(
    loader: AdapterLoader, tiny_adapters: dict[str, Path], tmp_path: Path
) -> None:
    """PEFT saves the base's embedding with LoRA on it: a different one would apply to every request."""
    folder = shutil.copytree(tiny_adapters["plain"], tmp_path / "a")
    name = "base_model.model.model.embed_tokens.base_layer.weight"
    tensors(**{name: loader._base.get("model.embed_tokens.weight")})(folder)
    loader.load(adapter_ref(folder))
    tensors(**{name: lambda tensor: tensor + 0.01})(folder)
    with pytest.raises(AdapterRefused, match=f"{name} is not the base model's"):
        loader.load(adapter_ref(folder))


def test_a_rank_above_the_references_is_refused(
    loader: AdapterLoader, tiny_adapters: dict[str, Path]
) -> None:
    ref = adapter_ref(tiny_adapters["plain"])
    with pytest.raises(AdapterRefused, match="has rank 4, its reference says 3"):
        loader.load(AdapterRef(ref.name, ref.uri, ref.sha256, 3))


def test_others_are_served_meanwhile(
    loader: AdapterLoader,
    tiny_model: Path,
    tiny_adapters: dict[str, Path],
    make_engine: EngineFactory,
    tmp_path: Path,
) -> None:
    engine, adapter = make_engine(tiny_model), loader.load(adapter_ref(tiny_adapters["all"]))
    engine.add_request(request("alone", range(20), 30), adapter)
    expected = tokens(drain(engine)["alone"])
    engine.add_request(request("again", range(20), 30), adapter)
    found: list[int] = []
    for index, (damage, _) in enumerate(REFUSALS.values()):
        folder = shutil.copytree(tiny_adapters["plain"], tmp_path / str(index))
        damage(folder)
        with pytest.raises(AdapterRefused):
            loader.load(adapter_ref(folder))
        found += [token for delta in engine.step() for token in delta.token_ids]
    assert found == expected
