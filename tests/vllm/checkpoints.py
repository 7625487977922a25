"""Write tiny random checkpoints and adapters that vLLM's CPU build serves, with numpy and safetensors alone.

Its attention kernels take heads of 32 elements and more, so the shapes differ from `tiny_model`'s.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from tokenizers import AddedToken

from tests.worker_engine.thinking.scripted_model import TEMPLATE
from tests.worker_engine.tiny_adapter import CONFIG
from tests.worker_engine.tiny_model import Weights, byte_tokenizer, family_config, save_tensors, shapes_of

CHAT_TEMPLATE: Final = (
    "{% for m in messages %}{{ m.role }}: {% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}"
    "{% if part.type == 'text' %}{{ part.text }}{% else %}<start_of_image>{% endif %}"
    "{% endfor %}{% endif %}\n{% endfor %}assistant:"
)
IMAGE_TOKENS: Final = ("<start_of_image>", "<end_of_image>", "<image_soft_token>")
"""Ids 256 to 258, after one token for each byte."""
TOKENS_PER_IMAGE: Final = 4
EXPERTS: Final = 4
VOCABULARY: Final = 260
_SMALL: Final[Mapping[str, Any]] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "bos_token_id": 254,
    "eos_token_id": 255,
}
_VISION: Final[Mapping[str, Any]] = {
    "model_type": "siglip_vision_model",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_channels": 3,
    "image_size": 56,
    "patch_size": 14,
    "layer_norm_eps": 1e-06,
    "hidden_act": "gelu_pytorch_tanh",
    "attention_dropout": 0.0,
    "vision_use_head": False,
}
_QKVO: Final = ("q_proj", "k_proj", "v_proj", "o_proj")


@dataclass(frozen=True)
class Checkpoint:
    """One tiny checkpoint.

    Attributes:
        layers: beginning of its text layers' names in the file.
        adapter_layers: beginning of the same names in adapters.
        chat_template: Qwen3's own where thinking is tested.
    """

    name: str
    config: Mapping[str, Any]
    text: Mapping[str, Any]
    layers: str = "model."
    adapter_layers: str = "model."
    chat_template: str = CHAT_TEMPLATE

    def write(self, folder: Path) -> Path:
        """Write the checkpoint with its tokenizer; return `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config, indent=2))
        source = np.random.default_rng(11)
        save_tensors(folder / "model.safetensors", _weights(self, source))
        _write_tokenizer(folder, self.chat_template, vision="vision_config" in self.config)
        return folder

    def write_adapter(self, model: Path, folder: Path, *, seed: int, rank: int = 8) -> Path:
        """Write an adapter on the attention of every layer, strong enough to change greedy answers."""
        config = {**CONFIG, "base_model_name_or_path": str(model), "r": rank, "lora_alpha": 4 * rank}
        config["target_modules"] = sorted(_QKVO)
        source, tensors = np.random.default_rng(seed), {}
        for name, (rows, columns) in _attention_shapes(self.text).items():
            module = f"base_model.model.{self.adapter_layers}{name}"
            tensors[f"{module}.lora_A.weight"] = _uniform(source, (rank, columns))
            tensors[f"{module}.lora_B.weight"] = _uniform(source, (rows, rank))
        folder.mkdir(parents=True, exist_ok=True)
        save_tensors(folder / "adapter_model.safetensors", tensors)
        (folder / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True))
        return folder


def _text(family: str, **changes: Any) -> dict[str, Any]:
    return family_config(family, **{**_SMALL, **changes})


def _mixture() -> dict[str, Any]:
    experts = {
        "num_experts": EXPERTS,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 96,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "router_aux_loss_coef": 0.001,
        "output_router_logits": False,
    }
    own = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe"}
    return _text("qwen3") | experts | own


def _multimodal(text: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "dtype": "float32",
        "text_config": dict(text),
        "vision_config": dict(_VISION),
        "mm_tokens_per_image": TOKENS_PER_IMAGE,
        "boi_token_index": 256,
        "eoi_token_index": 257,
        "image_token_index": 258,
        "bos_token_id": 254,
        "eos_token_id": 255,
        "initializer_range": 0.02,
        "tie_word_embeddings": True,
    }


def _all() -> dict[str, Checkpoint]:
    llama, qwen3, mixture, gemma3 = _text("llama"), _text("qwen3"), _mixture(), _text("gemma3_text")
    layers, thinking = "model.language_model.", TEMPLATE.read_text()
    return {
        item.name: item
        for item in (
            Checkpoint("llama", llama, llama),
            Checkpoint("qwen3", qwen3, qwen3, chat_template=thinking),
            Checkpoint("qwen3-moe", mixture, mixture, chat_template=thinking),
            Checkpoint("gemma3", _multimodal(gemma3), gemma3, layers, layers),
        )
    }


CHECKPOINTS: Final[Mapping[str, Checkpoint]] = _all()


def _weights(checkpoint: Checkpoint, source: np.random.Generator) -> Weights:
    text = checkpoint.text
    shapes: dict[str, tuple[int, ...]] = {}
    for name, shape in shapes_of({**text, "model_type": text["model_type"].removesuffix("_moe")}).items():
        if text.get("num_experts") and ".mlp." in name:
            layer, _, projection = name.partition(".mlp.")
            shapes |= {f"{layer}.mlp.experts.{number}.{projection}": shape for number in range(EXPERTS)}
            shapes[f"{layer}.mlp.gate.weight"] = (EXPERTS, text["hidden_size"])
        else:
            shapes[name.replace("model.", checkpoint.layers, 1)] = shape
    if "vision_config" in checkpoint.config:
        shapes |= _vision_shapes(text["hidden_size"])
    # Gemma's norms add 1 to their weight; SigLIP's do not.
    gain = 0.0 if text["model_type"] == "gemma3_text" else 1.0

    def draw(name: str, shape: tuple[int, ...]) -> Any:
        if len(shape) > 1:
            return source.normal(0.0, text["initializer_range"], shape).astype(np.float32)
        return np.full(shape, _vector(name, gain), np.float32)

    return {name: draw(name, shape) for name, shape in shapes.items()}


def _vector(name: str, gain: float) -> float:
    if name.endswith("bias"):
        return 0.0
    return 1.0 if "vision_tower" in name else gain


def _vision_shapes(hidden: int) -> dict[str, tuple[int, ...]]:
    width, inner, patch = _VISION["hidden_size"], _VISION["intermediate_size"], _VISION["patch_size"]
    patches = (_VISION["image_size"] // patch) ** 2
    tower, layer = "model.vision_tower.vision_model.", "encoder.layers.0."
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.patch_embedding.weight": (width, 3, patch, patch),
        "embeddings.patch_embedding.bias": (width,),
        "embeddings.position_embedding.weight": (patches, width),
        f"{layer}mlp.fc1.weight": (inner, width),
        f"{layer}mlp.fc1.bias": (inner,),
        f"{layer}mlp.fc2.weight": (width, inner),
        f"{layer}mlp.fc2.bias": (width,),
    }
    for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
        shapes[f"{layer}self_attn.{name}.weight"] = (width, width)
        shapes[f"{layer}self_attn.{name}.bias"] = (width,)
    for name in (f"{layer}layer_norm1", f"{layer}layer_norm2", "post_layernorm"):
        shapes |= {f"{name}.weight": (width,), f"{name}.bias": (width,)}
    projector = "model.multi_modal_projector."
    return {tower + name: shape for name, shape in shapes.items()} | {
        f"{projector}mm_input_projection_weight": (width, hidden),
        f"{projector}mm_soft_emb_norm.weight": (width,),
    }


def _attention_shapes(text: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    hidden, head = text["hidden_size"], text["head_dim"]
    queries, keys = text["num_attention_heads"] * head, text["num_key_value_heads"] * head
    matrices = {"q_proj": (queries, hidden), "k_proj": (keys, hidden), "v_proj": (keys, hidden)}
    matrices["o_proj"] = (hidden, queries)
    return {
        f"layers.{layer}.self_attn.{name}": shape
        for layer in range(text["num_hidden_layers"])
        for name, shape in matrices.items()
    }


def _uniform(source: np.random.Generator, shape: tuple[int, int]) -> Any:
    bound = shape[1] ** -0.5
    return source.uniform(-bound, bound, shape).astype(np.float32)


def _write_tokenizer(folder: Path, chat_template: str, *, vision: bool) -> None:
    tokenizer = byte_tokenizer()
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 512,
        "clean_up_tokenization_spaces": False,
    }
    if vision:
        tokenizer.add_special_tokens([AddedToken(text, special=True) for text in IMAGE_TOKENS])
        names = ("boi_token", "eoi_token", "image_token")
        config["extra_special_tokens"] = dict(zip(names, IMAGE_TOKENS, strict=True))
        config["processor_class"] = "Gemma3Processor"
        _write_processor(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2))
    (folder / "chat_template.jinja").write_text(chat_template)
    generation = {"bos_token_id": 254, "eos_token_id": 255}
    (folder / "generation_config.json").write_text(json.dumps(generation))


def _write_processor(folder: Path) -> None:
    size = {"height": _VISION["image_size"], "width": _VISION["image_size"]}
    image = {
        "image_processor_type": "Gemma3ImageProcessor",
        "do_resize": True,
        "size": size,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "image_seq_length": TOKENS_PER_IMAGE,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(image, indent=2))
    processor = {"processor_class": "Gemma3Processor", "image_seq_length": TOKENS_PER_IMAGE}
    (folder / "processor_config.json").write_text(json.dumps(processor, indent=2))
