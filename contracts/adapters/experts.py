"""Shapes of a base's experts, in whichever of two forms its checkpoint holds them.

A layer's experts are one matrix each (`experts.3.up_proj`, [out, in]), or one tensor for all
(`experts.up_proj`, [experts, out, in] or [experts, in, out]). Adapters are trained on either form of the
same model: transformers stacks the experts of most families when it loads them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from contracts.adapters.module_names import Layout, canonical_name, single_expert

Shape = tuple[int, ...]
_SEGMENT: Final = ".experts."
_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,5}")
"""An expert's number: of `0` and `00` only one is a module's name."""
_GATE, _UP, _BOTH = "gate_proj", "up_proj", "gate_up_proj"


class Experts:
    """Stacked parameters and single experts by the module that holds them."""

    def __init__(self, base: Mapping[str, Shape], layout: Layout) -> None:
        """Read the base's tensors, at first use. `layout` is the adapter's, `base` as it is aligned with."""
        self._base, self._layout = base, layout
        self._stacks: dict[str, dict[str, Shape]] | None = None
        self._names: dict[str, str] = {}

    def parameters(self, path: str) -> Mapping[str, Shape]:
        """Return the stacked parameters of the module at this path: name -> [experts, d1, d2]."""
        return self._read().get(self._layout.key(path), {})

    def stacked_names(self) -> list[str]:
        """Return the common names of all stacked parameters, also where the base has a matrix an expert."""
        return [f"{self._names[key]}.{name}" for key, stacks in self._read().items() for name in stacks]

    def common_name(self, path: str) -> str:
        """Return the base's name of the module that holds the experts."""
        return self._names[self._layout.key(path)]

    def single(self, path: str) -> tuple[str, tuple[Shape, ...]] | None:
        """Return the common name and the possible [out, in] of a single expert's layer; None without one.

        A stack does not tell the order of its dimensions, so that there may be two shapes.
        """
        found = single_expert(path)
        if found is None or _NUMBER.fullmatch(found[1]) is None:
            return None
        holder, number, layer = found
        stacks = self.parameters(holder)
        shape = stacks.get(layer)
        halves = 1
        if shape is None and layer in (_GATE, _UP):
            shape, halves = stacks.get(_BOTH), 2
        if shape is None or int(number) >= shape[0]:
            return None
        _, first, second = shape
        shapes = {(first // halves, second), (second // halves, first)}
        return f"{self.common_name(holder)}.{number}.{layer}", tuple(sorted(shapes))

    def _read(self) -> dict[str, dict[str, Shape]]:
        if self._stacks is None:
            self._stacks = {}
            for name, shape in self._base.items():
                if _SEGMENT in name and name.endswith(".weight"):
                    self._add(name.removesuffix(".weight"), shape)
            for stacks in self._stacks.values():
                gate, up = stacks.get(_GATE), stacks.get(_UP)
                if gate is not None and gate == up and _BOTH not in stacks:
                    stacks[_BOTH] = (gate[0], 2 * gate[1], gate[2])
        return self._stacks

    def _add(self, name: str, shape: Shape) -> None:
        holder, _, rest = name.rpartition(_SEGMENT)
        number, _, layer = rest.partition(".")
        common = f"{holder}.experts"
        canonical = canonical_name(common, self._layout.outer)
        assert self._stacks is not None
        stacks = self._stacks.setdefault(canonical, {})
        self._names[canonical] = common
        if number.isdecimal() and len(shape) == 2:
            layer = canonical_name(layer)
            experts = stacks.get(layer, (0,))[0]
            stacks[layer] = (experts + 1, *shape)
        elif len(shape) == 3:
            stacks[canonical_name(rest)] = shape


def doubled_experts(modules: Iterable[str]) -> tuple[str, str] | None:
    """Return two modules that change the same projection of an expert; None without such a pair.

    One of them is a stack, the other a stack or a single expert.

    Args:
        modules: common names, as `sort_tensors` returns them.
    """
    stacks: dict[tuple[str, str], str] = {}
    singles: list[tuple[tuple[str, str], str]] = []
    for module in modules:
        holder, found, rest = module.rpartition(_SEGMENT)
        number, is_single, layer = rest.partition(".")
        for projection in _projections(layer or number) if found else ():
            key = (holder, projection)
            if is_single:
                singles.append((key, module))
            elif (other := stacks.setdefault(key, module)) != module:
                return other, module
    return next(((stacks[key], module) for key, module in singles if key in stacks), None)


def _projections(layer: str) -> tuple[str, ...]:
    """Return the projections that a layer or a parameter of experts holds."""
    canonical = canonical_name(layer)
    return (_GATE, _UP) if canonical == _BOTH else (canonical,)
