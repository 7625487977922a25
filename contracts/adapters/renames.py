"""Names of modules in published checkpoints that differ from those in transformers, by architecture.

transformers renames modules when it loads and saves a checkpoint, and PEFT writes transformers' names into
adapters. The table in renames.json is derived from transformers' own conversion of each architecture by
`python -m tests.parity.corpus.renames`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Final

_TABLE: Final = Path(__file__).with_name("renames.json")
_NUMBER: Final = "*"
"""Stands for a number in a rule; a rule keeps the numbers of the path in their order."""


class Renames:
    """Rules of one architecture; each replaces a run of segments of a canonical name."""

    def __init__(self, rules: Iterable[tuple[str, str]]) -> None:
        """Take pairs of dotted segments: transformers' and the checkpoint's."""
        parts = [(old.split("."), new.split(".") if new else []) for old, new in rules]
        self._rules = sorted(parts, key=lambda rule: -len(rule[0]))
        self._known: dict[str, str] = {}

    def checkpoint_name(self, name: str) -> str:
        """Return the checkpoint's canonical name of the module with this canonical name in transformers.

        The rule with the longest run applies, once.
        """
        if not self._rules:
            return name
        segments = name.split(".")
        numbers = [segment for segment in segments if segment.isdecimal()]
        template = [_NUMBER if segment.isdecimal() else segment for segment in segments]
        kind = ".".join(template)
        if (renamed := self._known.get(kind)) is None:
            renamed = self._known[kind] = ".".join(self._renamed(template))
        left = iter(numbers)
        return ".".join(next(left, "") if item == _NUMBER else item for item in renamed.split("."))

    def _renamed(self, template: list[str]) -> list[str]:
        for old, new in self._rules:
            for start in range(len(template) - len(old) + 1):
                if template[start : start + len(old)] == old:
                    return [*template[:start], *new, *template[start + len(old) :]]
        return template


NO_RENAMES: Final = Renames(())


def renames_of(architecture: str) -> Renames:
    """Return the rules of an architecture; none for one whose checkpoints have transformers' names.

    Each call returns a new object, since it remembers names of the adapter that it is used for.
    """
    return Renames((old, new) for old, new in _table().get(architecture, ()))


@cache
def _table() -> Mapping[str, list[list[str]]]:
    value: dict[str, list[list[str]]] = json.loads(_TABLE.read_text(encoding="utf-8"))
    return value
