"""Classes of regular expressions spelled out, wherever a schema holds one and nowhere else."""

from __future__ import annotations

from typing import Any

import pytest

from worker_engine.text.character_classes import schema_with_ascii_classes, with_ascii_classes


@pytest.mark.parametrize(
    ("pattern", "spelled"),
    [
        (r"\d+", "[0-9]+"),
        (r"[\d.-]", "[[0-9].-]"),
        (r"[^\w]", "[^[0-9A-Za-z_]]"),
        (r"\\d", r"\\d"),
        (r"\\\d", r"\\[0-9]"),
        (r"\.\p{L}\n", r"\.\p{L}\n"),
        ("\\", "\\"),
    ],
)
def test_classes(pattern: str, spelled: str) -> None:
    assert with_ascii_classes(pattern) == spelled


def test_only_patterns_of_a_schema_change() -> None:
    values = {"pattern": r"\d", "x": [{"pattern": r"\d"}]}
    schema: dict[str, Any] = {
        "properties": {"pattern": {"pattern": r"\d", "description": r"\d"}, r"\d": {"const": values}},
        "patternProperties": {r"^\d$": {"anyOf": [{"pattern": r"\w"}, {"enum": [values]}]}},
        "default": values,
    }
    assert schema_with_ascii_classes(schema) == {
        "properties": {"pattern": {"pattern": "[0-9]", "description": r"\d"}, r"\d": {"const": values}},
        "patternProperties": {"^[0-9]$": {"anyOf": [{"pattern": "[0-9A-Za-z_]"}, {"enum": [values]}]}},
        "default": values,
    }
