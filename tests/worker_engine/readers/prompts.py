"""Prompts of the tests of readers."""

from __future__ import annotations

import random

LENGTHS = (50, 1, 16, 33, 7)


def draw(length: int, seed: int) -> list[int]:
    """Return a random prompt, the same one for each seed."""
    stream = random.Random(seed)
    return [stream.randrange(256) for _ in range(length)]
