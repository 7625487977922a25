"""One name for each module of a model, however its checkpoint or an adapter's trainer calls it.

A language model alone calls its first layer `model.layers.0`. Inside a vision-language model the same layer
is `language_model.model.layers.0` in published checkpoints and in transformers before 4.52, and
`model.language_model.layers.0` in transformers since. The class without a head (`AutoModel`), on which
embedding adapters are trained, calls it `layers.0`, or `language_model.layers.0` inside a vision-language
model. Adapters carry the names of the class that they were trained with, so the names of adapter and
checkpoint often differ. We compare the names of the language model
alone. Source: `_checkpoint_conversion_mapping` of transformers 4.52 to 5.

Names that no layout translates are aligned with the base's by what both have in common (`aligned`): wrappers
such as `model.` and `bert.` are left out, the names of stacked and single experts are one, and `renames` has
the names of modules that transformers calls otherwise than published checkpoints.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from contracts.adapters.renames import NO_RENAMES, Renames

_BODY: Final = "model."
_HEAD: Final = "lm_head"
_ROOTS: Final = ("layers.", "embed_tokens", "norm")
"""A language model's modules where no prefix marks them."""
_WRAPPERS: Final = frozenset({"model", "language_model", "base_model", "llm", "transformer", "backbone"})
"""Attributes under which classes hold a part of a model. Names that differ by them alone stay apart."""
_SAME: Final[Mapping[str, str]] = {
    "block_sparse_moe": "mlp",
    "feed_forward": "mlp",
    "w1": "gate_proj",
    "w2": "down_proj",
    "w3": "up_proj",
    "embed_out": "lm_head",
}
"""Segments that trainers and checkpoints use for the same module."""
_OUTER: Final = frozenset(
    {
        "albert",
        "bert",
        "deberta",
        "distilbert",
        "electra",
        "gpt_neox",
        "modernbert",
        "roberta",
        "rwkv",
        "xlm_roberta",
    }
)
"""Attributes under which a class with a head holds the model that the class without one is."""
_APART: Final = re.compile(
    r"(?:^|[._])(vision|visual|vit|image|audio|speech|mtp|draft|talker|encoder|decoder|thinker)(?=[._]|$)"
)
"""Parts of a model that must not be taken for one another."""
_SEGMENT: Final = ".experts."
_SINGLE: Final = re.compile(
    r"(?P<holder>.+\.experts)\."
    r"(?:(?P<number>\d+)\.(?P<layer>[^.]+)|(?P<listed>\w+_proj)s\.(?P<place>\d+))"
)
"""A projection of one expert: `experts.3.up_proj`, or `experts.gate_up_projs.3` of a list of modules."""
_STACKS: Final = ("gate_up_proj", "gate_proj", "up_proj", "down_proj")
"""Parameters of all experts of a layer."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How one kind of class calls the modules.

    Attributes:
        body: prefix of the language model's modules, in place of `model.`.
        head: path of the output head, in place of `lm_head`.
        others: prefix of all other modules, such as a vision tower.
        aligned: trainer's path -> common name, of modules that the prefixes do not translate.
        paths: the reverse of `aligned`.
        outer: first segments that only wrap the model, in the base or in the adapter.
        renames: of the base's architecture.
    """

    body: str = _BODY
    head: str = _HEAD
    others: str = ""
    aligned: Mapping[str, str] = field(default_factory=dict)
    paths: Mapping[str, str] = field(default_factory=dict)
    outer: frozenset[str] = frozenset()
    renames: Renames = NO_RENAMES

    def common_name(self, path: str) -> str:
        """Return the common name of a module, or of a tensor, with this layout's path."""
        if path in self.aligned:
            return self.aligned[path]
        if path == self.head or path.startswith(f"{self.head}."):
            return _HEAD + path.removeprefix(self.head)
        if path.startswith(self.body) and (self.body or path.startswith(_ROOTS)):
            return _BODY + path.removeprefix(self.body)
        return path.removeprefix(self.others)

    def path_of(self, name: str) -> str:
        """Return this layout's path of a module with a common name, or of its weight."""
        module = name.removesuffix(".weight")
        if module in self.paths:
            return self.paths[module] + name.removeprefix(module)
        if name.startswith(_BODY):
            return self.body + name.removeprefix(_BODY)
        if name == _HEAD or name.startswith(f"{_HEAD}."):
            return self.head + name.removeprefix(_HEAD)
        return self.others + name

    def key(self, path: str) -> str:
        """Return the canonical name that the module at this path has in the base's checkpoint."""
        return self.renames.checkpoint_name(canonical_name(path, self.outer))


PLAIN: Final = Layout()
"""A language model alone."""
LAYOUTS: Final = (
    Layout("language_model.model.", "language_model.lm_head"),
    Layout("model.language_model.", others="model."),
    Layout("language_model."),
)
"""Vision-language models; the last is such a model without a head."""
WITHOUT_HEAD: Final = Layout("")
"""A language model alone, without a head."""


def layout_of(paths: Iterable[str]) -> Layout:
    """Return the layout that these paths of modules or tensors have; `PLAIN` if none other fits."""
    known = list(paths)
    for layout in LAYOUTS:
        if any(path.startswith(layout.body) for path in known):
            return layout
    for path in known:
        if path.startswith(_BODY):
            return PLAIN
        if path.startswith(_ROOTS[:2]):
            return WITHOUT_HEAD
    return PLAIN


def aligned(
    layout: Layout, modules: Collection[str], base: Mapping[str, object], renames: Renames = NO_RENAMES
) -> Layout:
    """Return the layout with the common names of modules that it does not translate.

    Args:
        modules: paths of the adapter's modules as the trainer called them.
        base: tensors of the base model by common name (`model.layers.0.mlp.up_proj.weight`).
        renames: of the base's architecture.
    """
    missing = [path for path in modules if f"{layout.common_name(path)}.weight" not in base]
    if not missing:
        return layout
    names = [name.removesuffix(".weight") for name in base if name.endswith(".weight")]
    outer = outer_of([*names, *modules])
    layout = replace(layout, outer=outer, renames=renames)
    index = _index(names, outer)
    aligned: dict[str, str] = {}
    for path in missing:
        key = layout.key(path)
        if key not in index:
            key = canonical_name(path, outer)
        name = index.get(key)
        if name is not None and _APART.findall(key) == _APART.findall(canonical_name(name, outer)):
            aligned[path] = name
    paths = {name: path for path, name in aligned.items()} | _expert_paths(missing, names, layout)
    return replace(layout, aligned=aligned, paths=paths)


def outer_of(paths: Iterable[str]) -> frozenset[str]:
    """Return the first segments of these paths that only wrap the model."""
    return frozenset(_OUTER & {path.partition(".")[0] for path in paths})


def single_expert(path: str) -> tuple[str, str, str] | None:
    """Return the module that holds experts, the expert's number and the canonical name of its projection.

    Return None for a path that is not of a single expert.
    """
    if (found := _SINGLE.fullmatch(path)) is None:
        return None
    number, layer = found["number"] or found["place"], found["layer"] or found["listed"]
    return found["holder"], number, canonical_name(layer)


def _expert_paths(missing: Iterable[str], names: Iterable[str], layout: Layout) -> dict[str, str]:
    """Return the trainer's paths, by common name, of experts that the base holds in the other form.

    They are those of an expert in a base with stacks, and those of the stacks in a base with single experts.
    """
    held = (name.rpartition(_SEGMENT)[0] for name in names if _SEGMENT in name)
    holders = _index(dict.fromkeys(f"{holder}.experts" for holder in held), layout.outer)
    paths: dict[str, str] = {}
    for path in missing:
        if path.endswith(".experts") and (common := holders.get(layout.key(path))):
            paths |= {f"{common}.{item}": f"{path}.{item}" for item in _STACKS}
        elif single := single_expert(path):
            holder, number, layer = single
            common = holders.get(layout.key(holder))
            if common is not None:
                paths[f"{common}.{number}.{layer}"] = path
    return paths


def canonical_name(path: str, outer: Collection[str] = ()) -> str:
    """Return the path without wrappers, in the names that layouts share.

    Args:
        outer: first segments that are wrappers in this base or this adapter.
    """
    segments = path.split(".")
    if segments[0] in outer and len(segments) > 1:
        del segments[0]
    return ".".join(_SAME.get(segment, segment) for segment in segments if segment not in _WRAPPERS)


def is_tower(module: str) -> bool:
    """Return True for modules of a vision or audio tower, or of a draft model beside the language model."""
    return any(part not in ("encoder", "decoder") for part in _APART.findall(module))


def _index(names: Iterable[str], outer: Collection[str]) -> dict[str, str | None]:
    """Return the common name by canonical name; None where several have the same."""
    index: dict[str, str | None] = {}
    for name in names:
        canonical = canonical_name(name, outer)
        index[canonical] = None if canonical in index else name
    return index
