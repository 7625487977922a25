"""Estimates an image's tokens, by OpenAI's formula of 512-pixel tiles.

Source: https://platform.openai.com/docs/guides/images-vision, "Calculating costs", the figures of GPT-4o.
Other models count differently. The estimate is for reservations; bills use the backend's count.
"""

from __future__ import annotations

import base64
import binascii
import io
import math
from collections.abc import Mapping
from typing import Any, Final

import imagesize

LOW_TOKENS: Final = 85
"""Tokens of an image at low detail, and the base of any image before its tiles."""
TILE_TOKENS: Final = 170
LARGEST: Final = LOW_TOKENS + 8 * TILE_TOKENS
"""Tokens of the largest scaled image, 2,048 by 768 pixels."""
_HEAD: Final = 128 << 10
"""Characters of base64 that are searched for the image's size."""


def image_tokens(image: Mapping[str, Any]) -> int:
    """Return the tokens of a chat's `image_url` object; an image behind a URL counts as the largest."""
    if image.get("detail") == "low":
        return LOW_TOKENS
    width, height = _size(image.get("url"))
    if width <= 0 or height <= 0:
        return LARGEST
    scale = min(1.0, 2048 / max(width, height))
    scale *= min(1.0, 768 / (scale * min(width, height)))
    across, down = (math.ceil(max(1, round(side * scale)) / 512) for side in (width, height))
    return LOW_TOKENS + TILE_TOKENS * across * down


def _size(url: object) -> tuple[int, int]:
    """Return width and height in pixels of an image in a data URL, -1 where they are unknown."""
    if not isinstance(url, str) or not url.startswith("data:"):
        return -1, -1
    try:
        data = base64.b64decode(url.partition(",")[2][:_HEAD], validate=True)
    except (binascii.Error, ValueError):
        return -1, -1
    width, height = imagesize.get(io.BytesIO(data))
    return int(width), int(height)
