"""Derives contracts/adapters/renames.json from transformers: `python -m tests.parity.corpus.renames`.

transformers converts names when it saves a model. For each module whose canonical name changes, a rule has
the segments that differ. Where such a rule misnames another module of the model, whole names are rules.
"""

from __future__ import annotations

import json
import os
import re
import sys
import warnings
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

from contracts.adapters.module_names import canonical_name, outer_of
from contracts.adapters.renames import Renames

PATH: Final = Path(__file__).parents[3] / "contracts" / "adapters" / "renames.json"
_END: Final = re.compile(r"\.(?:weight|bias)$")
_NUMBER: Final = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.)")

Rule = tuple[str, str]


def conversions(model: Any) -> dict[str, str]:
    """Return the checkpoint's name of each tensor that is saved unchanged, without merged and split ones."""
    from tests.parity import references

    state = dict(model.state_dict())
    names = {id(value): name for name, value in state.items()}
    saved = references.revert_weight_conversion(model, state)
    return {names[id(value)]: name for name, value in saved.items() if id(value) in names}


def rules(names: Mapping[str, str]) -> list[Rule]:
    """Return the rules of one architecture, from its tensors' names in transformers and in the checkpoint."""
    outer = outer_of([*names, *names.values()])
    pairs = {}
    for old, new in names.items():
        old, new = (canonical_name(_END.sub("", name), outer) for name in (old, new))
        if _NUMBER.findall(old) == _NUMBER.findall(new):
            pairs[_NUMBER.sub("*", old)] = _NUMBER.sub("*", new)
        elif not _NUMBER.findall(old):
            pairs[old] = new  # the checkpoint numbers a layer that transformers names
    found = {_difference(old, new) for old, new in pairs.items() if old != new}
    whole: dict[str, str] = {}
    while True:
        renames = Renames(sorted({*found, *whole.items()}))
        wrong = {old: new for old, new in pairs.items() if not _renames_to(renames, old, new)}
        if not wrong.keys() - whole.keys():
            return sorted({*found, *whole.items()})
        whole |= wrong


def _renames_to(renames: Renames, old: str, new: str) -> bool:
    return renames.checkpoint_name(old.replace("*", "0")) == new.replace("*", "0")


def _difference(old: str, new: str) -> Rule:
    """Return the segments that differ, with one of those around them where one side would be empty."""
    left, right = old.split("."), new.split(".")
    begin = next((at for at, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), None)
    begin = min(len(left), len(right)) if begin is None else begin
    end = 0
    while end < min(len(left), len(right)) - begin and left[-1 - end] == right[-1 - end]:
        end += 1
    if len(left) - end == begin or len(right) - end == begin:
        end, begin = (end - 1, begin) if end else (end, begin - 1)
    return ".".join(left[begin : len(left) - end]), ".".join(right[begin : len(right) - end])


def examine(architecture: Any) -> list[Rule]:
    """Return the rules of an architecture; none for one that cannot be built."""
    from tests.parity.corpus.models import build

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return rules(conversions(build(architecture)))
        except Exception as error:  # any error of a class without a usable default configuration
            print(f"{architecture.name}: {type(error).__name__}", file=sys.stderr)
            return []


def render() -> str:
    """Return the table's text."""
    from tests.parity import references
    from tests.parity.corpus.models import architectures

    references.load()
    chosen = sorted(architectures())
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("fork")) as pool:
        found = dict(zip((item.name for item in chosen), pool.map(examine, chosen), strict=True))
    rows = [f" {json.dumps(name)}: {json.dumps(rule)}" for name, rule in found.items() if rule]
    return "{\n" + ",\n".join(rows) + "\n}\n"


if __name__ == "__main__":
    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
    django.setup()
    PATH.write_text(render(), encoding="utf-8")
