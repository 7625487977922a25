"""Shapes of a base's experts, in whichever of two forms its checkpoint holds them.

A layer's experts are one matrix each (`experts.3.up_proj`, [out, in]), or one tensor for all
(`experts.up_proj`, [experts, out, in] or [experts, in, out]). Adapters are trained on either form of the
same model: transformers stacks the experts of most families when it loads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from contracts.adapters.module_names import Layout, canonical_name

Shape = tuple[int, ...]
_SEGMENT: Final = ".experts."
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
        holder, found, rest = path.rpartition(_SEGMENT)
        number, _, layer = rest.partition(".")
        if not found or not number.isascii() or not number.isdecimal() or len(number) > 6:
            return None
        stacks = self.parameters(f"{holder}.experts")
        layer = canonical_name(layer)
        shape = stacks.get(layer)
        halves = 1
        if shape is None and layer in (_GATE, _UP):
            shape, halves = stacks.get(_BOTH), 2
        if shape is None or int(number) >= shape[0]:
            return None
        _, first, second = shape
        shapes = {(first // halves, second), (second // halves, first)}
        return f"{self.common_name(f'{holder}.experts')}.{number}.{layer}", tuple(sorted(shapes))

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
