"""Files of images without pixels: their heads have everything that the gateway reads."""

from __future__ import annotations

import base64
import struct
from typing import Any


def png(width: int, height: int) -> bytes:
    head = struct.pack(">I4sIIBBBBB", 13, b"IHDR", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + head + bytes(4)


def gif(width: int, height: int, before: bytes = b"", *, screen: tuple[int, int] = (1, 1)) -> bytes:
    """A GIF with the blocks `before` ahead of its first frame."""
    colors = struct.pack("<HHBBB", *screen, 0x80, 0, 0) + bytes(6)
    return b"GIF89a" + colors + before + struct.pack("<cHHHHB", b",", 0, 0, width, height, 0)


def jpeg(width: int, height: int, before: bytes = b"") -> bytes:
    """A JPEG with the segments `before` between the usual first one and the frame."""
    first = b"\xff\xe0\x00\x10JFIF\x00" + bytes(9)
    frame = struct.pack(">2sHBHHB", b"\xff\xc2", 17, 8, height, width, 3) + bytes(9)
    return b"\xff\xd8" + first + before + frame + b"\xff\xda"


def webp(width: int, height: int, form: bytes) -> bytes:
    """A WebP file; `form` is the name of its first chunk."""
    match form:
        case b"VP8 ":
            chunk = bytes(3) + b"\x9d\x01\x2a" + struct.pack("<HH", width, height)
        case b"VP8L":
            chunk = b"\x2f" + struct.pack("<I", width - 1 | height - 1 << 14)
        case _:
            sides = (side.to_bytes(3, "little") for side in (width - 1, height - 1))
            chunk = bytes(4) + b"".join(sides)
    return b"RIFF" + bytes(4) + b"WEBP" + form + struct.pack("<I", len(chunk)) + chunk


def data_url(data: bytes, media_type: str = "image/png") -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


def image_part(url: str, **fields: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, **fields}}
