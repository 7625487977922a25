"""Reads an image's size from the head of its file, without decoding pixels.

The walk over a JPEG's segments and a WebP's chunks is bounded, so a hostile file costs microseconds.
"""

from __future__ import annotations

from typing import Final

_PNG: Final = b"\x89PNG\r\n\x1a\n"
_MAX_SEGMENTS: Final = 512
"""Segments before a JPEG's frame: metadata and color profiles come in pieces of 64 KiB."""
_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""JPEG markers of a frame, which has the size."""
_WITHOUT_LENGTH: Final = frozenset({0x01, *range(0xD0, 0xD9)})


def image_size(data: bytes) -> tuple[int, int] | None:
    """Return width and height of a PNG, JPEG, WebP or GIF in pixels; None for anything else."""
    if data.startswith(_PNG) and data[12:16] == b"IHDR":
        size = _big(data, 16, 4), _big(data, 20, 4)
    elif data.startswith((b"GIF87a", b"GIF89a")):
        size = _little(data, 6, 2), _little(data, 8, 2)
    elif data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        size = _webp(data)
    elif data.startswith(b"\xff\xd8"):
        size = _jpeg(data)
    else:
        return None
    return size if min(size) > 0 else None


def _webp(data: bytes) -> tuple[int, int]:
    match data[12:16]:
        case b"VP8 ":
            return _little(data, 26, 2) & 0x3FFF, _little(data, 28, 2) & 0x3FFF
        case b"VP8L" if len(data) >= 25:
            bits = _little(data, 21, 4)
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8X" if len(data) >= 30:
            return _little(data, 24, 3) + 1, _little(data, 27, 3) + 1
    return 0, 0


def _jpeg(data: bytes) -> tuple[int, int]:
    at = 2
    for _ in range(_MAX_SEGMENTS):
        if data[at : at + 1] != b"\xff":
            break
        marker = _big(data, at + 1, 1)
        if marker in _FRAMES:
            return _big(data, at + 7, 2), _big(data, at + 5, 2)
        # A marker may be preceded by any number of fill bytes.
        if marker == 0xFF:
            at += 1
        else:
            at += 2 if marker in _WITHOUT_LENGTH else 2 + max(2, _big(data, at + 2, 2))
    return 0, 0


def _big(data: bytes, at: int, length: int) -> int:
    """Return a big-endian number; 0 beyond the end of the data."""
    part = data[at : at + length]
    return int.from_bytes(part) if len(part) == length else 0


def _little(data: bytes, at: int, length: int) -> int:
    """Return a little-endian number; 0 beyond the end of the data."""
    part = data[at : at + length]
    return int.from_bytes(part, "little") if len(part) == length else 0
