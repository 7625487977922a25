"""Bounds of a request's images, which the gateway enforces and the playground checks before sending."""

from __future__ import annotations

from typing import Final

MAX_IMAGES: Final = 64
"""Most images of one request."""
MAX_SIDE: Final = 16_384
"""Most pixels of an image's side."""
MAX_PIXELS: Final = 64 << 20
"""Most pixels of a request's images together: a copy decodes them to 192 MiB. Pillow refuses 179 million."""
MEDIA_TYPES: Final = ("image/png", "image/jpeg", "image/webp", "image/gif")
