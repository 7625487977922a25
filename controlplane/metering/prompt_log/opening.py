"""Opens prompts that a gateway sealed (in the form of `contracts.prompt_log.PROMPT_FORM`)."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from contracts.prompt_log import PROMPT_FORM, PROMPT_INFO
from controlplane.errors import UnsealError

_PRINT: Final = slice(1, 9)
_OWN: Final = slice(9, 41)
_NONCE: Final = slice(41, 53)
_TEXT: Final = slice(53, None)
_MOST_BYTES: Final = 4 << 20
"""Most bytes after decompression: a gateway stores 512 KiB of a request and its answer."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A request's body and its response, as text. `cut`: one of them was longer."""

    path: str
    request: str
    answer: str
    cut: bool

    @property
    def turns(self) -> list[tuple[str, str]]:
        """(role, text) of the prompt's messages; the whole body under '' if its format is unknown."""
        try:
            return list(_prompt_messages(json.loads(self.request))) or [("", self.request)]
        except (ValueError, TypeError, AttributeError):
            return [("", self.request)]

    @property
    def answer_text(self) -> str:
        """The generated text, choice by choice, also of a stream; the raw answer if its format is unknown."""
        texts: dict[int, str] = {}
        try:
            for index, text in _written(_events(self.answer)):
                texts[index] = texts.get(index, "") + text
            return "\n\n".join(text for _, text in sorted(texts.items()) if text) or self.answer
        except (ValueError, TypeError, AttributeError):
            return self.answer


def key_pair() -> tuple[str, str]:
    """Return a new (private, public) key pair in base64."""
    key = X25519PrivateKey.generate()
    return tuple(
        base64.urlsafe_b64encode(raw).decode()
        for raw in (key.private_bytes_raw(), key.public_key().public_bytes_raw())
    )  # type: ignore[return-value]


def is_for(sealed: bytes, public_key: str) -> bool:
    """Return True if the prompt was sealed for this key."""
    return sealed[:1] == PROMPT_FORM and sealed[_PRINT] == base64.urlsafe_b64decode(public_key)[:8]


def opened(sealed: bytes, *, private_key: str, tenant: str, request_id: str) -> Opened:
    """Open a sealed prompt. Raises UnsealError: it was sealed for another key or request, or changed."""
    try:
        key = X25519PrivateKey.from_private_bytes(base64.urlsafe_b64decode(private_key))
        ephemeral, public = sealed[_OWN], key.public_key().public_bytes_raw()
        shared = key.exchange(X25519PublicKey.from_public_bytes(ephemeral))
        secret = HKDF(SHA256(), 32, salt=ephemeral + public, info=PROMPT_INFO).derive(shared)
        packed = AESGCM(secret).decrypt(sealed[_NONCE], sealed[_TEXT], f"{tenant}/{request_id}".encode())
        content = json.loads(zlib.decompressobj().decompress(packed, _MOST_BYTES))
        return Opened(content["path"], content["request"], content["answer"], content["cut"])
    except (InvalidTag, ValueError, KeyError, zlib.error) as error:
        raise UnsealError(f"the stored prompt of request {request_id} cannot be decrypted") from error


def _prompt_messages(body: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if instructions := body.get("instructions"):
        yield "system", _text(instructions)
    prompt = body.get("messages") or body.get("input") or body.get("prompt")
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], dict):
        for item in prompt:
            yield (
                str(item.get("role", "")),
                _text(item.get("content")) or json.dumps(item, ensure_ascii=False),
            )
    elif prompt:
        yield "user", _text(prompt)


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(part, dict) and "text" in part for part in content):
        return "\n".join(str(part["text"]) for part in content)
    return "" if content is None else json.dumps(content, ensure_ascii=False)


def _events(answer: str) -> Iterator[dict[str, Any]]:
    """Yield the JSON of a stream's events, or of the single answer."""
    if not answer.lstrip().startswith(("data:", "event:", ":")):
        yield json.loads(answer)
        return
    for line in answer.splitlines():
        if line.startswith("data:") and (text := line[5:].strip()) != "[DONE]":
            try:
                yield json.loads(text)
            except ValueError:
                return  # the event is truncated


def _written(events: Iterator[dict[str, Any]]) -> Iterator[tuple[int, str]]:
    """Yield pieces of generated text, each with the index of its choice."""
    for event in events:
        for choice in event.get("choices") or ():
            index, part = choice.get("index", 0), choice.get("delta") or choice.get("message") or choice
            yield index, part.get("content") or choice.get("text") or ""
            for call in part.get("tool_calls") or ():
                yield index, _text(call.get("function"))
        if event.get("type") == "response.output_text.delta":
            yield 0, event["delta"]
        for item in event.get("output") or ():
            for part in item.get("content") or ():
                yield 0, part.get("text") or ""
