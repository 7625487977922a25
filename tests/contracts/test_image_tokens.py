"""The bound of an image's tokens covers each rule's rounding."""

from __future__ import annotations

import math
import random

import pytest

from contracts.image_tokens import NO_IMAGES, ImageTokens

QWEN = ImageTokens(1280, 28, least=4, extra=2)
PIXTRAL = ImageTokens(55 * 56, 28, max_side=1540, row=1)


def qwen(width: int, height: int, factor: int = 28, least: int = 4, most: int = 1280) -> int:
    """Qwen2-VL's `smart_resize`, in tokens."""
    across, down = round(width / factor), round(height / factor)
    if across * down > most:
        beta = math.sqrt(width * height / (most * factor**2))
        across, down = (max(1, math.floor(side / beta / factor)) for side in (width, height))
    elif across * down < least:
        beta = math.sqrt(least * factor**2 / (width * height))
        across, down = (math.ceil(side * beta / factor) for side in (width, height))
    return across * down + 2


def pixtral(width: int, height: int, cell: int = 28, most: int = 1540) -> int:
    ratio = max(width, height) / most
    if ratio > 1:
        width, height = math.floor(width / ratio), math.floor(height / ratio)
    return (math.ceil(width / cell) + 1) * math.ceil(height / cell)


def test_no_image_exceeds_its_bound() -> None:
    draw = random.Random(7)
    for _ in range(3000):
        width = int(math.exp(draw.uniform(0, 9.5)))
        height = max(1, min(16_000, int(width * math.exp(draw.uniform(-3, 3)))))
        assert qwen(width, height) <= QWEN.bound(width, height) <= 1282
        assert pixtral(width, height) <= PIXTRAL.bound(width, height)


def test_the_bound_is_near() -> None:
    """A bound that is far off would refuse what fits a limit."""
    assert QWEN.bound(1024, 768) == 37 * 28 + 2
    assert qwen(1024, 768) == 37 * 27 + 2
    assert PIXTRAL.bound(1024, 1024) == pixtral(1024, 1024)


@pytest.mark.parametrize(
    ("rule", "size", "tokens"),
    [
        (ImageTokens(256, extra=6), (16_000, 2), 262),
        (QWEN, (0, 0), 1282),
        (QWEN, (1, 1), 6),
        (QWEN, (16_000, 16_000), 1282),
        (PIXTRAL, (0, 0), 55 * 56),
    ],
)
def test_bounds(rule: ImageTokens, size: tuple[int, int], tokens: int) -> None:
    assert rule.bound(*size) == tokens
    assert ImageTokens.from_dict({"most": 5, "of_a_newer_release": 1}) == ImageTokens(5)
    assert rule.reads_images
    assert not NO_IMAGES.reads_images
