"""Log probabilities in OpenAI's two formats: chat's, with bytes, and completions', with offsets."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from worker_engine.protocol import TokenLogprobs
from worker_engine.text.tokenizer import REPLACEMENT, ChatTokenizer


@dataclass(frozen=True, slots=True)
class Entry:
    """One token's log probabilities. `offset` is where its text begins, in characters of the response.

    A prompt's first token has no log probabilities.
    """

    token_id: int
    logprobs: TokenLogprobs | None
    offset: int


class LogprobsWriter:
    """Buffers one choice's tokens until their text is released, so that tokens of a stop string are never
    sent.
    """

    def __init__(self, tokenizer: ChatTokenizer, top: int, *, chat: bool) -> None:
        """`top`: number of alternatives reported per token."""
        self._top, self._due = top, 0
        self._tokenizer, self._chat = tokenizer, chat
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._read = self._shown = 0
        self._entries: list[Entry] = []

    def add(self, logprobs: Sequence[TokenLogprobs]) -> None:
        for item in logprobs:
            pending = self._decoder.getstate()[0]
            text = self._decoder.decode(self._tokenizer.token_bytes(item.token_id))
            # An incomplete character becomes U+FFFD, which precedes this token's text.
            broken = bool(pending) and text.startswith(REPLACEMENT)
            self._entries.append(Entry(item.token_id, item, self._read + broken))
            self._read += len(text)

    def add_prompt(self, token_ids: Sequence[int], text: str, logprobs: Sequence[TokenLogprobs]) -> None:
        """Add a prompt before anything else. `text` is its echoed text; its first token has no log
        probabilities.

        A special token that the text omits, such as one added by the tokenizer, has length 0.
        """
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for token_id, item in zip(token_ids, (None, *logprobs), strict=True):
            self._entries.append(Entry(token_id, item, min(self._read, len(text))))
            raw = self._tokenizer.token_bytes(token_id)
            name = raw.decode(errors="replace")
            special = self._tokenizer.special_token_id(name) == token_id
            if not special or text.startswith(name, self._read):
                self._read += len(decoder.decode(raw))
        self._read = len(text)
        self._due = len(self._entries)

    def release(self, text: str, *, everything: bool = False) -> dict[str, Any] | None:
        """Return the entries that begin within the text released so far, `text` being its newest part."""
        self._shown += len(text)
        count = max(self._due, sum(everything or entry.offset < self._shown for entry in self._entries))
        self._due = 0
        ready, self._entries = self._entries[:count], self._entries[count:]
        if not ready:
            return None
        return self._chat_form(ready) if self._chat else self._completion_form(ready)

    def _chat_form(self, entries: Sequence[Entry]) -> dict[str, Any]:
        return {
            "content": [
                self._token(logprobs.token_id, logprobs.logprob)
                | {"top_logprobs": [self._token(*item) for item in logprobs.top]}
                for logprobs in (entry.logprobs for entry in entries)
                if logprobs is not None
            ],
            "refusal": None,
        }

    def _token(self, token_id: int, logprob: float) -> dict[str, Any]:
        raw = self._tokenizer.token_bytes(token_id)
        return {"token": raw.decode(errors="replace"), "logprob": _finite(logprob), "bytes": list(raw)}

    def _completion_form(self, entries: Sequence[Entry]) -> dict[str, Any]:
        logprobs = [entry.logprobs for entry in entries]
        return {
            "tokens": [self._name(entry.token_id) for entry in entries],
            "token_logprobs": [None if item is None else _finite(item.logprob) for item in logprobs],
            "top_logprobs": [None if item is None else self._tops(item) for item in logprobs],
            "text_offset": [entry.offset for entry in entries],
        }

    def _tops(self, item: TokenLogprobs) -> dict[str, float]:
        """Return the likeliest tokens, then the chosen one if it is not among them, as OpenAI's API does."""
        chosen = (item.token_id, item.logprob)
        return {self._name(token): _finite(value) for token, value in (*item.top[: self._top], chosen)}

    def _name(self, token_id: int) -> str:
        """Return a token's text, or its bytes as OpenAI writes them if they are not valid UTF-8, so that
        names differ.
        """
        raw = self._tokenizer.token_bytes(token_id)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


@dataclass(frozen=True, slots=True)
class PromptWriter:
    """Formats a prompt's log probabilities as vLLM does: by token id, with ranks; None for the first."""

    tokenizer: ChatTokenizer
    top: int

    def tell(self, logprobs: Sequence[TokenLogprobs] | None) -> list[dict[str, Any] | None] | None:
        return None if logprobs is None else [None, *(self._position(item) for item in logprobs)]

    def _position(self, item: TokenLogprobs) -> dict[str, Any]:
        """Return the prompt's own token, then the most likely ones."""
        own = {str(item.token_id): self._token(item.token_id, item.logprob, item.rank)}
        ranked = enumerate(item.top[: self.top], 1)
        return own | {
            str(token): self._token(token, value, rank)
            for rank, (token, value) in ranked
            if token != item.token_id
        }

    def _token(self, token_id: int, logprob: float, rank: int) -> dict[str, Any]:
        text = self.tokenizer.token_bytes(token_id).decode(errors="replace")
        return {"logprob": _finite(logprob), "rank": rank, "decoded_token": text}


def _finite(logprob: float) -> float:
    """Return a finite number, since JSON has no infinities; OpenAI writes -9999 for impossible tokens."""
    return max(logprob, -9999.0)
