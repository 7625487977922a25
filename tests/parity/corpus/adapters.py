"""Adapters that PEFT makes on a model: attention, MLP, experts in both layouts, router, heads and others."""

from __future__ import annotations

import copy
import enum
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch

from tests.parity import references
from tests.parity.corpus.models import Task, Tensors, described

RANK: Final = 13
"""A size that divides no published width, so that a transposed matrix of all experts never fits."""
_SINGLE_EXPERTS: Final = 4
"""Experts of one layer that an adapter of single experts changes: an adapter need not change all of them."""
_ATTENTION: Final = re.compile(
    r"(?:^|[._])(?:\w*att\w*|mixer|mamba|ssm|recurrent\w*|temporal_block|conv|time_mix\w*|delta_net)(?:[._]|$)",
    re.I,
)
_MLP: Final = re.compile(
    r"(?:^|[._])(?:\w*mlp\w*|ffn?|feed_forward|fc\w*|intermediate|output|dense_\w+|c_fc|wi|wo|moe|lin[12])"
    r"(?:[._\d]|$)",
    re.I,
)
_TOWERS: Final = (
    "vision|visual|image|vit|patch|pixel|audio|speech|projector|connector|resampler|perceiver|merger|aligner"
)
_TOWER: Final = re.compile(rf"(?:{_TOWERS})", re.I)
_VISION: Final = re.compile(r"(?:vision|visual|image|vit)", re.I)
_ROUTER: Final = re.compile(r"(?:^|\.)(?:mlp|moe|block_sparse_moe|feed_forward|ffn|mixer)\.(gate|router)$")
_EXPERT: Final = re.compile(r"^(.*\.experts\.)(\d+)\.(\w+)\.weight$")


class Part(enum.StrEnum):
    """Part of a model that an adapter of the corpus changes."""

    ATTENTION = "attention"
    MLP = "MLP"
    ALL_LINEAR = "all linear layers"
    VISION = "vision tower"
    STACKED_EXPERTS = "experts (`target_parameters`)"
    SINGLE_EXPERTS = "experts (a module each)"
    ROUTER = "router"
    EMBEDDING = "embedding"
    HEAD = "output head"
    CLASSIFIER = "classification head"


@dataclass(frozen=True)
class Adapter:
    """An adapter's two files: adapter_config.json, and the tensors of the header of its weights."""

    part: Part
    config: bytes
    tensors: Tensors


def adapters(model: Any, task: Task, checkpoint: Tensors) -> Iterator[Adapter]:
    """Yield the adapters of a model; those that PEFT refuses to make are left out.

    Args:
        checkpoint: tensors of the model's checkpoint; the experts' names there are those of earlier trainers.
    """
    for part, options in _recipes(model, task):
        if (adapter := by_peft(part, copy.deepcopy(model), options)) is not None:
            yield adapter
    if skeleton := _single_experts(checkpoint):
        kinds = sorted({path.rpartition(".")[2] for path in skeleton})
        options = {"target_modules": kinds}
        if (adapter := by_peft(Part.SINGLE_EXPERTS, _tree(skeleton), options)) is not None:
            yield adapter


def by_peft(part: Part, model: Any, options: Mapping[str, Any]) -> Adapter | None:
    """Return the adapter that PEFT saves; None if PEFT does not make it. Side effect: changes `model`."""
    config = references.LoraConfig(r=RANK, lora_alpha=2 * RANK, **options)
    try:
        adapted = references.get_peft_model(model, config, low_cpu_mem_usage=True)
        state = references.get_peft_model_state_dict(adapted)
    except Exception:  # PEFT refuses layers of kinds that it does not know, by errors of many classes
        return None
    text = json.dumps(adapted.peft_config["default"].to_dict(), default=sorted)
    return Adapter(part, text.encode(), described(state))


def _recipes(model: Any, task: Task) -> Iterator[tuple[Part, dict[str, Any]]]:
    base: dict[str, Any] = {"task_type": "SEQ_CLS" if task is Task.CLASSIFICATION else "CAUSAL_LM"}
    if task is not Task.CAUSAL:
        base["exclude_modules"] = rf".*(?:{_TOWERS}).*"
    attention = _kinds(model, _ATTENTION)
    mlp = _kinds(model, _MLP) - attention
    if attention:
        yield (
            Part.CLASSIFIER if task is Task.CLASSIFICATION else Part.ATTENTION,
            {**base, "target_modules": sorted(attention)},
        )
    if mlp:
        yield Part.MLP, {**base, "target_modules": sorted(mlp)}
    yield Part.ALL_LINEAR, {"task_type": base["task_type"], "target_modules": "all-linear"}
    if task is Task.VISION and (paths := _vision(model)):
        expression = "|".join(re.escape(path).replace(r"\-", "-") for path in paths[:8])
        yield Part.VISION, {"task_type": "CAUSAL_LM", "target_modules": expression}
    yield from _sparse(model, base["task_type"])
    if task is not Task.CLASSIFICATION:
        yield from _ends(model)


def _sparse(model: Any, task_type: str) -> Iterator[tuple[Part, dict[str, Any]]]:
    """Yield recipes for stacked experts and for the router."""
    if stacks := sorted({f"{path.rpartition('.')[2]}.{name}" for path, name in _stacks(model)}):
        yield Part.STACKED_EXPERTS, {"task_type": task_type, "target_parameters": stacks}
    for path, module in model.named_modules():
        if (found := _ROUTER.search(path)) is None:
            continue
        weight = getattr(module, "weight", None)
        if isinstance(module, torch.nn.Linear):
            yield Part.ROUTER, {"task_type": task_type, "target_modules": [found[0].lstrip(".")]}
        elif isinstance(weight, torch.nn.Parameter) and weight.dim() == 2:
            names = [f"{found[0].lstrip('.')}.weight"]
            yield Part.ROUTER, {"task_type": task_type, "target_parameters": names}
        else:
            continue
        return


def _ends(model: Any) -> Iterator[tuple[Part, dict[str, Any]]]:
    """Yield recipes for the input embedding and the output head."""
    paths = {id(module): path for path, module in model.named_modules()}
    for part, getter in ((Part.EMBEDDING, "get_input_embeddings"), (Part.HEAD, "get_output_embeddings")):
        try:
            path = paths.get(id(getattr(model, getter)()), "")
        except Exception:  # a class without one raises NotImplementedError or AttributeError
            continue
        kind = path.rpartition(".")[2]
        if kind and not kind.isdecimal():
            yield part, {"task_type": "CAUSAL_LM", "target_modules": [kind]}


def _linear(model: Any) -> Iterator[str]:
    kinds = (torch.nn.Linear, references.Conv1D)
    for path, module in model.named_modules():
        if isinstance(module, kinds) and not path.rpartition(".")[2].isdecimal():
            yield path


def _kinds(model: Any, pattern: re.Pattern[str]) -> set[str]:
    """Return the last segments of the language model's linear layers whose path matches."""
    paths = [path for path in _linear(model) if _TOWER.search(path) is None]
    return {path.rpartition(".")[2] for path in paths if pattern.search(path.partition(".")[2])}


def _vision(model: Any) -> list[str]:
    """Return the paths of linear layers of attention in the vision tower."""
    return [path for path in _linear(model) if _VISION.search(path) and _ATTENTION.search(path)]


def _stacks(model: Any) -> Iterator[tuple[str, str]]:
    """Yield module's path and name of each parameter that holds the experts of a layer."""
    for path, module in model.named_modules():
        for name, value in module.named_parameters(recurse=False):
            if value.dim() == 3 and "expert" in f"{path} {type(module).__name__}".lower():
                yield path, name


def _single_experts(checkpoint: Tensors) -> dict[str, tuple[int, int]]:
    """Return (out, in) by path of the first experts of the first sparse layer, where each is a matrix."""
    found: dict[str, tuple[int, int]] = {}
    holder = ""
    for name, (_, shape) in checkpoint.items():
        expert = _EXPERT.match(name)
        if expert is None or len(shape) != 2 or (holder and expert[1] != holder):
            continue
        holder = expert[1]
        if int(expert[2]) < _SINGLE_EXPERTS:
            found[name.removesuffix(".weight")] = (shape[0], shape[1])
    return found


def _tree(paths: Mapping[str, tuple[int, int]]) -> torch.nn.Module:
    """Return modules with linear layers at these paths, as classes with an expert a module have them."""
    root = torch.nn.Module()
    for path, (out, inner) in paths.items():
        *parents, last = path.split(".")
        node = root
        for name in parents:
            if not hasattr(node, name):
                node.add_module(name, torch.nn.Module())
            node = getattr(node, name)
        node.add_module(last, torch.nn.Linear(inner, out, bias=False, device="meta"))
    return root
