"""Where an adapter's tensor belongs in the base model, and the shape that it must have there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from contracts.adapters.config import EMBEDDING, HEAD, PREFIX, AdapterConfigError, LoraConfig
from contracts.adapters.experts import Experts
from contracts.adapters.module_names import is_tower
from contracts.adapters.parts import Part, Shape

RESIZED: Final = (
    "Train new tokens by trainable_token_indices in rows that the base has to spare, or have the resized base"
    " (`model.get_base_model().save_pretrained(...)`) registered as a base model"
)
_EMBEDDINGS: Final = frozenset(
    {"embed_tokens", "wte", "wpe", "word_embeddings", "tok_embeddings", "embed_in"}
)
"""Names that every trainer gives to an embedding."""
_INPUTS: Final = (_EMBEDDINGS - {"wpe"}) | {"embeddings", "shared", "tokens_embed", "word_embedding", "w"}
"""Names of the embedding of the input's tokens. Those added here may be other modules too."""
_WIDENED: Final = ("embeddings_project", "embedding_hidden_mapping_in")
"""Names of the layer from a narrower embedding to the hidden size: Electra's; Albert's and RemBert's."""
_HEADS: Final = frozenset({"score", "classifier", "classification_head", "dense", "out_proj", "qa_outputs"})
"""Segments of the heads that PEFT adds to a base for SEQ_CLS and TOKEN_CLS."""
_PAIRS: Final = (Part.A, Part.B, Part.EMBEDDING_A, Part.EMBEDDING_B)


@dataclass(frozen=True, slots=True)
class TargetModule:
    """Module or parameter of the base that an adapter changes.

    Attributes:
        module: common name; of stacked experts the parameter's.
        weight: (out, in) of a linear layer, (rows, columns) of an embedding, (experts, d1, d2) of a stack,
            (out, in / groups, kernel...) of a convolution.
        others: further shapes that the weight may have, where the base does not tell.
        stacked: True if the pair belongs to all experts at once.
        is_new: True if the base lacks the module: a head of the adapter's task.
    """

    module: str
    weight: Shape
    others: tuple[Shape, ...] = ()
    stacked: bool = False
    is_new: bool = False


def find_target(
    config: LoraConfig, name: str, path: str, base: Mapping[str, Shape], experts: Experts
) -> TargetModule:
    """Return where tensor `name` with the trainer's module path belongs. Raises AdapterConfigError."""
    module = config.layout.common_name(path)
    if (weight := base.get(f"{module}.weight")) is not None:
        return TargetModule(
            module, weight, stacked=len(weight) == 3 and config.targets_parameter(f"{module}.weight")
        )
    holder = path
    while holder.endswith(".base_layer"):
        holder = holder.removesuffix(".base_layer")
    if stacks := experts.parameters(holder):
        return _stack(config, name, path, holder, stacks, experts)
    parent, _, parameter = path.rpartition(".")
    if (weight := experts.parameters(parent).get(parameter)) is not None:
        return TargetModule(f"{experts.common_name(parent)}.{parameter}", weight)
    if (single := experts.single(path)) is not None:
        common, shapes = single
        return TargetModule(common, shapes[0], shapes[1:])
    if (bias := base.get(f"{module}.bias")) is not None:
        return TargetModule(module, bias)
    if config.task in ("SEQ_CLS", "TOKEN_CLS") and set(path.split(".")) & _HEADS and config.replaces(module):
        return TargetModule(module, (0, _hidden_size(name, base)), is_new=True)
    raise AdapterConfigError(f"tensor {name}: the base model has no module {module}")


def _stack(
    config: LoraConfig, name: str, path: str, holder: str, stacks: Mapping[str, Shape], experts: Experts
) -> TargetModule:
    """Return the parameter that a wrapper changes.

    PEFT wraps a module once for each targeted parameter, in the order of their registration: the last is
    outermost, and each `.base_layer` leads to the one before.
    """
    common = experts.common_name(holder)
    targeted = [item for item in stacks if _targets_stack(config, common, holder, item)]
    targeted.sort(key=lambda item: (item.startswith(("down", "output")), item))
    depth = path.count(".base_layer", len(holder))
    if depth >= len(targeted):
        raise AdapterConfigError(
            f"tensor {name}: target_parameters names {len(targeted)} parameters of {holder}, "
            f"this is the pair of number {depth + 1}"
        )
    parameter = targeted[len(targeted) - 1 - depth]
    return TargetModule(f"{common}.{parameter}", stacks[parameter], stacked=True)


def _targets_stack(config: LoraConfig, common: str, holder: str, parameter: str) -> bool:
    """Return True if target_parameters names the stack by the checkpoint's path or by the trainer's."""
    paths = (config.layout.path_of(f"{common}.{parameter}"), f"{holder}.{parameter}")
    return any(f".{path}".endswith(f".{name}") for path in paths for name in config.parameters)


def expected_shape(
    config: LoraConfig, name: str, shape: Shape, target: TargetModule, part: Part, base: Mapping[str, Shape]
) -> Shape:
    """Return the shape that the tensor must have; raise AdapterConfigError if it does not belong here.

    Args:
        shape: that it has; chooses among several where the base does not tell.
    """
    module, weight = target.module, target.weight
    if part in (Part.WEIGHT, Part.BASE_WEIGHT, Part.PARAMETER):
        return _whole(config, name, shape, target, part)
    if part is Part.BIAS:
        return _bias(config, name, shape, target, base)
    if part is Part.TOKENS:
        return len(_tokens(config, name, module, weight)), weight[1]
    if len(weight) == 3 and not target.stacked and ".experts." in f"{module}.":
        raise AdapterConfigError(f"tensor {name}: PEFT adapts all experts at once by target_parameters alone")
    if target.is_new or len(weight) < 2:
        raise AdapterConfigError(f"tensor {name}: {module} is no linear layer, embedding or convolution")
    if target.stacked:
        return _stacked(config, name, shape, target, part)
    return _lora(config, name, shape, target, part)


def _lora(config: LoraConfig, name: str, shape: Shape, target: TargetModule, part: Part) -> Shape:
    module, weight = target.module, target.weight
    of_embedding = part in (Part.EMBEDDING_A, Part.EMBEDDING_B)
    kind = module.rpartition(".")[2].lower()
    embeds = is_embedding(module) or (of_embedding and ("embed" in kind or kind in _INPUTS))
    if embeds != of_embedding and part in _PAIRS:
        raise AdapterConfigError(f"tensor {name}: {'an embedding' if embeds else 'a linear module'} has none")
    if not config.adapts(module):
        raise AdapterConfigError(f"tensor {name}: target_modules does not name {module}, so PEFT ignores it")
    rank = config.rank_of(module)
    if part is Part.MAGNITUDE or part is Part.LORA_BIAS:
        field = "use_dora" if part is Part.MAGNITUDE else "lora_bias"
        if not (config.use_dora if part is Part.MAGNITUDE else config.lora_bias):
            raise AdapterConfigError(f"tensor {name}: adapter_config.json does not set {field}")
        if part is Part.MAGNITUDE and len(weight) > 2:
            return (1, weight[0], *([1] * (len(weight) - 2)))
        sizes = [(item[1] if embeds else item[0],) for item in (weight, *target.others)]
        return shape if shape in sizes else sizes[0]
    if len(weight) > 2:
        return _convolution(shape, weight, part, rank)
    choices = []
    for out_features, in_features in (weight, *target.others):
        choices.append(
            {
                Part.A: (rank, in_features),
                Part.B: (out_features, rank),
                Part.EMBEDDING_A: (rank, out_features),
                Part.EMBEDDING_B: (in_features, rank),
            }[part]
        )
    return shape if shape in choices else choices[0]


def _convolution(shape: Shape, weight: Shape, part: Part, rank: int) -> Shape:
    """A convolves over all inputs and B is a convolution of size 1 with the base's groups.

    The base's weight [out, in / groups, kernel...] does not tell the groups. A's inputs do, and B's follow.
    Earlier versions of PEFT made both without groups, also on depthwise convolutions.
    """
    out, inputs, *kernel = weight
    if part is Part.A:
        if inputs == 1 and shape == (rank, out, *kernel):
            return shape
        groups = shape[1] // inputs if len(shape) == len(weight) and inputs and not shape[1] % inputs else 1
        groups = groups if groups and not out % groups and not rank % groups else 1
        return (rank, groups * inputs, *kernel)
    groups = rank // shape[1] if len(shape) == len(weight) and shape[1] and not rank % shape[1] else 1
    groups = groups if not out % groups else 1
    return (out, rank // groups, *([1] * len(kernel)))


def _stacked(config: LoraConfig, name: str, shape: Shape, target: TargetModule, part: Part) -> Shape:
    """PEFT before 0.19 takes [experts, d1, d2] as (in, out), since then as (out, in) for most classes."""
    if part not in (Part.A, Part.B):
        raise AdapterConfigError(f"tensor {name}: stacked experts have pairs of lora_A and lora_B alone")
    rank, (experts, first, second) = config.rank_of(target.module), target.weight
    total = experts * rank
    choices = [(total, second), (total, first)] if part is Part.A else [(first, total), (second, total)]
    return shape if shape in choices else choices[0]


def _whole(config: LoraConfig, name: str, shape: Shape, target: TargetModule, part: Part) -> Shape:
    """Return the shape of a replaced module (modules_to_save), or of the embedding that PEFT saves."""
    module = target.module
    if module in (EMBEDDING, HEAD) and (part is Part.BASE_WEIGHT or config.adapts(module)):
        return target.weight
    if part is Part.BASE_WEIGHT and _is_adapted_head(config, module):
        return target.weight
    if not config.replaces(module) and not (part is Part.BASE_WEIGHT and is_embedding(module)):
        hint = (
            f"; PEFT saves it unasked where the vocabulary was resized. {RESIZED}"
            if module in (EMBEDDING, HEAD)
            else ""
        )
        raise AdapterConfigError(f"tensor {name}: modules_to_save does not name {module}{hint}")
    if target.is_new and len(shape) == 2 and shape[0] > 0:
        return (shape[0], target.weight[1])
    return target.weight


def _bias(
    config: LoraConfig, name: str, shape: Shape, target: TargetModule, base: Mapping[str, Shape]
) -> Shape:
    """Return the shape of a trained bias, or of the bias of a replaced module."""
    expected = base.get(f"{target.module}.bias")
    replaced = config.replaces(target.module)
    is_copy = ".base_layer." in name and _is_adapted_head(config, target.module)
    if not config.bias and not replaced and not is_copy:
        raise AdapterConfigError(f"tensor {name}: adapter_config.json sets bias to 'none'")
    if target.is_new and len(shape) == 1 and shape[0] > 0:
        return shape
    if expected is None:
        raise AdapterConfigError(f"tensor {name}: {target.module} of the base model has no bias")
    return expected


def _is_adapted_head(config: LoraConfig, module: str) -> bool:
    """Return True for a targeted head, of which PEFT saves the base's weight and bias too."""
    path = config.layout.path_of(module)
    return path.rpartition(".")[2] == HEAD and config.adapts(module)


def _tokens(config: LoraConfig, name: str, module: str, weight: Shape) -> tuple[int, ...]:
    indices = tokens_of(config, module)
    if not indices or len(weight) != 2:
        raise AdapterConfigError(f"tensor {name}: trainable_token_indices does not name {module}")
    if (last := max(indices)) >= weight[0]:
        raise AdapterConfigError(
            f"adapter_config.json: trainable_token_indices names token {last}, the base model has {weight[0]}"
        )
    return indices


def tokens_of(config: LoraConfig, module: str) -> tuple[int, ...]:
    """The tokens whose rows the adapter replaces in the module."""
    path = config.layout.path_of(module)
    for name, indices in config.token_indices.items():
        if path.endswith(name):
            return indices
    return ()


def demand_whole(
    config: LoraConfig, target: TargetModule, parts: Mapping[Part, str], tensors: Mapping[str, Shape]
) -> None:
    """Refuse a module of which a part is missing or too many are there. Raises AdapterConfigError."""
    module = target.module
    if target.is_new:
        _demand_head(target, parts, tensors)
    replaced = parts.keys() & {Part.TOKENS, Part.WEIGHT, Part.PARAMETER}
    if not replaced and parts.keys() - {Part.BIAS, Part.BASE_WEIGHT}:
        embeds = is_embedding(module) or Part.EMBEDDING_A in parts or Part.EMBEDDING_B in parts
        pair = [Part.EMBEDDING_A, Part.EMBEDDING_B] if embeds else [Part.A, Part.B]
        for part in [*pair, *[Part.MAGNITUDE] * config.use_dora]:
            if part not in parts:
                raise AdapterConfigError(f"tensor {PREFIX}{module}{part.value} is missing")
        _demand_pair_fits(config, target, [tensors[parts[part]] for part in pair], parts[pair[0]])
        _demand_same_rows(target, parts, tensors)
    elif replaced and (extra := parts.keys() - {Part.BASE_WEIGHT, Part.WEIGHT}) and len(parts) > 1:
        if extra <= {Part.BIAS, Part.PARAMETER} and config.replaces(module) and Part.WEIGHT in parts:
            return
        name = parts[next(iter(extra))]
        raise AdapterConfigError(f"tensor {name}: {module} is replaced, so this tensor is not served")


def _demand_head(target: TargetModule, parts: Mapping[Part, str], tensors: Mapping[str, Shape]) -> None:
    """Refuse a head without a weight, or with a bias of another number of classes."""
    if Part.WEIGHT not in parts:
        raise AdapterConfigError(f"tensor {PREFIX}{target.module}.weight is missing")
    classes = tensors[parts[Part.WEIGHT]][0]
    if Part.BIAS in parts and tensors[parts[Part.BIAS]] != (classes,):
        raise AdapterConfigError(
            f"tensor {parts[Part.BIAS]} has shape {list(tensors[parts[Part.BIAS]])}, expected {[classes]}"
        )


def _demand_pair_fits(config: LoraConfig, target: TargetModule, pair: list[Shape], name: str) -> None:
    """Refuse an A and a B that each fit the base but not one another."""
    a, b = pair
    if target.stacked and sorted((a[1], b[0])) != sorted(target.weight[1:]):
        raise AdapterConfigError(
            f"tensor {name} has {a[1]} columns and its lora_B {b[0]} rows, expected the two sizes of "
            f"{list(target.weight)}"
        )
    if target.others and (b[0], a[1]) not in (target.weight, *target.others):
        raise AdapterConfigError(
            f"tensor {name} has {a[1]} columns and its lora_B {b[0]} rows, expected one of "
            f"{[list(reversed(shape)) for shape in (target.weight, *target.others)]}"
        )
    if len(target.weight) > 2 and not target.stacked:
        rank, (out, inputs, *_) = config.rank_of(target.module), target.weight
        is_depthwise = inputs == 1 and a[1] == out and b[1] == rank
        if a[1] != rank // b[1] * inputs and not is_depthwise:
            groups = rank // b[1]
            raise AdapterConfigError(f"tensor {name} has {a[1]} inputs, its lora_B is of {groups} groups")


def _demand_same_rows(target: TargetModule, parts: Mapping[Part, str], tensors: Mapping[str, Shape]) -> None:
    """Refuse a magnitude or a bias with other rows than B, where the base tells several shapes."""
    for part in (Part.MAGNITUDE, Part.LORA_BIAS):
        if target.others and part in parts and tensors[parts[part]][0] != tensors[parts[Part.B]][0]:
            rows = tensors[parts[Part.B]][0]
            raise AdapterConfigError(f"tensor {parts[part]} has not the {rows} rows of its lora_B")


def input_embedding(modules: Mapping[str, Shape]) -> str:
    """Return the common name of the embedding of the input's tokens; "" without one.

    Args:
        modules: shapes by common name.
    """
    if EMBEDDING in modules:
        return EMBEDDING
    for names in (_EMBEDDINGS - {"wpe"}, _INPUTS):
        for module, shape in modules.items():
            if len(shape) == 2 and module.rpartition(".")[2] in names and not is_tower(module):
                return module
    return ""


def is_embedding(module: str) -> bool:
    """Return True if every trainer has an embedding at this name."""
    return module.rpartition(".")[2] in _EMBEDDINGS


def _hidden_size(name: str, base: Mapping[str, Shape]) -> int:
    """Return the hidden size, which a head takes: the input embedding's columns, if no layer widens them."""
    modules = {module.removesuffix(".weight"): shape for module, shape in base.items()}
    for module, shape in modules.items():
        if module.endswith(_WIDENED) and len(shape) == 2:
            return shape[0]
    if embedding := input_embedding(modules):
        return modules[embedding][1]
    raise AdapterConfigError(
        f"tensor {name}: the base model does not tell its hidden size, so no head can be"
        " checked: register a base that holds this head"
    )
