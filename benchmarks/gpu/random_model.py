"""A Llama with random weights, generated on the device without files, and random adapters for it."""

from __future__ import annotations

import gc
import hashlib
import itertools
import json
import math
import string
import tempfile
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from unittest import mock

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from kernels.capture import Reruns
from kernels.lora import LoraPair
from kernels.quantization import QuantizedWeight, multiplies
from kernels.quantization.quantize import to_e4m3
from kernels.quantization.weight import Coding
from worker_engine.adapters.adapter import Adapter
from worker_engine.checkpoint.model_config import LORA_MODULES, ModelConfig
from worker_engine.checkpoint.packed_weights import PackedWeights
from worker_engine.checkpoint.quantization_config import Quantization, Scheme
from worker_engine.config import EngineConfig
from worker_engine.engine import Engine
from worker_engine.models import load_config
from worker_engine.text.tokenizer import ChatTokenizer

LLAMA_8B: Final = {
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
}
"""Llama-3.1-8B's shape; its rope scaling does not affect time and is omitted."""
TINY: Final = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
}
ATTENTION: Final = ("q_proj", "k_proj", "v_proj", "o_proj")


class RandomCheckpoint:
    """Replaces `checkpoint.folder.Checkpoint`: every name has a tensor of the requested shape."""

    def __init__(
        self,
        folder: Path,
        *,
        dtype: torch.dtype,
        device: torch.device,
        packed_in: Path | None = None,
        quantization: Quantization | None = None,
    ) -> None:
        """Weights differ each time, so packed weights are not stored, regardless of `packed_in`.

        Raises:
            ValueError: a model quantized to 8-bit integers, for which no weights are generated.
        """
        self._quantization = quantization
        schemes = () if quantization is None else quantization.targets.values()
        if any((one.bits, one.coding) == (8, "whole") for one in schemes):
            raise ValueError("random weights are no int8: change quantization_config of the shape")
        self.dtype, self.device = dtype, device
        self.packed: Final = PackedWeights(None)
        self.int8_head: Final = quantization is not None and quantization.int8_head

    def __enter__(self) -> RandomCheckpoint:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __contains__(self, name: str) -> bool:
        return not name.endswith("bias")

    def get(self, name: str, *shape: int) -> torch.Tensor:
        """Return matrices of variance 1/in, vectors (norm weights) near one."""
        if len(shape) == 2 and self.scheme(name) is not None:
            return self.quantized(name, *shape).dequantize().to(self.dtype)
        drawn = torch.randn(shape, dtype=self.dtype, device=self.device)
        return drawn.mul_(shape[-1] ** -0.5) if len(shape) > 1 else drawn.mul_(0.1).add_(1)

    def scheme(self, name: str) -> Scheme | None:
        """Return the scheme of a decoder layer's linear module, if the model is quantized."""
        if self._quantization is None or "_proj." not in name:
            return None
        return self._quantization.scheme(name.removesuffix(".weight"))

    @property
    def multiplies_quantized(self) -> bool:
        return multiplies(self.dtype, self.device)

    def quantized(self, name: str, out: int, inner: int) -> QuantizedWeight:
        """Return uniformly distributed codes, with scales that give the weights a variance of 1/in."""
        scheme = self.scheme(name)
        if scheme is None:
            raise ValueError(f"tensor {name} is not quantized")
        return random_quantized(
            out, inner, scheme.group, zeros=not scheme.symmetric, coding=scheme.coding, device=self.device
        )

    def refuse_unused(self, ignored: Sequence[str]) -> None:
        return None


def random_quantized(
    out: int, inner: int, group: int, *, zeros: bool, device: torch.device, coding: Coding = "whole"
) -> QuantizedWeight:
    """Draw 4-bit or E4M3 weights of variance near 1/in. Without zeros, codes are relative to 8, else to 0."""
    if coding == "e4m3":
        return to_e4m3(torch.randn(out, inner, device=device).mul_(inner**-0.5))
    lines = (out, inner // group)
    if coding == "e2m1":
        codes = torch.randint(0, 16, (out, inner), dtype=torch.uint8, device=device)
        # 2.8 is the standard deviation of the codes alone.
        scale = 2.0 ** round(math.log2(inner**-0.5 / 2.8))
        scales = torch.full(lines, scale, dtype=torch.bfloat16, device=device)
        return QuantizedWeight(codes, scales, None, 4, "e2m1")
    spread = 4.6 if not zeros else 6.5  # standard deviation of codes alone; of codes less a random zero
    scales = (torch.rand(lines, device=device) + 0.5) * (inner**-0.5 / spread)
    return QuantizedWeight(
        torch.randint(0, 16, (out, inner), dtype=torch.uint8, device=device),
        scales.bfloat16(),
        torch.randint(0, 16, lines, dtype=torch.uint8, device=device) if zeros else None,
        4,
    )


def build_engine(
    quick: bool, device: torch.device, *, quantization: dict[str, Any] | None = None, **config: Any
) -> tuple[Engine, ModelConfig]:
    """Build an engine on random weights in bf16. On a CPU, decode graphs are functions that run again.

    Args:
        config: the engine's other settings; `cuda_graphs` is off unless it is among them.
        quantization: config.json's `quantization_config`.
    """
    shape: dict[str, Any] = dict(TINY if quick else LLAMA_8B)
    if quantization is not None:
        shape["quantization_config"] = quantization
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(_config(shape)))
        _write_tokenizer(folder, int(shape["vocab_size"]))
        model = load_config(folder)
        options = EngineConfig(folder, "base", **{"cuda_graphs": "off"} | config)
        captures = Reruns() if device.type == "cpu" and options.cuda_graphs != "off" else None
        # The engine opens a checkpoint by folder, but this one is too large to be written to disk.
        with mock.patch("worker_engine.models.Checkpoint", RandomCheckpoint):
            tokenizer = ChatTokenizer(folder)
            engine = Engine(options, model, tokenizer, dtype=torch.bfloat16, device=device, captures=captures)
    return engine, model


_latest: dict[Hashable, tuple[Engine, ModelConfig]] = {}


def latest_engine(
    kind: Hashable, build: Callable[[], tuple[Engine, ModelConfig]]
) -> tuple[Engine, ModelConfig]:
    """Return the engine of this kind, which is built unless it was the last one asked for.

    A device has no memory for several, so the one before is closed first.
    """
    if kind not in _latest:
        for engine, _ in _latest.values():
            engine.close()
        _latest.clear()
        gc.collect()
        _latest[kind] = build()
    return _latest[kind]


def shape_config(shape: dict[str, Any]) -> ModelConfig:
    """Return the configuration of a model of this shape, such as `LLAMA_8B`."""
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "config.json").write_text(json.dumps(_config(shape)))
        return load_config(Path(name))


def _config(shape: dict[str, Any]) -> dict[str, Any]:
    return shape | {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
        "eos_token_id": 1,
    }


def _write_tokenizer(folder: Path, size: int) -> None:
    """Write a tokenizer in which every id is a token, so that detokenizing has realistic cost."""
    vocabulary = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = ("".join(letters) for letters in itertools.product(string.ascii_lowercase, repeat=4))
    vocabulary += itertools.islice(words, size - len(vocabulary))
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(vocabulary)}, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))


def random_adapter(
    index: int, model: ModelConfig, rank: int, device: torch.device, modules: Sequence[str] = LORA_MODULES
) -> Adapter:
    """Return an adapter of all layers, as the loader would provide it, small enough to stay finite."""
    layers: list[dict[str, LoraPair]] = []
    for _ in range(model.num_layers):
        pairs = {}
        for module in modules:
            wide, inner = model.linear_shapes[module]
            a = torch.randn(rank, inner, dtype=torch.bfloat16, device=device).mul_(inner**-0.5)
            b = torch.randn(rank, wide, dtype=torch.bfloat16, device=device).mul_(0.1 * rank**-0.5)
            pairs[module] = LoraPair(a, b)
        layers.append(pairs)
    name = hashlib.sha256(f"{index} {rank} {' '.join(modules)}".encode()).hexdigest()
    nbytes = sum(pair.nbytes for pairs in layers for pair in pairs.values())
    return Adapter(name, tuple(layers), nbytes)


@dataclass(frozen=True, slots=True)
class StepBytes:
    """The minimum memory traffic of one decode step.

    Attributes:
        base: bytes of every weight that a token uses: linear layers, norms, the head.
        kv: bytes of keys and values of one token in all layers.
    """

    base: int
    kv: int

    @classmethod
    def for_model(cls, model: ModelConfig, element_size: int = 2) -> StepBytes:
        linear = sum(wide * inner for wide, inner in model.linear_shapes.values()) * element_size
        if model.quantization is not None:
            # All modules have the scheme of `RandomCheckpoint`: a 16-bit scale, perhaps an 8-bit zero.
            (scheme,) = model.quantization.targets.values()
            bits = scheme.bits + ((16 if scheme.symmetric else 24) / scheme.group if scheme.group else 0)
            linear = round(linear * bits / (8 * element_size))
        unquantized = 2 * model.num_layers * model.hidden_size + model.hidden_size * (model.vocab_size + 1)
        kv = 2 * model.num_layers * model.num_kv_heads * model.head_dim
        return cls(model.num_layers * linear + unquantized * element_size, kv * element_size)

    def of_step(self, contexts: Sequence[int], adapters_bytes: int) -> int:
        """Return the bytes of the base, all sequences' keys and values, and the active adapters."""
        return self.base + self.kv * sum(contexts) + adapters_bytes
