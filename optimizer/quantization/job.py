"""Quantizes a checkpoint layer by layer; finished layers are kept, and incomplete output is never visible."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch

from optimizer.quantization.calibration import CPU, LENGTH, Calibration, compute_dtype, sequences_of
from optimizer.quantization.layer import LayerQuantizer, Tensors
from optimizer.quantization.moments import Moments, ObservedLinear
from optimizer.quantization.scheme import Scheme
from optimizer.quantization.work import WorkFolder, digest_of
from worker_engine.checkpoint.config_fields import Fields
from worker_engine.checkpoint.folder import Checkpoint
from worker_engine.checkpoint.model_config import MODULE_PATHS, ModelConfig
from worker_engine.checkpoint.quantization_config import OWN_SECTION, Quantization, read_quantization
from worker_engine.errors import CheckpointError, OptimizationError
from worker_engine.models import FAMILIES, load_config
from worker_engine.models.decoder import LayerWeights
from worker_engine.text.tokenizer import ChatTokenizer

Progress = Callable[[str, float], None]
"""Called with the current task and the completed fraction; an exception ends the run."""

FORMAT: Final = 2
"""Incremented when the same order would give a different result."""
_WEIGHT_FILES: Final = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".msgpack", ".h5", ".index.json")


def quantize(
    source: Path,
    output: Path,
    scheme: Scheme,
    calibration: Sequence[str],
    progress: Progress,
    *,
    int8_head: bool = False,
) -> None:
    """Write the checkpoint `source` to the folder `output`, with its decoder layers' linear modules
    quantized.

    Finished layers are kept in a work folder, and a later call with the same arguments resumes. `output`
    appears by a rename once all is finished.

    Args:
        source: an unquantized checkpoint of a supported family.
        calibration: texts like the model's future inputs; read by AWQ only.
        int8_head: the output's config.json tells the worker to hold the head in 8 bits. It is stored
            unquantized, because other engines require a tied head to equal the embedding.

    Raises:
        OptimizationError: with its code: unsupported_model, bad_data, output_exists, out_of_disk.
    """
    try:
        config = load_config(source)
        _demand_plain(config, scheme)
        with Checkpoint(source, dtype=torch.float32, device=CPU) as checkpoint:
            _Job(source, output, scheme, config, checkpoint, int8_head).run(calibration, progress)
    except CheckpointError as error:
        raise OptimizationError("unsupported_model", str(error)) from error


def _demand_plain(config: ModelConfig, scheme: Scheme) -> None:
    if config.quantization is not None:
        raise OptimizationError("unsupported_model", "the checkpoint is quantized already: give a plain one")
    if config.experts is not None:
        raise OptimizationError(
            "unsupported_model",
            f"{config.architecture} has experts, which are not quantized: give a dense model",
        )
    for module, (_, inner) in config.linear_shapes.items():
        if scheme.group_size(inner) < 0:
            raise OptimizationError(
                "unsupported_model",
                f"{module} has {inner} inputs, no multiple of 32: 4 bits need groups of 32, 64 or 128; "
                "take int8",
            )
    narrow = [module for module, (out, _) in config.linear_shapes.items() if scheme.bits == 3 and out % 32]
    if narrow:
        raise OptimizationError(
            "unsupported_model", f"{narrow[0]}'s outputs are no multiple of 32, as 3 bits need: take int8"
        )


class _Job:
    def __init__(
        self,
        source: Path,
        output: Path,
        scheme: Scheme,
        config: ModelConfig,
        checkpoint: Checkpoint,
        int8_head: bool,
    ) -> None:
        self._source, self._output, self._scheme = source, output, scheme
        self._config, self._checkpoint = config, checkpoint
        self._family = FAMILIES[config.architecture]
        self._shapes = checkpoint.shapes()
        fields = json.loads((source / "config.json").read_text(encoding="utf-8"))
        self._fields: dict[str, Any] = fields | {"quantization_config": _form(scheme, config)}
        self._fields.pop(OWN_SECTION, None)
        if int8_head:
            self._fields[OWN_SECTION] = {"head": "int8"}
        self._quantizer = LayerQuantizer(config, scheme, self._family.norm_offset)

    def run(self, texts: Sequence[str], progress: Progress) -> None:
        layers = self._config.num_layers
        sequences: list[list[int]] = []
        if self._scheme.calibrates:
            progress("reading the calibration texts", 0.0)
            length = min(LENGTH, self._config.max_position_embeddings)
            sequences = sequences_of(texts, ChatTokenizer(self._source), length)
        work = WorkFolder(self._output, self._identity(texts))
        work.demand_room(self._size())
        calibration = Calibration(self._config, self._checkpoint, sequences) if sequences else None
        for index in range(layers):
            name = f"layer {index + 1} of {layers}"
            progress(name if not work.has_layer(index) else f"{name}, which is there", index / (layers + 1))
            if not work.has_layer(index):
                work.write_layer(index, self._layer(index, calibration))
            if calibration is not None and index + 1 < layers:
                calibration.run(self._made(work.layer(index), index), index, keep=True)
        progress("embeddings, norms and head", layers / (layers + 1))
        work.write_rest(
            {name: self._checkpoint.stored(name) for name in self._shapes if not self._layered(name)}
        )
        work.finish(self._fields, layers, self._others())
        progress("whole", 1.0)

    def _layer(self, index: int, calibration: Calibration | None) -> Tensors:
        prefix = self._prefix(index)
        moments: dict[str, Moments] = {}
        if calibration is not None:
            weights = LayerWeights(
                self._config, self._compute(self._source, None), prefix, self._family.prefix, ObservedLinear
            )
            layer = self._family.layer(index, weights)
            calibration.run(layer, index, keep=False)
            for name, linear in layer.linears.items():
                assert isinstance(linear, ObservedLinear)
                moments[name] = linear.moments
        own = {
            name.removeprefix(prefix): self._checkpoint.stored(name)
            for name in self._shapes
            if name.startswith(prefix) and not name.endswith(self._family.unused)
        }
        made = self._quantizer.make(own, moments)
        return {prefix + name: tensor for name, tensor in made.items()}

    def _made(self, folder: Path, index: int) -> Any:
        """Return the layer as the worker will serve it, so that later layers are calibrated on its real
        output.
        """
        quantization = read_quantization(Fields("config.json", self._fields))
        checkpoint = self._compute(folder, quantization)
        weights = LayerWeights(self._config, checkpoint, self._prefix(index), self._family.prefix)
        return self._family.layer(index, weights)

    @staticmethod
    def _compute(folder: Path, quantization: Quantization | None) -> Checkpoint:
        return Checkpoint(folder, dtype=compute_dtype(), device=CPU, quantization=quantization)

    def _prefix(self, index: int) -> str:
        return f"{self._family.prefix}model.layers.{index}."

    def _layered(self, name: str) -> bool:
        return name.startswith(f"{self._family.prefix}model.layers.")

    def _others(self) -> list[Path]:
        """Return every file that is neither weights nor config.json: tokenizer, template, generation
        defaults.
        """
        return [
            path
            for path in sorted(self._source.iterdir())
            if path.is_file()
            and path.name != "config.json"
            and not path.name.endswith(_WEIGHT_FILES)
            and not path.name.startswith(".")
        ]

    def _size(self) -> int:
        """Return the bytes of the output, including scales and zeros of the smallest groups."""
        total = sum(path.stat().st_size for path in self._others())
        for name, shape in self._shapes.items():
            numbers = 1
            for size in shape:
                numbers *= size
            quantized = self._layered(name) and len(shape) == 2
            total += numbers * (self._scheme.bits + 1) // 8 if quantized else 4 * numbers
        return total

    def _identity(self, texts: Sequence[str]) -> Mapping[str, Any]:
        files = sorted(path for path in self._source.iterdir() if path.is_file())
        return {
            "format": FORMAT,
            "scheme": self._scheme.value,
            "calibration": digest_of(texts) if self._scheme.calibrates else "",
            "source": [[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in files],
            "dtype": str(compute_dtype()),
            "int8_head": self._fields.get(OWN_SECTION) is not None,
        }


def _form(scheme: Scheme, config: ModelConfig) -> dict[str, Any]:
    """Return config.json's quantization_config: one group of modules per group size; GPTQ's has one alone."""
    if scheme.bits == 3:
        return _gptq_form(scheme.common_group(inner for _, inner in config.linear_shapes.values()))
    sizes: dict[int, list[str]] = {}
    for module, (_, inner) in config.linear_shapes.items():
        sizes.setdefault(scheme.group_size(inner), []).append(module)
    return {
        "config_groups": {
            f"group_{number}": _group(scheme, size, modules)
            for number, (size, modules) in enumerate(sizes.items())
        },
        "format": _format(scheme),
        "global_compression_ratio": None,
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
    }


def _gptq_form(group: int) -> dict[str, Any]:
    return {
        "bits": 3,
        "checkpoint_format": "gptq",
        "desc_act": False,
        "group_size": group,
        "lm_head": False,
        "quant_method": "gptq",
        "sym": False,
    }


def _group(scheme: Scheme, size: int, modules: Sequence[str]) -> dict[str, Any]:
    paths = "|".join(MODULE_PATHS[module].replace(".", r"\.") for module in modules)
    return {
        "format": _format(scheme),
        "input_activations": _numbers(scheme, "token", dynamic=True) if scheme is Scheme.FP8 else None,
        "output_activations": None,
        # Expressions instead of the class: a multimodal model also has linear modules that stay unquantized.
        "targets": [rf"re:.*model\.layers\.\d+\.({paths})$"],
        "weights": _numbers(scheme, "group" if size else "channel", size=size),
    }


def _format(scheme: Scheme) -> str:
    return "float-quantized" if scheme is Scheme.FP8 else "pack-quantized"


def _numbers(scheme: Scheme, strategy: str, *, size: int = 0, dynamic: bool = False) -> dict[str, Any]:
    """Return how weights or inputs are rounded."""
    return {
        "actorder": None,
        "block_structure": None,
        "dynamic": dynamic,
        "group_size": size or None,
        "num_bits": scheme.bits,
        "observer": None if dynamic else "minmax",
        "observer_kwargs": {},
        "strategy": strategy,
        "symmetric": scheme.bits == 8,
        "type": "float" if scheme is Scheme.FP8 else "int",
    }
