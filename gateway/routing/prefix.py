"""The beginning of a prompt, which routes requests that share it to the copy that has it cached."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

PREFIX_CHARACTERS: Final = 1024
"""About 256 tokens. Less would send all chats with one system prompt to one copy; more would separate the
turns of a chat with a short first message."""

_IMAGE_CHARACTERS: Final = 96


def prompt_prefix(parameters: Mapping[str, Any], salt: str) -> bytes:
    """Return the tenant's cache salt and the first characters of the prompt or messages."""
    prompt = parameters.get("prompt") or parameters.get("input")
    if isinstance(prompt, list) and prompt and type(prompt[0]) is not int:
        # Several prompts go to one copy together, and the first represents all.
        prompt = prompt[0]
    if isinstance(prompt, str):
        text = prompt[:PREFIX_CHARACTERS]
    elif isinstance(prompt, list):
        text = repr(prompt[: PREFIX_CHARACTERS // 4])
    else:
        text = ""
        for message in parameters.get("messages") or ():
            content = message.get("content")
            text += content[:PREFIX_CHARACTERS] if isinstance(content, str) else _parts(content)
            if len(text) >= PREFIX_CHARACTERS:
                break
    return f"{salt}\0{text[:PREFIX_CHARACTERS]}".encode("utf-8", "replace")


def _parts(content: object) -> str:
    """Return the beginning of content in parts: texts, and what tells one image from another."""
    if not isinstance(content, list):
        return orjson.dumps(content)[:PREFIX_CHARACTERS].decode("utf-8", "replace")
    text = ""
    for part in content:
        image = part.get("image_url") if isinstance(part, dict) else None
        text += _image(image["url"]) if isinstance(image, dict) else _text(part)
        if len(text) >= PREFIX_CHARACTERS:
            break
    return text


def _image(url: str) -> str:
    """Return an image's size and end: files of one format begin alike, and hashing megabytes takes long."""
    return f"\0{len(url)} {url[-_IMAGE_CHARACTERS:]}\0"


def _text(part: object) -> str:
    text = part.get("text") if isinstance(part, dict) else part
    return text[:PREFIX_CHARACTERS] if isinstance(text, str) else ""
