"""The shape of a model's layers of experts, and the names of their modules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

from kernels.moe import GroupRule

ROUTED_PATHS: Final[Mapping[str, str]] = {
    "router": "mlp.gate",
    "shared_gate_proj": "mlp.shared_expert.gate_proj",
    "shared_up_proj": "mlp.shared_expert.up_proj",
    "shared_down_proj": "mlp.shared_expert.down_proj",
    "shared_scale": "mlp.shared_expert_gate",
}
"""Linear modules that all rows of a layer of experts pass, and their paths within the decoder layer."""
ROUTED_MODULES: Final[Mapping[str, tuple[str, ...]]] = {
    "router": ("router",),
    "shared_gate_up": ("shared_gate_proj", "shared_up_proj"),
    "shared_down": ("shared_down_proj",),
    "shared_scale": ("shared_scale",),
}
"""Linear layers as computed, and the modules whose rows each stacks."""
EXPERT_MODULES: Final[Mapping[str, tuple[str, ...]]] = {
    "expert_gate_up": ("gate_proj", "up_proj"),
    "expert_fused": ("gate_up_proj",),
    "expert_down": ("down_proj",),
}
"""Products of a single expert that adapters change, and the modules whose rows each stacks.

`expert_fused` has one A for gate and up, as stacked adapters have; its output is that of `expert_gate_up`.
"""


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """The experts of a model.

    Attributes:
        num_experts: of each layer.
        top_k: experts of each row.
        intermediate_size: of one expert.
        normalizes: True if the weights of a row's experts are divided by their sum.
        layers: decoder layers that have experts; the others have a dense feed-forward.
        shared_size: intermediate size of the expert that every row passes; 0 for none.
        interleaved: True if rows of gate and up alternate in the checkpoint's and in adapters' gate_up_proj.
            The worker holds the gate's rows before up's in every family.
        a_on_inputs: True if A of stacked pairs is on the inputs in files of every version of PEFT.
        shared_scales: True if the shared expert has a gate of its own.
        groups: how the router chooses among groups of experts; None for a softmax over all.
        corrected: True if a bias of the checkpoint corrects the router's choice, but not the weights.
        weighs_inputs: True if a row's weights multiply the experts' inputs in place of their outputs.
        transposed: True if tensors of all experts are [experts, in, out].
    """

    num_experts: int
    top_k: int
    intermediate_size: int
    normalizes: bool
    layers: frozenset[int]
    shared_size: int = 0
    interleaved: bool = False
    a_on_inputs: bool = False
    shared_scales: bool = False
    groups: GroupRule | None = None
    corrected: bool = False
    weighs_inputs: bool = False
    transposed: bool = False

    def expert_shapes(self, hidden: int) -> dict[str, tuple[int, int]]:
        """Return (out, in) of the modules of a single expert."""
        inner = self.intermediate_size
        return {
            "gate_proj": (inner, hidden),
            "up_proj": (inner, hidden),
            "gate_up_proj": (2 * inner, hidden),
            "down_proj": (hidden, inner),
        }

    def routed_shapes(self, hidden: int) -> dict[str, tuple[int, int]]:
        """Return (out, in) of the modules that all rows pass."""
        shapes = {"router": (self.num_experts, hidden)}
        if self.shared_size:
            shapes |= {
                "shared_gate_proj": (self.shared_size, hidden),
                "shared_up_proj": (self.shared_size, hidden),
                "shared_down_proj": (hidden, self.shared_size),
            }
        if self.shared_scales:
            shapes["shared_scale"] = (1, hidden)
        return shapes


def expert_key(expert: int, module: str) -> str:
    """Return the name of an expert's module among the weights of an adapter's layer."""
    return f"experts.{expert}.{module}"


@cache
def expert_keys(experts: int, name: str) -> tuple[str, ...]:
    """Return the names of a product of `EXPERT_MODULES`: expert by expert, slice by slice of each."""
    return tuple(expert_key(expert, module) for expert in range(experts) for module in EXPERT_MODULES[name])
