"""The bytes of each token of a vocabulary, byte-level or SentencePiece-like."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Final

from tokenizers import Tokenizer as FastTokenizer

_BYTE: Final = re.compile(r"<0x([0-9A-F]{2})>")


class TokenBytes:
    """Bytes by token id."""

    def __init__(self, tokenizer: FastTokenizer) -> None:
        self._tokenizer = tokenizer
        self._added = dict(tokenizer.get_added_tokens_decoder())
        self._byte_level = "ByteLevel" in _decoder_types(tokenizer)

    def __getitem__(self, token_id: int) -> bytes:
        text: str | None = self._tokenizer.id_to_token(token_id)
        if text is None:
            return b""
        if token_id in self._added:
            return text.encode()
        if self._byte_level:
            letters = _letters()
            return b"".join(letters[char] if char in letters else char.encode() for char in text)
        byte = _BYTE.fullmatch(text)
        return bytes.fromhex(byte[1]) if byte else text.replace("\u2581", " ").encode()

    def is_added(self, token_id: int) -> bool:
        """Return True if the token was added to the model's vocabulary as a whole."""
        return token_id in self._added

    def is_special(self, token_id: int) -> bool:
        """Return True if decoding omits the token."""
        token = self._added.get(token_id)
        return token is not None and token.special


def _decoder_types(tokenizer: FastTokenizer) -> set[str]:
    decoder = json.loads(tokenizer.to_str()).get("decoder") or {}
    return {part.get("type", "") for part in (decoder, *decoder.get("decoders", ()))}


@cache
def _letters() -> dict[str, bytes]:
    """Return GPT-2's alphabet: printable Latin-1 bytes map to themselves, the others to code points from 256
    on.
    """
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): bytes([byte]) for byte in printable}
    return letters | {chr(256 + place): bytes([byte]) for place, byte in enumerate(others)}
