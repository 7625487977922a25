"""The model families that the worker serves, by the architecture that a checkpoint names."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Final

import torch

from kernels import native
from worker_engine.checkpoint.config_fields import Fields
from worker_engine.checkpoint.folder import Checkpoint, weight_files
from worker_engine.checkpoint.model_config import ModelConfig
from worker_engine.checkpoint.packed_weights import content_name
from worker_engine.checkpoint.quantization_config import read_quantization
from worker_engine.errors import CheckpointError
from worker_engine.models.decoder import Decoder
from worker_engine.models.deepseek import DeepseekV2, DeepseekV3
from worker_engine.models.gemma3 import Gemma3, Gemma3Multimodal
from worker_engine.models.gpt_oss import GptOss
from worker_engine.models.llama import Llama
from worker_engine.models.llama4 import Llama4, Llama4Multimodal
from worker_engine.models.mistral import Mistral
from worker_engine.models.mixtral import Mixtral
from worker_engine.models.qwen2 import Qwen2
from worker_engine.models.qwen2_moe import Qwen2Moe
from worker_engine.models.qwen3 import Qwen3
from worker_engine.models.qwen3_moe import Qwen3Moe

__all__ = ["FAMILIES", "load_config", "load_model", "pack_weights"]

FAMILIES: Final[dict[str, type[Decoder]]] = {
    family.ARCHITECTURE: family
    for family in (
        Llama,
        Mistral,
        Qwen2,
        Qwen3,
        Gemma3,
        Gemma3Multimodal,
        Mixtral,
        Qwen2Moe,
        Qwen3Moe,
        GptOss,
        DeepseekV2,
        DeepseekV3,
        Llama4,
        Llama4Multimodal,
    )
}


def load_config(folder: Path) -> ModelConfig:
    """Reads a checkpoint's config.json and, where there is one, generation_config.json.

    Raises:
        CheckpointError: naming the file and the field that is missing, malformed or not served.
    """
    fields = Fields.load(folder / "config.json")
    config = _family(fields).read(fields)
    generation = folder / "generation_config.json"
    eos = Fields.load(generation).token_ids("eos_token_id") if generation.is_file() else ()
    quantization = read_quantization(fields)
    return replace(config, eos_token_ids=eos or config.eos_token_ids, quantization=quantization)


def _family(fields: Fields) -> type[Decoder]:
    """By `architectures`; older files have only `model_type`."""
    kind = fields.text("model_type", "")
    named = fields.texts("architectures") or tuple(
        name for name, family in FAMILIES.items() if kind == family.MODEL_TYPE
    )
    family = FAMILIES.get(named[0]) if len(named) == 1 else None
    if family is None or kind not in ("", family.MODEL_TYPE):
        raise fields.error(
            "architectures",
            f"{list(named)} with model_type {kind!r} is not served; this worker serves {', '.join(FAMILIES)}",
        )
    return family


def load_model(
    folder: Path,
    config: ModelConfig,
    *,
    max_model_len: int,
    dtype: torch.dtype,
    device: torch.device,
    packed_in: Path | None = None,
) -> Decoder:
    """The checkpoint's weights on a device.

    Where they are packed for the native CPU loops, they are kept in the folder `packed_in` and mapped from
    there, also by the process that wrote them: its own copy is let go of.

    Raises:
        CheckpointError: naming the file or tensor that is damaged, missing or spare.
    """
    if device.type != "cpu" or dtype != torch.bfloat16 or native.LIBRARY is None:
        packed_in = None

    def build() -> tuple[Decoder, bool]:
        with Checkpoint(
            folder, dtype=dtype, device=device, packed_in=packed_in, quantization=config.quantization
        ) as checkpoint:
            family = FAMILIES[config.architecture]
            model = family(config, checkpoint, max_model_len=max_model_len, dtype=dtype, device=device)
            return model, checkpoint.packed.write()

    model, written = build()
    if not written:
        return model
    del model
    return build()[0]


def pack_weights(folder: Path, target: Path) -> Path:
    """Writes the checkpoint's weights into the folder `target` as CPU steps in bf16 read them, under the
    name that tells their content: a worker whose cache folder it is maps them on any host.

    Raises:
        CheckpointError: as `load_model` does, and where this CPU has no loops that read them, or the disk no
        room.
    """
    if native.LIBRARY is None:
        raise CheckpointError(
            "weights are packed for CPUs with AVX2 or AVX-512 and a C++ compiler; this machine lacks one"
        )
    target.mkdir(parents=True, exist_ok=True)
    path = target / content_name(weight_files(folder))
    with tempfile.TemporaryDirectory(dir=target, prefix=".") as scratch:
        load_model(
            folder,
            load_config(folder),
            max_model_len=1,
            dtype=torch.bfloat16,
            device=torch.device("cpu"),
            packed_in=Path(scratch),
        )
        made = list(Path(scratch).glob("*.safetensors"))
        if not made:
            raise CheckpointError(
                f"{target} has too little room for packed weights, or none of them can be packed"
            )
        made[0].replace(path)
    return path
