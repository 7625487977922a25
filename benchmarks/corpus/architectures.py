"""Architectures at the sizes of their configuration classes, with the tensors of a published checkpoint."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

Shapes = dict[str, tuple[int, ...]]

_MAPPINGS: Final = (
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
)


@dataclass(frozen=True, slots=True)
class Architecture:
    """A model class and the model type of its configuration."""

    name: str
    model_type: str
    is_classifier: bool


def architectures() -> Iterator[Architecture]:
    """Yield the causal, vision-language and sequence-classification classes of transformers by name."""
    from transformers.models.auto import modeling_auto

    classes: dict[str, Architecture] = {}
    for mapping in _MAPPINGS:
        for model_type, names in getattr(modeling_auto, mapping).items():
            for name in (names,) if isinstance(names, str) else names:
                is_classifier = "SEQUENCE_CLASSIFICATION" in mapping
                classes.setdefault(name, Architecture(name, model_type, is_classifier))
    yield from (classes[name] for name in sorted(classes))


def build(architecture: Architecture, **changes: Any) -> Any:
    """Return the model on the meta device, at its configuration's default sizes.

    Args:
        changes: fields of the text configuration to replace, such as the number of layers.
    """
    import torch
    import transformers
    from transformers import CONFIG_MAPPING

    config = CONFIG_MAPPING[architecture.model_type]()
    if changes:
        config = _changed(config, changes)
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = getattr(transformers, architecture.name)(config)
    return model.eval()


def published(model: Any) -> Shapes:
    """Return shape by name of the tensors that `save_pretrained` writes: published names, one per tie."""
    from transformers.core_model_loading import revert_weight_conversion

    tensors = dict(model.state_dict())
    seen: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if name in tensors and seen.setdefault(id(parameter), name) != name:
            del tensors[name]
    return {name: tuple(tensor.shape) for name, tensor in revert_weight_conversion(model, tensors).items()}


def config_json(model: Any) -> Mapping[str, Any]:
    """Return config.json as `save_pretrained` writes it."""
    config = model.config
    config.architectures = [type(model).__name__]
    value: dict[str, Any] = json.loads(config.to_json_string(use_diff=True))
    return value | {"dtype": "bfloat16"}


def _changed(config: Any, changes: Mapping[str, Any]) -> Any:
    for section in (config, config.get_text_config()):
        for name, value in changes.items():
            if hasattr(section, name):
                setattr(section, name, value)
        if "num_hidden_layers" in changes and getattr(section, "layer_types", None):
            section.layer_types = section.layer_types[: changes["num_hidden_layers"]]
    return config
