"""What is damaged, foreign or not served is refused by name, and everyone else is served as before."""

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

from tests.worker_engine.conftest import EngineFactory, drain, request, tokens
from tests.worker_engine.tiny_adapter import adapter_ref
from worker_engine.adapters.loader import AdapterLoader
from worker_engine.errors import AdapterRefused
from worker_engine.protocol import AdapterRef

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
Q = "base_model.model.model.layers.1.self_attn.q_proj"
A, B = f"{Q}.lora_A.weight", f"{Q}.lora_B.weight"
Damage = Callable[[Path], None]


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
    "nan": (tensors(**{B: one(float("nan"))}), f"{B} holds NaN or infinite"),
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
    "matches-nothing": (
        lambda folder: save_file({}, folder / WEIGHTS),
        "holds no LoRA tensor",
    ),
    "not-targeted": (change(target_modules=["v_proj"]), "target_modules does not name .*q_proj"),
    "nowhere": (change(target_modules=["q_proj", "v_proj", "w_proj"]), "targets 'w_proj', but no tensor"),
    "other-layers": (change(layers_to_transform=[0, 2]), "layers.1.self_attn.q_proj, so PEFT ignores it"),
    "excluded": (change(exclude_modules=r".*\.1\..*"), "layers.1.self_attn.q_proj, so PEFT ignores it"),
    "backtracking": (change(target_modules=r"(.*)\1"), "target_modules uses groupref"),
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


def test_an_embedding_that_is_not_the_bases_is_refused(
    loader: AdapterLoader, tiny_adapters: dict[str, Path], tmp_path: Path
) -> None:
    """PEFT saves the base's embedding beside LoRA on it: another one would have to serve everybody."""
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
