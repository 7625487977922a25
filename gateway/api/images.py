"""Checks a chat's content parts, and reads the sizes of its images.

Part types and their fields are an allow-list. vLLM reads a part by its fields, whatever its type says: it
fetches the URLs of images, audio and video from the operator's network, and reuses a cached image by a `uuid`
in the part whichever tenant sent it first.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from contracts.image_bounds import MAX_IMAGES, MAX_PIXELS, MAX_SIDE, MEDIA_TYPES
from contracts.image_tokens import ImageTokens
from gateway.api.image_header import image_size
from gateway.errors import BadRequest

DETAILS: Final = ("auto", "low", "high")
_DATA_URL: Final = re.compile(r"data:([^;,]{0,64});base64,")
_HTTPS_URL: Final = re.compile(
    r"https://([a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?)(?::443)?/[!-\[\]-~]{0,4000}"
)
"""A host without user, other port or backslash, which parsers of URLs read differently."""
_TEXTS: Final = ("text", "refusal", "thinking")
"""Types of parts that hold text, in a field of the same name."""


@dataclass(frozen=True, slots=True)
class Image:
    """Size of an image in pixels; 0 for both sides where it is behind a URL."""

    width: int = 0
    height: int = 0


def read_images(messages: Sequence[Mapping[str, Any]], hosts: Collection[str] = ()) -> tuple[Image, ...]:
    """Check the parts of each message; return the images in order.

    Args:
        hosts: names of hosts whose https URLs copies may fetch.

    Raises:
        BadRequest: naming the part.
    """
    found: list[Image] = []
    for index, message in enumerate(messages):
        found += read_parts(message.get("content"), f"messages[{index}].content", hosts)
        check_count(found, "messages")
    return tuple(found)


def read_parts(content: object, where: str, hosts: Collection[str]) -> list[Image]:
    """Check the parts of one message; return its images. Raises BadRequest as `read_images`."""
    if content is not None and not isinstance(content, str | list):
        raise BadRequest(f"{where} must be a string or a list of parts.", param=where)
    parts = content if isinstance(content, list) else []
    images = (_read_part(part, f"{where}[{number}]", hosts) for number, part in enumerate(parts))
    return [image for image in images if image is not None]


def check_count(images: Sequence[Image], param: str) -> None:
    """Raise BadRequest if a request has too many images, or too many pixels in them."""
    if len(images) > MAX_IMAGES:
        raise BadRequest(f"A request may hold at most {MAX_IMAGES} images.", param=param)
    pixels = sum(image.width * image.height for image in images)
    if pixels > MAX_PIXELS:
        raise BadRequest(
            f"The request's images have {pixels} pixels together, at most {MAX_PIXELS} are served. Send "
            "fewer or smaller ones.",
            param=param,
        )


def image_tokens(images: Sequence[Image], rule: ImageTokens) -> int:
    """Return the most prompt tokens of the images."""
    return sum(rule.bound(image.width, image.height) for image in images)


def _read_part(part: object, where: str, hosts: Collection[str]) -> Image | None:
    """Return the part's image; None for a text."""
    if isinstance(part, str):
        return None
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(part, dict) and kind == "image_url":
        return _read_image(part, where, hosts)
    if not isinstance(part, dict) or kind not in _TEXTS:
        served = '{"type": "text", "text": "..."} or {"type": "image_url", "image_url": {"url": "..."}}'
        raise BadRequest(f"{where} must be {served}: other kinds of parts are not served.", param=where)
    if not isinstance(part.get(kind), str):
        raise BadRequest(f"{where}.{kind} must be a string.", param=f"{where}.{kind}")
    _check_fields(part.keys() - {"type", kind}, where)
    return None


def _read_image(part: Mapping[str, Any], where: str, hosts: Collection[str]) -> Image:
    image = part.get("image_url")
    if not isinstance(image, dict) or not isinstance(image.get("url"), str):
        raise BadRequest(f"{where}.image_url must be an object with a url.", param=f"{where}.image_url")
    _check_fields((part.keys() - {"type", "image_url"}) | (image.keys() - {"url", "detail"}), where)
    if (image.get("detail") or "auto") not in DETAILS:
        raise BadRequest(f"{where}.image_url.detail must be one of {', '.join(DETAILS)}.", param=where)
    return _read_url(image["url"], f"{where}.image_url", hosts)


def _check_fields(others: Collection[str], where: str) -> None:
    """Raise BadRequest for fields of a part that are not served."""
    if others:
        raise BadRequest(f"{where}: {min(others)[:64]} is not served. Remove it.", param=where)


def _read_url(url: str, where: str, hosts: Collection[str]) -> Image:
    if head := _DATA_URL.match(url):
        return _read_data(head[1], url[head.end() :], where)
    match = _HTTPS_URL.fullmatch(url)
    if match is not None and match[1] in hosts:
        return Image()
    if url.startswith("data:"):
        raise BadRequest(f"{where} must be data:<media type>;base64,<data>.", param=where)
    allowed = f"https URLs of {', '.join(sorted(hosts))}, and " if hosts else ""
    raise BadRequest(
        f"{where}: {allowed or 'only '}data URLs are served, because a copy would fetch other URLs from the "
        "operator's network. Send the image as data:<media type>;base64,<data>.",
        param=where,
    )


def _read_data(media_type: str, text: str, where: str) -> Image:
    if media_type.lower().replace("image/jpg", "image/jpeg") not in MEDIA_TYPES:
        raise BadRequest(f"{where}: the media type must be one of {', '.join(MEDIA_TYPES)}.", param=where)
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise BadRequest(f"{where} is not base64.", param=where) from None
    if (size := image_size(data)) is None:
        raise BadRequest(f"{where} is not a PNG, JPEG, WebP or GIF image.", param=where)
    width, height = size
    if max(size) > MAX_SIDE:
        raise BadRequest(
            f"{where}: the image has {width} x {height} pixels, at most {MAX_SIDE} a side are served. Send a "
            "smaller one.",
            param=where,
        )
    return Image(width, height)
