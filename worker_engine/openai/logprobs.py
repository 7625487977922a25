"""Log probabilities in OpenAI's two forms: chat's, with bytes, and completions', with offsets."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from worker_engine.protocol import TokenLogprobs
from worker_engine.tokenizer import REPLACEMENT, ChatTokenizer


@dataclass(frozen=True, slots=True)
class Entry:
    """One token's log probabilities; `offset` is where its text begins, in characters of the answer."""

    logprobs: TokenLogprobs
    offset: int


class LogprobsWriter:
    """Keeps one choice's tokens until their text is shown, so that a stop string's are never told."""

    def __init__(self, tokenizer: ChatTokenizer, *, chat: bool, offset: int = 0) -> None:
        """`offset` is the length of the text that precedes the completion in its answer."""
        self._tokenizer, self._chat = tokenizer, chat
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._read = self._shown = offset
        self._entries: list[Entry] = []

    def add(self, logprobs: Sequence[TokenLogprobs]) -> None:
        for item in logprobs:
            pending = self._decoder.getstate()[0]
            text = self._decoder.decode(self._tokenizer.token_bytes(item.token_id))
            # A character that stays incomplete becomes U+FFFD, which stands before this token's text.
            broken = bool(pending) and text.startswith(REPLACEMENT)
            self._entries.append(Entry(item, self._read + broken))
            self._read += len(text)

    def release(self, text: str, *, everything: bool = False) -> dict[str, Any] | None:
        """The entries that begin before the end of what has been shown, `text` being the newest of it."""
        self._shown += len(text)
        count = sum(everything or entry.offset < self._shown for entry in self._entries)
        ready, self._entries = self._entries[:count], self._entries[count:]
        if not ready:
            return None
        return self._chat_form(ready) if self._chat else self._completion_form(ready)

    def _chat_form(self, entries: Sequence[Entry]) -> dict[str, Any]:
        return {
            "content": [
                self._token(entry.logprobs.token_id, entry.logprobs.logprob)
                | {"top_logprobs": [self._token(*item) for item in entry.logprobs.top]}
                for entry in entries
            ],
            "refusal": None,
        }

    def _token(self, token_id: int, logprob: float) -> dict[str, Any]:
        raw = self._tokenizer.token_bytes(token_id)
        return {"token": raw.decode(errors="replace"), "logprob": _finite(logprob), "bytes": list(raw)}

    def _completion_form(self, entries: Sequence[Entry]) -> dict[str, Any]:
        return {
            "tokens": [self._name(entry.logprobs.token_id) for entry in entries],
            "token_logprobs": [_finite(entry.logprobs.logprob) for entry in entries],
            "top_logprobs": [
                {self._name(token_id): _finite(logprob) for token_id, logprob in entry.logprobs.top}
                for entry in entries
            ],
            "text_offset": [entry.offset for entry in entries],
        }

    def _name(self, token_id: int) -> str:
        """A token's text, or its bytes, as OpenAI writes them, where it is no text alone: so names differ."""
        raw = self._tokenizer.token_bytes(token_id)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def _finite(logprob: float) -> float:
    """JSON has no infinities; OpenAI writes -9999 for what cannot happen."""
    return max(logprob, -9999.0)
