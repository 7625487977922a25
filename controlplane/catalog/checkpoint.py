"""Reads the metadata of a Hugging Face checkpoint: config.json and safetensors headers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final

from contracts.adapters.config import HEAD
from contracts.adapters.shapes import input_embedding
from contracts.image_tokens import NO_IMAGES, ImageTokens
from contracts.strict_json import find_fault
from controlplane.catalog.checkpoint_sources import CheckpointSource
from controlplane.catalog.checkpoint_sources.base import refusal
from controlplane.catalog.module_shapes import UnknownShapeError, module_shapes
from controlplane.catalog.quantization import quantization_method
from controlplane.catalog.safetensors_header import SafetensorsHeader, TensorInfo, read_header
from controlplane.catalog.text_config import context_length, stored_dtype, text_section
from controlplane.catalog.vision import image_rule

_MAX_JSON_BYTES: Final = 64 << 20
_INDEX: Final = "model.safetensors.index.json"
_PROCESSORS: Final = ("preprocessor_config.json", "processor_config.json")
_MAX_NAME: Final = 100
_MAX_TENSORS: Final = 500_000
"""Kimi K2, the largest published count, has 70,000 without scales."""
_MAX_STATE: Final = 4096
_NUMBERED: Final = re.compile(r"\.\d+\.")
_MAX_DTYPE: Final = 20


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Metadata of a checkpoint, as validation needs it.

    Attributes:
        max_model_len: of the language model, in tokens; 0 if the configuration states none.
        modules: as `module_shapes` returns them.
        quantization: method of the weights, "" for none.
        image_tokens: bound of an image's tokens.
    """

    architecture: str
    max_model_len: int
    dtype: str
    modules: dict[str, tuple[int, ...]]
    quantization: str = ""
    image_tokens: ImageTokens = NO_IMAGES


def read_checkpoint(source: CheckpointSource) -> Checkpoint:
    """Read a checkpoint's metadata; of the weights only the headers.

    Raises:
        InvalidInputError: a file is missing or malformed.
        UnavailableError: the source does not answer.
    """
    sizes = source.sizes()
    config, where = _json(source, sizes, "config.json"), _path(source, "config.json")
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or not architectures:
        raise refusal(f"{where} has no architecture")
    if (length := context_length(config)) is None:
        raise refusal(f"{where} must give max_position_embeddings, a positive integer")
    try:
        tensors, files = _tensors(source, sizes)
        modules = module_shapes(config, tensors, lambda name: _data(source, files[name], tensors[name]))
    except UnknownShapeError as error:
        raise refusal(f"{source.uri}: {error}") from error
    embedding = input_embedding(modules)
    if embedding and (text_section(config).get("tie_word_embeddings") or HEAD not in modules):
        modules[HEAD] = modules[embedding]
    if not any(len(shape) >= 2 and _NUMBERED.search(path) for path, shape in modules.items()):
        raise refusal(f"{source.uri} has no layers: its safetensors hold no matrix of a numbered layer")
    if (dtype := stored_dtype(config)) is None:
        raise refusal(f"{where} must give dtype as a text, such as bfloat16")
    # Check only the stored values: configurations of Mamba hybrids contain Infinity elsewhere.
    quantization = quantization_method(config)
    if fault := find_fault([architectures[0], dtype, quantization, *modules]):
        raise refusal(f"{source.uri} {fault}")
    architecture = str(architectures[0])
    if len(architecture) > _MAX_NAME or len(dtype) > _MAX_DTYPE:
        raise refusal(f"{where} names an architecture or dtype that is too long")
    rule = image_rule(config, _image_processor(source, sizes))
    return Checkpoint(architecture, length, dtype, modules, quantization, rule)


def _image_processor(source: CheckpointSource, sizes: Mapping[str, int]) -> Mapping[str, Any]:
    """Return the settings that images are prepared by; empty if there are none."""
    for name in _PROCESSORS:
        if name in sizes:
            found = _json(source, sizes, name)
            part = found.get("image_processor")
            return part if isinstance(part, dict) else found
    return {}


def _tensors(
    source: CheckpointSource, sizes: Mapping[str, int]
) -> tuple[dict[str, TensorInfo], dict[str, tuple[str, int]]]:
    """Return the tensors by name, and the file of each with the start of its data."""
    names = ["model.safetensors"]
    if _INDEX in sizes:
        weight_map, where = _json(source, sizes, _INDEX).get("weight_map"), _path(source, _INDEX)
        if not isinstance(weight_map, dict) or not weight_map:
            raise refusal(f"{where} has no weight_map")
        names = sorted({str(name) for name in weight_map.values()})
        for name in names:
            if PurePosixPath(name).name != name:
                raise refusal(f"{where} names {name!r}, which is not in the same folder")
    tensors: dict[str, TensorInfo] = {}
    files: dict[str, tuple[str, int]] = {}
    for name in names:
        header = _header(source, sizes, name)
        tensors.update(header.tensors)
        if len(tensors) > _MAX_TENSORS:
            raise refusal(f"{source.uri} has more than {_MAX_TENSORS} tensors")
        files.update(dict.fromkeys(header.tensors, (name, header.data_start)))
    return tensors, files


def _data(source: CheckpointSource, file: tuple[str, int], info: TensorInfo) -> bytes:
    """Return a small tensor's bytes: 4-bit checkpoints keep a layer's shape in one."""
    name, start = file
    if info.end - info.begin > _MAX_STATE:
        raise UnknownShapeError(f"a quant_state of {name} has {info.end - info.begin} bytes")
    return source.read_range(name, start + info.begin, info.end - info.begin)


def _header(source: CheckpointSource, sizes: Mapping[str, int], name: str) -> SafetensorsHeader:
    path = _path(source, name)
    if name not in sizes:
        raise refusal(f"cannot read {path}: the file does not exist; choose a folder with safetensors")
    try:
        with source.open(name) as stream:
            return read_header(stream, size=sizes[name])
    except ValueError as error:
        raise refusal(f"{path} is not a safetensors file: {error}") from error


def _json(source: CheckpointSource, sizes: Mapping[str, int], name: str) -> dict[str, Any]:
    path = _path(source, name)
    if name not in sizes:
        raise refusal(f"cannot read {path}: the file does not exist")
    if sizes[name] > _MAX_JSON_BYTES:
        raise refusal(f"{path} is larger than {_MAX_JSON_BYTES} bytes")
    with source.open(name) as stream:
        data = stream.read(_MAX_JSON_BYTES)
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise refusal(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise refusal(f"{path} must hold an object")
    return value


def _path(source: CheckpointSource, name: str) -> str:
    return f"{source.uri.rstrip('/')}/{name}"
