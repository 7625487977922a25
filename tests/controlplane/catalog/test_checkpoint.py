"""Base models' checkpoints are read, and broken ones refused with the file and the fault."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from controlplane.catalog.models import BaseModel
from controlplane.catalog.services import base_model_register
from controlplane.errors import InvalidInputError
from tests.controlplane.conftest import safetensors, write_checkpoint

pytestmark = pytest.mark.django_db
SHARD = "model-1.safetensors"


def cut(name: str, size: int) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        (folder / name).write_bytes((folder / name).read_bytes()[:size])

    return apply


def write(name: str, text: str) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        (folder / name).write_text(text)

    return apply


def change(**fields: object) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **fields}))

    return apply


def test_infinity_in_a_field_that_is_not_read_stops_nothing(tmp_path: Path) -> None:
    """Configurations of Mamba hybrids are published with it."""
    folder = write_checkpoint(tmp_path / "base")
    change(time_step_limit=[0.0, float("inf")])(folder)
    assert base_model_register(name="tiny-base", source=folder).max_model_len > 0


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda folder: (folder / "config.json").unlink(), r"cannot read .*config\.json"),
        (
            lambda folder: (folder / SHARD).unlink(),
            rf"cannot read .*{SHARD}.*choose a folder with safetensors",
        ),
        (cut(SHARD, 5), rf"{SHARD} is not a safetensors file: it has 5 bytes"),
        (cut(SHARD, 40), rf"{SHARD} is not a safetensors file: its header claims"),
        (cut(SHARD, -1), rf"{SHARD} is not a safetensors file: .*but the file holds"),
        (write("config.json", "{"), r"config\.json is not JSON"),
        (write("config.json", "{}"), "has no architecture"),
        (write("config.json", "[" * 100_000), r"config\.json is not JSON"),
        (change(architectures=["a\0"]), "holds a NUL character"),
        (change(dtype=float("nan")), "must give dtype as a text"),
        (change(architectures=["\ud800"]), "half of a surrogate pair"),
        (change(architectures=["A" * 101]), "too long"),
        (change(max_position_embeddings=float("inf")), "must give max_position_embeddings"),
        (change(max_position_embeddings=1 << 40), "must give max_position_embeddings"),
        (write("model.safetensors.index.json", '{"weight_map": {"a": "../b"}}'), "not in the same folder"),
    ],
)
def test_a_broken_checkpoint_is_refused_by_name(
    tmp_path: Path, damage: Callable[[Path], None], reason: str
) -> None:
    folder = write_checkpoint(tmp_path / "base")
    damage(folder)
    with pytest.raises(InvalidInputError, match=reason):
        base_model_register(name="tiny-base", source=folder)
    assert not BaseModel.objects.exists()


VISION_LANGUAGE = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "text_config": {"model_type": "gemma3_text", "hidden_size": 4, "torch_dtype": "bfloat16"},
    "vision_config": {"max_position_embeddings": 7},
}


def store(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, tuple[str, tuple[int, ...]]]
) -> Path:
    """Write a checkpoint of zeros; `tensors` are dtypes and shapes by name."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    sizes = {"BF16": 2, "F16": 2, "I32": 4, "U8": 1, "F8_E4M3": 1}
    held = {
        name: (dtype, shape, bytes(math.prod(shape) * sizes[dtype]))
        for name, (dtype, shape) in tensors.items()
    }
    (folder / "model.safetensors").write_bytes(safetensors(held))
    return folder


@pytest.mark.parametrize(
    ("body", "vision"),
    [("language_model.model", "vision_tower"), ("model.language_model", "model.vision_tower")],
)
def test_the_language_model_of_a_vision_language_model_is_read(
    tmp_path: Path, body: str, vision: str
) -> None:
    """Published checkpoints leave out what equals the class's default, as Gemma 3 its context length."""
    tensors = {
        f"{body}.embed_tokens.weight": ("BF16", (16, 4)),
        f"{body}.layers.0.self_attn.q_proj.weight": ("BF16", (8, 4)),
        f"{vision}.encoder.layers.0.self_attn.q_proj.weight": ("BF16", (4, 4)),
        f"{vision}.patch_embedding.weight": ("BF16", (4, 3, 2, 2)),
    }
    base = base_model_register(name="eyes", source=store(tmp_path / "base", VISION_LANGUAGE, tensors))
    assert (base.architecture, base.dtype) == ("Gemma3ForConditionalGeneration", "bfloat16")
    assert base.max_model_len == 131_072
    assert base.modules == {
        "model.embed_tokens": (16, 4),
        "lm_head": (16, 4),
        "model.layers.0.self_attn.q_proj": (8, 4),
        "vision_tower.encoder.layers.0.self_attn.q_proj": (4, 4),
        "vision_tower.patch_embedding": (4, 3, 2, 2),
    }


@pytest.mark.parametrize(
    ("quantization", "tensors"),
    [
        ({"quant_method": "awq", "bits": 4}, {"qweight": ("I32", (32, 2)), "qzeros": ("I32", (1, 2))}),
        ({"quant_method": "gptq", "bits": 4}, {"qweight": ("I32", (4, 16)), "scales": ("F16", (1, 16))}),
        ({"quant_method": "gptq", "bits": 8}, {"qweight": ("I32", (8, 16))}),
        ({"quant_method": "gptq", "bits": 3}, {"qweight": ("I32", (3, 16))}),
        ({"quant_method": "fp8"}, {"weight": ("F8_E4M3", (16, 32)), "weight_scale": ("BF16", (16, 1))}),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 4}}},
            },
            {"weight_packed": ("I32", (16, 4)), "weight_scale": ("BF16", (16, 1))},
        ),
    ],
    ids=["awq", "gptq-4", "gptq-8", "gptq-3", "fp8", "compressed-tensors"],
)
def test_packed_weights_have_the_shape_of_their_layer(
    tmp_path: Path, quantization: Mapping[str, Any], tensors: Mapping[str, tuple[str, tuple[int, ...]]]
) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "max_position_embeddings": 64,
        "quantization_config": quantization,
    }
    path = "model.layers.0.self_attn.q_proj"
    folder = store(tmp_path / "base", config, {f"{path}.{name}": item for name, item in tensors.items()})
    assert base_model_register(name="packed", source=folder).modules[path] == (16, 32)


@pytest.mark.parametrize(
    ("embedding", "config"),
    [
        ("transformer.wte", {"architectures": ["GPT2LMHeadModel"], "n_positions": 64}),
        ("transformer.word_embeddings", {"architectures": ["FalconForCausalLM"], "model_type": "falcon"}),
        ("model.decoder.embed_tokens", {"architectures": ["OPTForCausalLM"], "model_type": "opt"}),
        ("backbone.embeddings", {"architectures": ["MambaForCausalLM"], "model_type": "mamba"}),
    ],
)
def test_a_head_that_is_not_in_the_file_has_the_shape_of_the_embedding(
    tmp_path: Path, embedding: str, config: Mapping[str, Any]
) -> None:
    tensors = {
        f"{embedding}.weight": ("BF16", (16, 4)),
        "transformer.wpe.weight": ("BF16", (8, 4)),
        "vision_tower.embeddings.weight": ("BF16", (9, 4)),
        "layers.0.mixer.in_proj.weight": ("BF16", (8, 4)),
    }
    base = base_model_register(name="tied", source=store(tmp_path / "base", config, tensors))
    assert base.modules["lm_head"] == (16, 4)


def test_weights_whose_header_hides_the_shape_are_refused_with_what_to_register(tmp_path: Path) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "max_position_embeddings": 64,
        "quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True},
    }
    tensors = {"model.layers.0.self_attn.q_proj.weight": ("U8", (256, 1))}
    with pytest.raises(InvalidInputError, match="register the checkpoint from which they were made"):
        base_model_register(name="bnb", source=store(tmp_path / "base", config, tensors))
