"""Sort an adapter file's tensors, and check them against the configuration and the base model.

Needs only the standard library and RE2; see `config`. Names are those of PEFT's `get_peft_model_state_dict`.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from typing import Final

from contracts.adapters.config import EMBEDDING, HEAD, PREFIX, AdapterConfigError, LoraConfig
from contracts.adapters.foreign_weights import MLX_REFUSAL
from contracts.adapters.pattern import suffixes

LORA_MODULES: Final = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""Linear modules of a decoder layer."""
__all__ = ["EMBEDDING", "HEAD", "LORA_MODULES", "Modules", "Part", "Shape", "max_rank", "sort_tensors"]
_LAYERS: Final = "model.layers."
_HEAD_NORMS: Final = ("q_norm", "k_norm")
_ADAPTER_NAME: Final = re.compile(r"\.(lora_(?:embedding_)?[AB]|lora_magnitude_vector)\.default(?=\.|$)")
"""Matches the adapter name in tensor names, which a trainer leaves that saves its raw state."""
_OF_TRAINING: Final = ".lora_velora_embed"
"""VeLoRA's projection of activations, used only in the backward pass."""
_RESIZED: Final = (
    "Train new tokens by trainable_token_indices in rows that the base has to spare, or have the resized base"
    " (`model.get_base_model().save_pretrained(...)`) registered as a base model"
)

Shape = tuple[int, ...]


class Part(enum.Enum):
    """The role of a tensor in its module; the value is the suffix of the tensor's name."""

    A = ".lora_A.weight"
    B = ".lora_B.weight"
    EMBEDDING_A = ".lora_embedding_A"
    EMBEDDING_B = ".lora_embedding_B"
    MAGNITUDE = ".lora_magnitude_vector"
    LORA_BIAS = ".lora_B.bias"
    TOKENS = ".token_adapter.trainable_tokens_delta"
    BASE_WEIGHT = ".base_layer.weight"
    BIAS = ".bias"
    WEIGHT = ".weight"

    # Enum's own hash is written in Python, and a load looks parts up thousands of times.
    __hash__ = object.__hash__


_ENDS: Final = (
    (".lora_magnitude_vector.weight", Part.MAGNITUDE),
    (".base_layer.bias", Part.BIAS),
    *((part.value, part) for part in Part),
)
"""Suffixes in the order of matching: `.weight` and `.bias` end most of the others."""

Modules = dict[str, dict[Part, str]]
"""Module's path -> its tensors' names."""


def sort_tensors(config: LoraConfig, tensors: Mapping[str, Shape], base: Mapping[str, Shape]) -> Modules:
    """Sort an adapter's tensors by module and part, and check their shapes.

    Args:
        config: with the layout of these tensors (`LoraConfig.for_tensors`).
        tensors: shape by name, of the adapter's file.
        base: shape by common name (`module_names`), of the base's checkpoint; `lm_head.weight` also where the
            head is tied.

    Returns:
        the tensors' names by common name of their module.

    Raises:
        AdapterConfigError: naming the tensor or field, and what was expected.
    """
    modules: Modules = {}
    # Sorted, so that a file is refused with the same text whatever order its reader gives.
    for name, shape in sorted(tensors.items()):
        if name.endswith(_OF_TRAINING):
            continue
        path, part = _split_name(name)
        module = config.layout.common_name(path)
        expected = _expected(config, name, module, part, base)
        if shape != expected:
            raise _shape_error(name, shape, expected, module, base)
        if (other := modules.setdefault(module, {}).setdefault(part, name)) != name:
            raise AdapterConfigError(f"tensor {name} is in the file twice: as {other} too")
    if not any(part is not Part.BASE_WEIGHT for parts in modules.values() for part in parts):
        raise AdapterConfigError("adapter_model.safetensors holds no LoRA tensor")
    for module, parts in modules.items():
        _demand_whole(config, module, parts)
    _demand_fields_used(config, modules, base)
    return modules


def absent_names(config: LoraConfig, base: Mapping[str, Shape]) -> list[str]:
    """Return a text for each module that the configuration names and the base model lacks."""
    paths = _module_paths(config, base)
    ends = {end for path in paths for end in suffixes(path)}
    absent = {
        "target_modules": sorted(config.targets.names - ends),
        "modules_to_save": [name for name in config.modules_to_save if not _saved(name, paths)],
    }
    return [
        f"{field} names {name!r}, which this base model lacks"
        for field, names in absent.items()
        for name in names
    ]


def max_rank(config: LoraConfig, modules: Modules) -> int:
    """Largest rank that a module has; 1 when the adapter only replaces tensors."""
    return max([1, *(config.rank_of(module) for module, parts in modules.items() if _has_lora(parts))])


def _split_name(name: str) -> tuple[str, Part]:
    path = name.removeprefix(PREFIX)
    if path != name:
        if ".default" in path:
            path = _ADAPTER_NAME.sub(r".\1", path)
        for end, part in _ENDS:
            if path.endswith(end) and len(path) > len(end):
                return path.removesuffix(end), part
    if name.endswith((".lora_a", ".lora_b")):
        raise AdapterConfigError(f"tensor {name[:200]} is not PEFT's: {MLX_REFUSAL}")
    raise AdapterConfigError(
        f"tensor {name[:200]} is not served: expected base_model.model.<module's path> and one of "
        + ", ".join(part.value for part in Part)
    )


def _shape_error(
    name: str, shape: Shape, expected: Shape, module: str, base: Mapping[str, Shape]
) -> AdapterConfigError:
    message = f"tensor {name} has shape {list(shape)}, expected {list(expected)}"
    vocabulary = base[f"{module}.weight"][0]
    mismatches = [(held, size) for held, size in zip(shape, expected, strict=False) if held != size]
    if (
        module in (EMBEDDING, HEAD)
        and len(shape) == len(expected)
        and [size for _, size in mismatches] == [vocabulary]
    ):
        message += (
            f": the adapter was trained with a vocabulary of {mismatches[0][0]} tokens, the base model has"
            f" {vocabulary}. {_RESIZED}"
        )
    return AdapterConfigError(message)


def _expected(config: LoraConfig, name: str, module: str, part: Part, base: Mapping[str, Shape]) -> Shape:
    """Return the shape that the tensor must have; raise AdapterConfigError if it does not belong here."""
    weight = base.get(f"{module}.weight")
    if weight is None:
        raise AdapterConfigError(f"tensor {name}: the base model has no module {module}")
    if part is Part.WEIGHT or part is Part.BASE_WEIGHT:
        return _whole(config, name, module, part, weight)
    if part is Part.BIAS:
        return _bias(config, name, module, base)
    if part is Part.TOKENS:
        return len(_tokens(config, name, module, weight)), weight[1]
    return _lora(config, name, module, part, weight)


def _lora(config: LoraConfig, name: str, module: str, part: Part, weight: Shape) -> Shape:
    embeds = module == EMBEDDING
    of_embedding = part in (Part.EMBEDDING_A, Part.EMBEDDING_B)
    kind = module.rpartition(".")[2]
    if not embeds and module != HEAD and not (kind in LORA_MODULES and module.startswith(_LAYERS)):
        raise AdapterConfigError(
            f"tensor {name}: LoRA is not served on {kind}, only on {', '.join(LORA_MODULES)}, "
            "embed_tokens and lm_head of the language model"
        )
    if embeds != of_embedding and part in (Part.A, Part.B, Part.EMBEDDING_A, Part.EMBEDDING_B):
        raise AdapterConfigError(f"tensor {name}: {'an embedding' if embeds else 'a linear module'} has none")
    if not config.adapts(module):
        raise AdapterConfigError(f"tensor {name}: target_modules does not name {module}, so PEFT ignores it")
    rank, (out_features, in_features) = config.rank_of(module), weight
    if part is Part.MAGNITUDE or part is Part.LORA_BIAS:
        field = "use_dora" if part is Part.MAGNITUDE else "lora_bias"
        if not (config.use_dora if part is Part.MAGNITUDE else config.lora_bias):
            raise AdapterConfigError(f"tensor {name}: adapter_config.json does not set {field}")
        return (in_features if embeds else out_features,)
    shapes = {
        Part.A: (rank, in_features),
        Part.B: (out_features, rank),
        Part.EMBEDDING_A: (rank, out_features),
        Part.EMBEDDING_B: (in_features, rank),
    }
    return shapes[part]


def _whole(config: LoraConfig, name: str, module: str, part: Part, weight: Shape) -> Shape:
    """Return the shape of a replaced module (modules_to_save), or of the embedding that PEFT saves."""
    kind = module.rpartition(".")[2]
    tops = (EMBEDDING, HEAD)
    if module in tops and (part is Part.BASE_WEIGHT or config.adapts(module)):
        return weight
    if not config.replaces(module):
        hint = (
            f"; PEFT saves it unasked where the vocabulary was resized. {_RESIZED}" if module in tops else ""
        )
        raise AdapterConfigError(f"tensor {name}: modules_to_save does not name {module}{hint}")
    is_norm = module.startswith("model.") and len(weight) == 1 and kind not in _HEAD_NORMS
    if module not in tops and not is_norm:
        raise AdapterConfigError(
            f"adapter_config.json: modules_to_save {kind!r} is not served, only embed_tokens, lm_head and "
            "norms of whole rows"
        )
    return weight


def _bias(config: LoraConfig, name: str, module: str, base: Mapping[str, Shape]) -> Shape:
    shape = base.get(f"{module}.bias")
    if not config.bias:
        raise AdapterConfigError(f"tensor {name}: adapter_config.json sets bias to 'none'")
    if shape is None or module.rpartition(".")[2] not in LORA_MODULES:
        raise AdapterConfigError(f"tensor {name}: {module} of the base model has no bias")
    return shape


def _tokens(config: LoraConfig, name: str, module: str, weight: Shape) -> tuple[int, ...]:
    indices = tokens_of(config, module)
    if module not in (EMBEDDING, HEAD) or not indices:
        raise AdapterConfigError(f"tensor {name}: trainable_token_indices does not name {module}")
    if (last := max(indices)) >= weight[0]:
        raise AdapterConfigError(
            f"adapter_config.json: trainable_token_indices names token {last}, the base model has {weight[0]}"
        )
    return indices


def tokens_of(config: LoraConfig, module: str) -> tuple[int, ...]:
    """The tokens whose rows the adapter replaces in the module."""
    for name, indices in config.token_indices.items():
        if config.layout.path_of(module).endswith(name):
            return indices
    return ()


def _has_lora(parts: Mapping[Part, str]) -> bool:
    return Part.A in parts or Part.EMBEDDING_A in parts


def _demand_whole(config: LoraConfig, module: str, parts: Mapping[Part, str]) -> None:
    replaced = Part.TOKENS in parts or Part.WEIGHT in parts
    lora = not replaced and parts.keys() - {Part.BIAS, Part.BASE_WEIGHT}
    if lora:
        pair = [Part.EMBEDDING_A, Part.EMBEDDING_B] if module == EMBEDDING else [Part.A, Part.B]
        for part in [*pair, *[Part.MAGNITUDE] * config.use_dora]:
            if part not in parts:
                raise AdapterConfigError(f"tensor {PREFIX}{module}{part.value} is missing")
    elif replaced and (extra := parts.keys() - {Part.BASE_WEIGHT, Part.WEIGHT}) and len(parts) > 1:
        name = parts[next(iter(extra))]
        raise AdapterConfigError(f"tensor {name}: {module} is replaced, so this tensor is not served")


def _demand_fields_used(config: LoraConfig, modules: Modules, base: Mapping[str, Shape]) -> None:
    """Refuse a file without tensors of a module or field that the configuration names."""
    path_of, paths = config.layout.path_of, _module_paths(config, base)
    changed = {
        end for module, parts in modules.items() if _has_lora(parts) for end in suffixes(path_of(module))
    }
    named = paths if config.targets.names else []
    adapted = {
        end for path in named if config.adapts(config.layout.common_name(path)) for end in suffixes(path)
    }
    kinds = ", ".join(sorted({module.rpartition(".")[2] for module in modules}))
    for target in sorted(config.targets.names & adapted):
        if target not in changed:
            raise AdapterConfigError(
                f"adapter_config.json targets {target!r}, but no tensor belongs to a module of that name;"
                f" tensors are of {kinds}"
            )
    for field, names, part in (
        ("modules_to_save", config.modules_to_save, Part.WEIGHT),
        ("trainable_token_indices", tuple(config.token_indices), Part.TOKENS),
    ):
        held = [path_of(module) for module, parts in modules.items() if part in parts]
        for wanted in names:
            known = field != "modules_to_save" or _saved(wanted, paths)
            if known and not any(module.endswith(wanted) for module in held):
                raise AdapterConfigError(
                    f"adapter_config.json: {field} names {wanted!r}, but no tensor belongs to it"
                )


def _saved(name: str, paths: Sequence[str]) -> bool:
    return any(path.endswith(name) for path in paths)


def _module_paths(config: LoraConfig, base: Mapping[str, Shape]) -> list[str]:
    """Return the paths of the base's modules as the adapter's trainer called them."""
    path_of = config.layout.path_of
    return [path_of(name.removesuffix(".weight")) for name in base if name.endswith(".weight")]
