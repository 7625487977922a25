"""Models of every architecture on the meta device, and the headers that their checkpoints have."""

from __future__ import annotations

import enum
import io
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch

from controlplane.artifacts.store import ByteStream
from tests.parity import references

LAYERS: Final = 6
"""Decoder layers of a model, which show every kind of layer of published hybrid and sparse patterns."""
EXPERTS: Final = 16
"""Experts of a layer: names and shapes do not depend on their number."""
LABELS: Final = 3
_DEPTHS: Final = (
    "num_hidden_layers",
    "num_layers",
    "n_layers",
    "n_layer",
    "encoder_layers",
    "decoder_layers",
    "depth",
)
_EXPERT_COUNTS: Final = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_DTYPES: Final[Mapping[torch.dtype, tuple[str, int]]] = {
    torch.bfloat16: ("BF16", 2),
    torch.float16: ("F16", 2),
    torch.float32: ("F32", 4),
    torch.float64: ("F64", 8),
    torch.float8_e4m3fn: ("F8_E4M3", 1),
    torch.complex64: ("C64", 8),
    torch.int64: ("I64", 8),
    torch.int32: ("I32", 4),
    torch.uint8: ("U8", 1),
    torch.int8: ("I8", 1),
    torch.bool: ("BOOL", 1),
}

Tensors = dict[str, tuple[str, tuple[int, ...]]]
"""dtype and shape by name, as in a safetensors header."""


class Task(enum.StrEnum):
    """The groups of architectures, in the order of the table."""

    CAUSAL = "Causal language models"
    VISION = "Vision-language models"
    CLASSIFICATION = "Sequence classification"


_MAPPINGS: Final = {
    Task.VISION: "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    Task.CAUSAL: "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    Task.CLASSIFICATION: "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
}
"""The auto classes' tables. A class of several tables belongs to the first."""


@dataclass(frozen=True, order=True)
class Architecture:
    """A class of transformers.

    Attributes:
        name: of the class, as in `architectures` of config.json.
        model_type: of its configuration.
    """

    name: str
    model_type: str
    task: Task


def architectures() -> list[Architecture]:
    """Return the installed transformers' architectures by task and name."""
    found: dict[str, Architecture] = {}
    for task, mapping in _MAPPINGS.items():
        for model_type, names in getattr(references, mapping).items():
            for name in (names,) if isinstance(names, str) else names:
                known = found.setdefault(name, Architecture(name, model_type, task))
                # Several kinds of configuration lead to one class, which has its own.
                if known.model_type != model_type and _own_type(name) == model_type:
                    found[name] = Architecture(name, model_type, known.task)
    order = list(Task)
    return sorted(found.values(), key=lambda item: (order.index(item.task), item.name.lower()))


def _own_type(name: str) -> str:
    return str(getattr(references, name).config_class.model_type)


def classifier_of(architecture: Architecture) -> Architecture | None:
    """Return the architecture that classifies with the same model; None without one."""
    names = getattr(references, _MAPPINGS[Task.CLASSIFICATION]).get(architecture.model_type)
    if names is None or architecture.task is Task.CLASSIFICATION:
        return None
    name = names if isinstance(names, str) else names[0]
    return Architecture(name, architecture.model_type, Task.CLASSIFICATION)


def build(architecture: Architecture) -> Any:
    """Return a model in the published default widths, on the meta device: at most LAYERS and EXPERTS of them.

    Raises:
        Exception: any error of transformers; the class has no usable default configuration.
    """
    try:
        return _build(architecture, short=True)
    except Exception:  # a class may check its depth against other fields
        return _build(architecture, short=False)


def _build(architecture: Architecture, *, short: bool) -> Any:
    config = references.CONFIG_MAPPING[architecture.model_type]()
    if short:
        _shorten(config)
    if architecture.task is Task.CLASSIFICATION:
        config.num_labels = LABELS
    config.architectures = [architecture.name]
    cls = getattr(references, architecture.name)
    with torch.device("meta"), references.meta_device_safe_creation_ops(), references.no_init_weights():
        return cls._from_config(config, dtype=torch.bfloat16)


def _shorten(config: Any) -> None:
    """Cut layers and experts of a configuration and of its parts, and each list that has an item a layer."""
    for name in config.sub_configs:
        if (part := getattr(config, name, None)) is not None:
            _shorten(part)
    for name in _EXPERT_COUNTS:
        if isinstance(count := vars(config).get(name), int) and count > EXPERTS:
            setattr(config, name, EXPERTS)
    for name in _DEPTHS:
        depth = vars(config).get(name)
        if not isinstance(depth, int) or depth <= LAYERS:
            continue
        for field, value in list(vars(config).items()):
            if isinstance(value, list) and len(value) == depth:
                setattr(config, field, value[:LAYERS])
        setattr(config, name, LAYERS)


def checkpoint_tensors(model: Any) -> Tensors:
    """Return the tensors that `save_pretrained` writes: tied weights once, names as in published files."""
    ignored = set(model._keys_to_ignore_on_save or ())
    kept = {name for name, _ in model.named_parameters()}
    tied = {name for name, _ in model.named_parameters(remove_duplicate=False)} - kept
    state = {name: value for name, value in model.state_dict().items() if name not in ignored | tied}
    return described(references.revert_weight_conversion(model, state))


def described(state: Mapping[str, Any]) -> Tensors:
    """Return dtypes and shapes of a state dict."""
    return {name: (_DTYPES[value.dtype][0], tuple(value.shape)) for name, value in state.items()}


def header(tensors: Tensors) -> tuple[bytes, int]:
    """Return a safetensors header, and the size in bytes of the file that it begins."""
    sizes = dict(_DTYPES.values())
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    reached = 0
    for name, (dtype, shape) in tensors.items():
        end = reached + math.prod(shape) * sizes[dtype]
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [reached, end]}
        reached = end
    text = json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text, 8 + len(text) + reached


class HeaderOnly:
    """A checkpoint source whose weights are a header alone."""

    def __init__(self, name: str, config: bytes, tensors: Tensors) -> None:
        self._name = name
        head, size = header(tensors)
        self._files = {"config.json": config, "model.safetensors": head}
        self._sizes = {"config.json": len(config), "model.safetensors": size}

    @property
    def uri(self) -> str:
        return f"/corpus/{self._name}"

    def sizes(self) -> dict[str, int]:
        return self._sizes

    @contextmanager
    def open(self, name: str) -> Iterator[ByteStream]:
        yield io.BytesIO(self._files[name])

    def read_range(self, name: str, start: int, size: int) -> bytes:
        return self._files[name][start : start + size]
