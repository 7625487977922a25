"""How many tokens an image of a chat takes, by OpenAI's formula of 512-pixel tiles.

Source: https://platform.openai.com/docs/guides/images-vision, "Calculating costs", the figures of GPT-4o.
Other models count otherwise; this reserves, and what the backend reports is billed.
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
"""Of an image at low detail, and of any image before its tiles."""
TILE_TOKENS: Final = 170
LARGEST: Final = LOW_TOKENS + 8 * TILE_TOKENS
"""Of 2,048 by 768 pixels, the most that an image is scaled to."""
_HEAD: Final = 128 << 10
"""Characters of base64 in which the size is looked for."""


def image_tokens(image: Mapping[str, Any]) -> int:
    """Tokens of a chat's `image_url` object; of one behind a URL those of the largest image."""
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
    """Width and height in pixels of an image in a data URL, -1 where they cannot be told."""
    if not isinstance(url, str) or not url.startswith("data:"):
        return -1, -1
    try:
        data = base64.b64decode(url.partition(",")[2][:_HEAD], validate=True)
    except (binascii.Error, ValueError):
        return -1, -1
    width, height = imagesize.get(io.BytesIO(data))
    return int(width), int(height)
