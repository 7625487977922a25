"""Layers that a published checkpoint fuses and transformers splits, by architecture.

transformers splits and joins weights when it loads these checkpoints, so adapters that were trained with it
have pairs on layers that the checkpoint's header does not name. A rule tells the shapes of such layers from
those of the checkpoint. Source: `conversion_mapping.py` of transformers 5.23. Layers that only have another
name are in renames.json.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

Shape = tuple[int, ...]
_WEIGHT, _BIAS = ".weight", ".bias"


class Rule(ABC):
    """How one kind of fused layer is split."""

    @abstractmethod
    def layers(self, base: Mapping[str, Shape]) -> Iterator[tuple[str, Shape]]:
        """Yield name and shape of tensors that transformers has and the checkpoint lacks."""


@dataclass(frozen=True, slots=True)
class Split(Rule):
    """One layer holds the rows of several.

    Attributes:
        fused: end of its path.
        parts: ends of the paths of transformers' layers, in the order of their rows.
        output: end of the path of attention's output projection, whose inputs are the rows of the first part;
            the other parts share the rest. "" if all parts have the same number of rows.
        root: start of the checkpoint's path, and of transformers' path in its place.
    """

    fused: str
    parts: tuple[str, ...]
    output: str = ""
    root: tuple[str, str] = ("", "")

    def layers(self, base: Mapping[str, Shape]) -> Iterator[tuple[str, Shape]]:
        begin, own = self.root
        for name, shape in base.items():
            kind = _BIAS if name.endswith(_BIAS) else _WEIGHT
            if name.startswith(begin) and name.endswith(f".{self.fused}{kind}"):
                prefix = name.removesuffix(f"{self.fused}{kind}")
                sizes = self._sizes(shape, base.get(f"{prefix}{self.output}{_WEIGHT}", ()))
                for part, size in zip(self.parts, sizes, strict=False):
                    yield f"{own}{prefix.removeprefix(begin)}{part}{kind}", size

    def _sizes(self, shape: Shape, output: Shape) -> list[Shape]:
        """Return the shapes of the parts; an empty list if the rows cannot be split so."""
        if len(self.parts) == 1:
            return [shape]
        rows, first = shape[0], shape[0] // len(self.parts)
        if self.output:
            first = output[1] if len(output) == 2 else 0
        rest = rows - first
        if first < 1 or rest < 1 or rest % (len(self.parts) - 1):
            return []
        others = rest // (len(self.parts) - 1)
        if not self.output and others != first:
            return []
        return [(first, *shape[1:]), *[(others, *shape[1:])] * (len(self.parts) - 1)]


@dataclass(frozen=True, slots=True)
class Joined(Rule):
    """Several parameters hold the rows of one layer.

    Attributes:
        parts: names of the checkpoint's parameters.
        layer: common name of transformers' layer.
    """

    parts: tuple[str, ...]
    layer: str

    def layers(self, base: Mapping[str, Shape]) -> Iterator[tuple[str, Shape]]:
        shapes = [base.get(f"{part}{_WEIGHT}", ()) for part in self.parts]
        if all(len(shape) == 2 for shape in shapes) and len({shape[1] for shape in shapes}) == 1:
            yield f"{self.layer}{_WEIGHT}", (sum(shape[0] for shape in shapes), shapes[0][1])


@dataclass(frozen=True, slots=True)
class Groups(Rule):
    """One list of experts holds several groups of the same number of experts.

    Attributes:
        experts: end of the path of the checkpoint's list.
        groups: ends of the paths of transformers' lists, in the order of the experts' numbers.
    """

    experts: str
    groups: tuple[str, ...]

    def layers(self, base: Mapping[str, Shape]) -> Iterator[tuple[str, Shape]]:
        pattern = re.compile(rf"(.*\.){re.escape(self.experts)}\.([0-9]{{1,6}})(\..+)")
        found = [(match, shape) for name, shape in base.items() if (match := pattern.fullmatch(name))]
        counts: dict[str, int] = {}
        for match, _ in found:
            counts[match[1]] = max(counts.get(match[1], 0), int(match[2]) + 1)
        for match, shape in found:
            size = -(-counts[match[1]] // len(self.groups))
            group, number = divmod(int(match[2]), size)
            yield f"{match[1]}{self.groups[group]}.{number}{match[3]}", shape


_GATE_AND_UP: Final = ("mlp.gate_proj", "mlp.up_proj")
_VISION: Final = Split("attn.qkv", ("attention.q_proj", "attention.k_proj", "attention.v_proj"))
_VISION_ENCODER: Final = replace(_VISION, root=("vision_model.encoder.", "vision_tower."))
_GRANITE: Final = (
    Split("block_sparse_moe.input_linear", ("block_sparse_moe.experts.gate_up_proj",)),
    Split("block_sparse_moe.output_linear", ("block_sparse_moe.experts.down_proj",)),
)
_ARIA: Final = (
    Split("mlp.experts.fc1", ("mlp.experts.gate_up_proj",)),
    Split("mlp.experts.fc2", ("mlp.experts.down_proj",)),
)
_RULES: Final[Mapping[str, tuple[Rule, ...]]] = {
    "AriaForConditionalGeneration": _ARIA,
    "AriaTextForCausalLM": _ARIA,
    "Ernie4_5_VLMoeForConditionalGeneration": (
        Groups("mlp.experts", ("mlp.text_moe.experts", "mlp.vision_moe.experts")),
    ),
    "GraniteMoeForCausalLM": _GRANITE,
    "GraniteMoeHybridForCausalLM": _GRANITE,
    "GraniteMoeSharedForCausalLM": _GRANITE,
    "HrmTextForCausalLM": (
        Split("mlp.gate_up_proj", _GATE_AND_UP),
        Split(
            "attn.gqkv_proj",
            ("self_attn.gate_proj", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        ),
    ),
    "Molmo2ForConditionalGeneration": (
        Split(
            "self_attn.att_proj",
            ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            output="self_attn.attn_out",
        ),
        Split("mlp.ff_proj", tuple(reversed(_GATE_AND_UP))),
        Joined(
            ("model.transformer.wte.embedding", "model.transformer.wte.new_embedding"), "model.embed_tokens"
        ),
    ),
    "NemotronH_Omni_Reasoning_V3": (_VISION,),
    "QianfanOCRForConditionalGeneration": (_VISION_ENCODER,),
}


def split_layers(base: Mapping[str, Shape], architecture: str) -> dict[str, Shape]:
    """Return the tensors that transformers has on this architecture and the checkpoint holds otherwise.

    Args:
        base: the checkpoint's tensors by common name (`module_names`).
        architecture: the base model's.
    """
    rules = _RULES.get(architecture, ())
    return {name: shape for rule in rules for name, shape in rule.layers(base) if name not in base}
