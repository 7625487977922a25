"""Random JSON values, and random changes to texts and bytes."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, AnyStr, Final

NUMBERS: Final = (
    0,
    -1,
    1,
    2,
    7,
    255,
    2**31,
    2**53 + 1,
    2**63 - 1,
    2**64 - 1,
    -(2**63),
    0.5,
    -0.0,
    1e-9,
    1e300,
    1e16,
    11.0,
)
TEXTS: Final = ("", "a", "0", "-1", "11", "1e9", "é", "\u202e", "\0", "𝄞", "null", '"', "\\", "x" * 300)


def json_value(draw: Random, depth: int = 3) -> Any:
    """Return any JSON value of at most `depth` levels."""
    kind = draw.randrange(8 if depth else 5)
    if kind == 0:
        return draw.choice((None, True, False))
    if kind in (1, 2):
        return draw.choice(NUMBERS)
    if kind in (3, 4):
        return draw.choice(TEXTS)
    if kind == 5:
        return [json_value(draw, depth - 1) for _ in range(draw.randrange(4))]
    return {draw.choice(TEXTS): json_value(draw, depth - 1) for _ in range(draw.randrange(4))}


def changed_json(draw: Random, value: Any, chance: float = 0.1) -> Any:
    """Return a copy in which each value is replaced by another one, or left out, with this chance."""
    if draw.random() < chance:
        return json_value(draw, 2)
    if isinstance(value, dict):
        return {
            name: changed_json(draw, item, chance)
            for name, item in value.items()
            if draw.random() >= chance / 2
        }
    if isinstance(value, list):
        return [changed_json(draw, item, chance) for item in value]
    return value


def spliced(draw: Random, data: AnyStr, pieces: Sequence[AnyStr], times: int) -> AnyStr:
    """Return `data` with up to `times` pieces put in, each in place of up to 8 characters or bytes."""
    for _ in range(draw.randrange(times + 1)):
        at = draw.randrange(len(data) + 1)
        data = data[:at] + draw.choice(pieces) + data[at + draw.choice((0, 0, 1, 2, 8)) :]
    return data
