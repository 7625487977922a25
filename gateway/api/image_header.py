"""Reads an image's size from the head of its file, without decoding pixels.

The walk over a JPEG's segments and a GIF's blocks is bounded, so a hostile file costs little. A file that
decoders may read in two ways has no size here: a copy must not decode a larger image than was reserved.
"""

from __future__ import annotations

from typing import Final

_PNG: Final = b"\x89PNG\r\n\x1a\n"
_MAX_SEGMENTS: Final = 512
"""Segments before a JPEG's pixels: metadata and color profiles come in pieces of 64 KiB."""
_MAX_BLOCKS: Final = 4096
"""Blocks of up to 255 bytes before a GIF's first frame."""
_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""JPEG markers of a frame, which has the size."""
_SCAN: Final = 0xDA
"""JPEG marker of the pixels, which follow the frame."""
_NO_SEGMENT: Final = frozenset({0x00, 0x01, *range(0xD0, 0xDA)})
"""JPEG markers without a length, which have no place before the pixels."""


def image_size(data: bytes) -> tuple[int, int] | None:
    """Return width and height of a PNG, JPEG, WebP or GIF in pixels; None for anything else."""
    if data.startswith(_PNG) and data[12:16] == b"IHDR":
        size = _big(data, 16, 4), _big(data, 20, 4)
    elif data.startswith((b"GIF87a", b"GIF89a")):
        size = _gif(data)
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


def _gif(data: bytes) -> tuple[int, int]:
    """Return the size of the screen, enlarged to the first frame as decoders do."""
    flags = _little(data, 10, 1)
    at, is_inside = 13 + (3 << (flags & 7) + 1 if flags & 0x80 else 0), False
    for _ in range(_MAX_BLOCKS):
        if is_inside:  # an extension, whose last block has no bytes
            length = _little(data, at, 1)
            at, is_inside = at + 1 + length, length > 0
        elif data[at : at + 1] == b"!":
            at, is_inside = at + 2, True
        else:
            break
    left, top, width, height = (_little(data, at + place, 2) for place in (1, 3, 5, 7))
    if is_inside or data[at : at + 1] != b"," or min(width, height) == 0:
        return 0, 0
    return max(_little(data, 6, 2), left + width), max(_little(data, 8, 2), top + height)


def _jpeg(data: bytes) -> tuple[int, int]:
    """Return the largest of the frames before the pixels: decoders differ in which of several they take."""
    at, width, height = 2, 0, 0
    for _ in range(_MAX_SEGMENTS):
        marker = _big(data, at + 1, 1)
        if data[at : at + 1] != b"\xff" or marker in _NO_SEGMENT:
            break
        if marker == _SCAN:
            return width, height
        if marker in _FRAMES:
            width, height = max(width, _big(data, at + 7, 2)), max(height, _big(data, at + 5, 2))
        # A marker may be preceded by any number of fill bytes.
        at += 1 if marker == 0xFF else 2 + max(2, _big(data, at + 2, 2))
    return 0, 0


def _big(data: bytes, at: int, length: int) -> int:
    """Return a big-endian number; 0 beyond the end of the data."""
    part = data[at : at + length]
    return int.from_bytes(part) if len(part) == length else 0


def _little(data: bytes, at: int, length: int) -> int:
    """Return a little-endian number; 0 beyond the end of the data."""
    part = data[at : at + length]
    return int.from_bytes(part, "little") if len(part) == length else 0
