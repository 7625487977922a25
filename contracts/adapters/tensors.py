"""Sort an adapter file's tensors, and check them against the configuration and the base model.

Needs only the standard library and RE2; see `config`. Names are those of PEFT's `get_peft_model_state_dict`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from contracts.adapters.config import EMBEDDING, HEAD, AdapterConfigError, LoraConfig, is_saved
from contracts.adapters.experts import Experts, doubled_experts
from contracts.adapters.parts import Part, Shape, split_name
from contracts.adapters.pattern import suffixes
from contracts.adapters.shapes import (
    RESIZED,
    TargetModule,
    demand_whole,
    expected_shape,
    find_target,
    tokens_of,
)

__all__ = ["EMBEDDING", "HEAD", "Modules", "Part", "Shape", "max_rank", "sort_tensors", "tokens_of"]
_OF_TRAINING: Final = ".lora_velora_embed"
"""VeLoRA's projection of activations, used only in the backward pass."""

Modules = dict[str, dict[Part, str]]
"""Module's path -> its tensors' names."""
_SAVED: Final = frozenset({Part.WEIGHT, Part.BIAS, Part.PARAMETER})
"""Parts of a replaced module."""


def sort_tensors(config: LoraConfig, tensors: Mapping[str, Shape], base: Mapping[str, Shape]) -> Modules:
    """Sort an adapter's tensors by module and part, and check their shapes.

    Args:
        config: with the layout of these tensors (`LoraConfig.for_tensors`).
        tensors: shape by name, of the adapter's file.
        base: shape by common name (`module_names`), of the base's checkpoint; `lm_head.weight` also where the
            head is tied.

    Returns:
        the tensors' names by common name of their module. Stacked experts have the name of their parameter
        (`model.layers.0.mlp.experts.down_proj`).

    Raises:
        AdapterConfigError: naming the tensor or field, and what was expected.
    """
    modules: Modules = {}
    targets: dict[str, TargetModule] = {}
    owners: dict[str, str] = {}
    experts = Experts(base, config.layout)
    # Sorted, so that a file is refused with the same text whatever order its reader gives.
    for name, shape in sorted(tensors.items()):
        if name.endswith(_OF_TRAINING):
            continue
        path, part = split_name(name)
        if (target := targets.get(path)) is None:
            target = targets[path] = find_target(config, name, path, base, experts)
            if (other := owners.setdefault(target.module, path)) != path:
                raise AdapterConfigError(f"tensor {name}: {other} is the same module of the base model")
        expected = expected_shape(config, name, shape, target, part, base)
        if shape != expected:
            raise _shape_error(name, shape, expected, target)
        if (other := modules.setdefault(target.module, {}).setdefault(part, name)) != name:
            raise AdapterConfigError(f"tensor {name} is in the file twice: as {other} too")
    if not any(part is not Part.BASE_WEIGHT for parts in modules.values() for part in parts):
        raise AdapterConfigError("adapter_model.safetensors holds no LoRA tensor")
    if (doubled := doubled_experts(modules)) is not None:
        first, second = (next(iter(modules[module].values())) for module in doubled)
        raise AdapterConfigError(f"tensor {second}: {first} changes the same experts of the base model")
    for target in targets.values():
        demand_whole(config, target, modules[target.module], tensors)
    _demand_fields_used(config, modules, base, experts)
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


def _shape_error(name: str, shape: Shape, expected: Shape, target: TargetModule) -> AdapterConfigError:
    message = f"tensor {name} has shape {list(shape)}, expected {list(expected)}"
    vocabulary = target.weight[0]
    mismatches = [(held, size) for held, size in zip(shape, expected, strict=False) if held != size]
    if (
        target.module in (EMBEDDING, HEAD)
        and len(shape) == len(expected)
        and [size for _, size in mismatches] == [vocabulary]
    ):
        message += (
            f": the adapter was trained with a vocabulary of {mismatches[0][0]} tokens, the base model has"
            f" {vocabulary}. {RESIZED}"
        )
    return AdapterConfigError(message)


def _has_lora(parts: Mapping[Part, str]) -> bool:
    return Part.A in parts or Part.EMBEDDING_A in parts


def _demand_fields_used(
    config: LoraConfig, modules: Modules, base: Mapping[str, Shape], experts: Experts
) -> None:
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
    saved = [path_of(module) for module, parts in modules.items() if parts.keys() & _SAVED]
    rows = [path_of(module) for module, parts in modules.items() if Part.TOKENS in parts]
    unused = {
        "modules_to_save": [
            name for name in config.modules_to_save if _saved(name, paths) and not _saved(name, saved)
        ],
        "trainable_token_indices": [
            name for name in config.token_indices if not any(path.endswith(name) for path in rows)
        ],
        "target_parameters": _without_pair(config, modules, [*paths, *experts.stacked_names()]),
    }
    for field, names in unused.items():
        for name in names:
            raise AdapterConfigError(
                f"adapter_config.json: {field} names {name!r}, but no tensor belongs to it"
            )


def _without_pair(config: LoraConfig, modules: Modules, paths: Sequence[str]) -> list[str]:
    """Return the names of target_parameters that the base has, and that have no pair in the file.

    Args:
        paths: of the base's modules and stacks of experts, as the trainer called them.
    """
    adapted = [module for module, parts in modules.items() if _has_lora(parts)]
    held = [config.layout.path_of(module) for module in adapted]
    return [
        name for name in config.parameters if _is_parameter(name, paths) and not _is_parameter(name, held)
    ]


def _is_parameter(name: str, paths: Sequence[str]) -> bool:
    """Return True if the name is that of one of these parameters, or of a module's weight."""
    ends = {name, name.removesuffix(".weight")}
    return any(path.endswith(f".{end}") or path == end for end in ends for path in paths)


def _saved(name: str, paths: Sequence[str]) -> bool:
    return any(is_saved(path, name) for path in paths)


def _module_paths(config: LoraConfig, base: Mapping[str, Shape]) -> list[str]:
    """Return the paths of the base's modules as the adapter's trainer called them."""
    path_of = config.layout.path_of
    return [path_of(name.removesuffix(".weight")) for name in base if name.endswith(".weight")]
