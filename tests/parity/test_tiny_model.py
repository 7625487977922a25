"""The hand-written tiny checkpoints and adapters are those that transformers and PEFT write and load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from tests.parity import references
from tests.parity.conftest import write_peft_adapter
from tests.worker_engine.forward_pass import SIZES, WINDOW, Forward
from tests.worker_engine.tiny_adapter import ADAPTER_OPTIONS, make_adapter
from tests.worker_engine.tiny_model import (
    TINY,
    byte_tokenizer,
    family_config,
    random_weights,
    randomize_vectors,
    tiny_config,
    write_checkpoint,
)

FAMILIES: Final[dict[str, tuple[str, str]]] = {
    "llama": ("LlamaConfig", "LlamaForCausalLM"),
    "mistral": ("MistralConfig", "MistralForCausalLM"),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM"),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM"),
    "gemma3_text": ("Gemma3TextConfig", "Gemma3ForCausalLM"),
}
CASES: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "tiny": ("llama", dict(TINY)),
    "llama-tied": ("llama", SIZES | {"tie_word_embeddings": True}),
    "llama-biases": ("llama", SIZES | {"head_dim": 32, "attention_bias": True, "mlp_bias": True}),
    "mistral": ("mistral", SIZES | {"head_dim": 32, "sliding_window": WINDOW}),
    "qwen2": ("qwen2", SIZES),
    "qwen2-window": (
        "qwen2",
        SIZES | {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 2},
    ),
    "qwen3": ("qwen3", SIZES | {"head_dim": 32}),
    "qwen3-biases": ("qwen3", SIZES | {"head_dim": 64, "attention_bias": True}),
    "gemma3": ("gemma3_text", SIZES | {"head_dim": 32, "num_hidden_layers": 7, "sliding_window": WINDOW}),
    "gemma3-tied": (
        "gemma3_text",
        SIZES | {"head_dim": 32, "query_pre_attn_scalar": 24, "tie_word_embeddings": True},
    ),
}
ADAPTERS: Final[dict[str, dict[str, Any]]] = {
    name: dict(values) for name, values in ADAPTER_OPTIONS.items()
} | {
    "every-linear": {"r": 8, "lora_alpha": 4, "target_modules": "all-linear"},
    "defaults": {"target_modules": ["q_proj"]},
    "dora": {"r": 4, "target_modules": ["q_proj", "o_proj"], "use_dora": True},
    "head": {"r": 4, "lora_alpha": 2, "target_modules": ["q_proj", "down_proj", "lm_head"]},
}


def layout(folder: Path, pattern: str) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Shape and dtype of every tensor in the files that `pattern` names; their metadata must be PyTorch's."""
    found: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
    for path in sorted(folder.glob(pattern)):
        with safe_open(path, "pt") as file:
            assert file.metadata() == {"format": "pt"}
        found |= {name: (tuple(value.shape), value.dtype) for name, value in load_file(path).items()}
    return found


def fields(folder: Path, name: str) -> dict[str, Any]:
    """A configuration file without the version of the library that wrote it."""
    values: dict[str, Any] = json.loads((folder / name).read_text())
    for version in ("transformers_version", "peft_version"):
        values.pop(version, None)
    return values


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", CASES)
def test_a_checkpoint_is_the_one_that_transformers_writes(case: str, dtype: str, tmp_path: Path) -> None:
    family, changes = CASES[case]
    config_type, model_type = (getattr(references, name) for name in FAMILIES[family])
    config = family_config(family, **changes)
    ours = write_checkpoint(tmp_path / "ours", config, random_weights(config, seed=1), dtype=dtype)
    model = model_type(config_type(**changes)).to(getattr(torch, dtype))
    model.save_pretrained(tmp_path / "theirs")
    assert fields(ours, "config.json") == fields(tmp_path / "theirs", "config.json")
    assert layout(ours, "*.safetensors") == layout(tmp_path / "theirs", "*.safetensors")


@pytest.mark.parametrize("case", CASES)
def test_transformers_loads_every_weight_of_a_checkpoint(case: str, tmp_path: Path) -> None:
    """And computes the same hidden states and logits as the worker's model."""
    family, changes = CASES[case]
    config = family_config(family, **changes)
    weights = random_weights(config, seed=1)
    gain = 0.0 if family == "gemma3_text" else 1.0
    randomize_vectors(weights, seed=2, scale=0.4, gain=gain, bias=0.0)
    folder = write_checkpoint(tmp_path, config, weights)
    model_type = getattr(references, FAMILIES[family][1])
    model, report = model_type.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert not any(report.values()), report
    prompt = byte_tokenizer().encode("h\u00e9llo, a prompt that is longer than the window is").ids
    with torch.inference_mode():
        output = model.eval()(torch.tensor([prompt]), output_hidden_states=True)
    hidden, logits = Forward.load(folder, None)(prompt)
    torch.testing.assert_close(hidden, output.hidden_states[-1][0], rtol=0, atol=1e-4)
    torch.testing.assert_close(logits, output.logits[0], rtol=0, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_shards_hold_the_weights_rounded_as_torch_rounds(dtype: str, tmp_path: Path) -> None:
    config = tiny_config()
    weights = random_weights(config, seed=3)
    folder = write_checkpoint(tmp_path, config, weights, dtype=dtype, shard_bytes=100_000)
    assert len(list(folder.glob("model-*.safetensors"))) > 2
    assert max(path.stat().st_size for path in folder.glob("*.safetensors")) < 110_000
    loaded = references.LlamaForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).state_dict()
    assert loaded.keys() == weights.keys()
    for name, value in weights.items():
        assert torch.equal(loaded[name], torch.from_numpy(value).to(getattr(torch, dtype))), name


@pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers`:UserWarning")
@pytest.mark.parametrize("case", ADAPTERS)
def test_an_adapter_is_the_one_that_peft_writes(case: str, tiny_model: Path, tmp_path: Path) -> None:
    ours = make_adapter(tiny_model, tmp_path / "ours", seed=1, **ADAPTERS[case])
    theirs = write_peft_adapter(tiny_model, tmp_path / "theirs", seed=1, **ADAPTERS[case])
    assert layout(ours, "*.safetensors") == layout(theirs, "*.safetensors")
    found, wanted = (fields(folder, "adapter_config.json") for folder in (ours, theirs))
    for values in (found, wanted):
        values["target_modules"] = set(values["target_modules"])
    assert found == wanted
    ranges = [
        {name: value.abs().max() for name, value in load_file(folder / "adapter_model.safetensors").items()}
        for folder in (ours, theirs)
    ]
    for name, highest in ranges[0].items():
        assert highest == pytest.approx(float(ranges[1][name]), rel=0.5), name


@pytest.mark.parametrize("case", ADAPTERS)
def test_peft_loads_an_adapter(case: str, tiny_model: Path, tmp_path: Path) -> None:
    """Every tensor arrives, and logits are those of the weights with plain LoRA added."""
    folder = make_adapter(tiny_model, tmp_path, seed=1, **ADAPTERS[case])
    base: Any = references.LlamaForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    prompt = byte_tokenizer().encode("some prompt").ids
    with torch.inference_mode():
        before = base(torch.tensor([prompt])).logits[0].clone()
        model: Any = references.PeftModel.from_pretrained(base, str(folder)).eval()
        found = model(torch.tensor([prompt])).logits[0]
    loaded = {name.replace(".default", ""): value for name, value in model.state_dict().items()}
    for name, value in load_file(folder / "adapter_model.safetensors").items():
        stored = loaded.get(name, loaded.get(f"{name}.weight"))
        assert stored is not None, name
        assert torch.equal(stored, value), name
    assert (found - before).abs().max() > 1e-2, "the adapter changes nothing"
    if case != "dora":
        wanted = Forward.load(tiny_model, folder)(prompt)[1]
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4)
