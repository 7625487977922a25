"""Linear modules of decoder layers by the names that adapters' files have for them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from worker_engine.checkpoint.experts_config import expert_key
from worker_engine.checkpoint.model_config import PATHS

_PATH: Final = re.compile(r"model\.layers\.(\d+)\.(.+)")
_EXPERT: Final = re.compile(r"mlp\.experts\.(\d+)\.(\w+)")
_STACK: Final = re.compile(r"mlp\.experts\.(\w+)")
_MODULES: Final[Mapping[str, str]] = {path: module for module, path in PATHS.items()}
_SAME: Final[Mapping[str, str]] = {
    "block_sparse_moe.": "mlp.",
    "feed_forward.": "mlp.",
    "mlp.router": "mlp.gate",
    ".shared_experts.": ".shared_expert.",
}
"""Parts of checkpoints' paths, and the same parts of `PATHS`."""
_PROJECTIONS: Final[Mapping[str, str]] = {
    "gate_proj": "gate_proj",
    "up_proj": "up_proj",
    "down_proj": "down_proj",
    "gate_up_proj": "gate_up_proj",
    "w1": "gate_proj",
    "w3": "up_proj",
    "w2": "down_proj",
}
"""An expert's projections by each of their names."""


class LayerModule(NamedTuple):
    """A module of a decoder layer.

    Attributes:
        key: of the layer's weights in `Adapter.layers`; of stacked experts the projection.
        path: the module's path, in one spelling for all checkpoints.
        stacked: True if the tensors are those of all experts.
        single: True for the module of one expert.
    """

    layer: int
    key: str
    path: str
    stacked: bool = False
    single: bool = False


def layer_module(path: str) -> LayerModule | None:
    """Return the module with this common name; None if it is no linear module of a decoder layer."""
    match = _PATH.fullmatch(path)
    if match is None:
        return None
    layer, rest = int(match[1]), match[2]
    for other, name in _SAME.items():
        rest = rest.replace(other, name, 1)
    full = f"model.layers.{layer}.{rest}"
    if (module := _MODULES.get(rest)) is not None:
        return LayerModule(layer, module, full)
    if (one := _EXPERT.fullmatch(rest)) is not None and one[2] in _PROJECTIONS:
        return LayerModule(layer, expert_key(int(one[1]), _PROJECTIONS[one[2]]), full, single=True)
    if (every := _STACK.fullmatch(rest)) is not None and every[1] in _PROJECTIONS:
        return LayerModule(layer, _PROJECTIONS[every[1]], full, stacked=True)
    return None
