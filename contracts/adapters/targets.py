"""Which modules a LoRA adapter changes, as PEFT finds them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from contracts.adapters.pattern import NonlinearPatternError, Pattern, PatternError, suffixes

ALL_LINEAR: Final = "all-linear"


@dataclass(frozen=True, slots=True)
class Targets:
    """target_modules, exclude_modules, layers_to_transform and layers_pattern.

    Attributes:
        names: target_modules as a list; empty for a regular expression.
        expression: target_modules as a regular expression.
        by_tensors: target_modules is an expression beyond linear-time matching, so the modules that have
            tensors in the adapter's file are the targets.
        all_linear: every linear module but the head.
        excluded_names: exclude_modules as a list.
        excluded: exclude_modules as a regular expression; None also where it cannot be matched in linear
            time, since the file holds no tensors of excluded modules.
        saved: modules_to_save, which PEFT excludes from the targets.
        layers: decoder layers that are changed; empty for all.
        lists: names of the lists of layers (`layers` of `model.layers.3`), empty for any.
    """

    names: frozenset[str]
    expression: Pattern | None
    by_tensors: bool
    all_linear: bool
    excluded_names: frozenset[str]
    excluded: Pattern | None
    saved: tuple[str, ...]
    layers: frozenset[int]
    lists: tuple[str, ...]

    @classmethod
    def read(cls, value: Mapping[str, Any], *, saved: tuple[str, ...] = ()) -> Self:
        """Raises ValueError naming the field. `saved` is modules_to_save."""
        all_linear = str(value.get("target_modules")).lower() == ALL_LINEAR
        targets = {} if all_linear else value
        names, expression, nonlinear = _modules(targets, "target_modules")
        excluded_names, excluded, _ = _modules(value, "exclude_modules")
        layers = value.get("layers_to_transform")
        layers = [layers] if isinstance(layers, int) and not isinstance(layers, bool) else layers or []
        if not isinstance(layers, list) or not all(type(item) is int and item >= 0 for item in layers):
            raise ValueError(
                f"layers_to_transform must be a layer's number or a list of them, got {layers!r}"
            )
        lists = value.get("layers_pattern") or []
        lists = [lists] if isinstance(lists, str) else lists
        if not isinstance(lists, list) or not all(_is_name(item) for item in lists):
            raise ValueError(f"layers_pattern must be a module's name or a list of them, got {lists!r}")
        return cls(
            names,
            expression,
            nonlinear,
            all_linear,
            excluded_names,
            excluded,
            saved,
            frozenset(layers),
            tuple(lists),
        )

    def match(self, module: str, *, is_head: bool) -> bool:
        """Return True if PEFT adapts the module."""
        if self.excludes(module):
            return False
        if self.by_tensors:
            return True
        if self.all_linear:
            return not is_head
        if self.expression is not None:
            return self.expression.matches(module)
        if module in self.names:
            return True
        return is_named(module, self.names) and (not self.layers or self._layer_of(module) in self.layers)

    def excludes(self, module: str) -> bool:
        """Return True if exclude_modules or modules_to_save keeps the module from being adapted."""
        if is_named(module, self.excluded_names) or (self.excluded and self.excluded.matches(module)):
            return True
        return any(f".{name}." in f".{module}." for name in self.saved)

    def _layer_of(self, module: str) -> int | None:
        """Return the first number between dots, or the first after one of the layer lists' names."""
        parts = module.split(".")
        for name in self.lists or (None,):
            start = 1 if name is None else 0
            for before, part in zip(parts[start:-1], parts[start + 1 : -1], strict=False):
                if part.isdecimal() and (name is None or before == name):
                    return int(part)
        return None


def _modules(value: Mapping[str, Any], field: str) -> tuple[frozenset[str], Pattern | None, bool]:
    """Return the names, the expression, and whether it is beyond linear-time matching."""
    given = value.get(field)
    if isinstance(given, str) and given:
        try:
            return frozenset(), Pattern(given), False
        except NonlinearPatternError:
            return frozenset(), None, True
        except PatternError as error:
            raise ValueError(f"{field} {error}") from error
    given = given or []
    if not isinstance(given, list) or not all(isinstance(item, str) for item in given):
        raise ValueError(f"{field} must be a text or a list of texts, got {given!r}")
    return frozenset(given), None, False


def is_named(module: str, names: Collection[str]) -> bool:
    """Return True if the module's path is one of the names, or ends in one after a dot."""
    return any(end in names for end in suffixes(module))


def _is_name(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9_.]{1,200}", value) is not None
