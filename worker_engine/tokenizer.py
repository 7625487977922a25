"""Text to token ids and back: the checkpoint's tokenizer, its chat template, and text as it streams."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer as FastTokenizer

from worker_engine.errors import CheckpointError, InvalidRequest

REPLACEMENT = "\ufffd"
"""What the byte decoder writes for a UTF-8 character that is not complete yet."""


class ChatTokenizer:
    """The tokenizer of one checkpoint."""

    def __init__(self, folder: Path) -> None:
        """Raises CheckpointError when tokenizer.json is missing or the chat template does not compile."""
        path = folder / "tokenizer.json"
        try:
            self._tokenizer = FastTokenizer.from_file(str(path))
        except Exception as error:  # the library raises plain Exception
            raise CheckpointError(f"cannot read {path}: {error}") from error
        config_path = folder / "tokenizer_config.json"
        config = json.loads(config_path.read_text(encoding="utf-8")) if config_path.is_file() else {}
        self._special = {name: _content(config.get(name)) for name in ("bos_token", "eos_token", "pad_token")}
        self._template = _compile(_template_source(folder, config))

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text without special tokens; an incomplete character ends in U+FFFD."""
        text: str = self._tokenizer.decode(list(token_ids), skip_special_tokens=True)
        return text

    def render_chat(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The prompt that asks the assistant to go on.

        Raises:
            InvalidRequest: when the model has no chat template or its template refuses the messages.
        """
        if self._template is None:
            raise InvalidRequest("this model has no chat template: use /v1/completions", param="messages")
        try:
            return self._template.render(messages=messages, add_generation_prompt=True, **self._special)
        except jinja2.TemplateError as error:
            raise InvalidRequest(f"the chat template refuses: {error}", param="messages") from error


class Detokenizer:
    """Turns one sequence's tokens into text as they come: whole characters, no part of a stop string."""

    def __init__(self, tokenizer: ChatTokenizer, stop: Sequence[str] = ()) -> None:
        self._tokenizer, self._stop = tokenizer, tuple(stop)
        self._ids: list[int] = []
        self._prefix = self._read = 0
        self._held = ""
        self.stopped = False

    def append(self, token_id: int) -> str:
        """Text that may be shown now; `stopped` is set when a stop string is complete."""
        self._ids.append(token_id)
        return self._release(self._decode_new(final=False))

    def flush(self) -> str:
        """What is left when no token follows."""
        text = self._release(self._decode_new(final=True))
        rest, self._held = self._held, ""
        return text + rest

    def _decode_new(self, *, final: bool) -> str:
        """Decodes from a few tokens back, since a token's text may depend on its left neighbour."""
        known = self._tokenizer.decode(self._ids[self._prefix : self._read])
        whole = self._tokenizer.decode(self._ids[self._prefix :])
        if len(whole) <= len(known) or (whole.endswith(REPLACEMENT) and not final):
            return ""
        self._prefix, self._read = self._read, len(self._ids)
        return whole[len(known) :]

    def _release(self, text: str) -> str:
        if self.stopped or not self._stop:
            return "" if self.stopped else text
        self._held += text
        hits = [at for at in (self._held.find(stop) for stop in self._stop) if at >= 0]
        if hits:
            self.stopped = True
            shown, self._held = self._held[: min(hits)], ""
            return shown
        keep = max(_overlap(self._held, stop) for stop in self._stop)
        shown, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return shown


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if stop.startswith(text[-n:])), 0)


def _content(token: object) -> str:
    value = token.get("content") if isinstance(token, Mapping) else token
    return value if isinstance(value, str) else ""


def _template_source(folder: Path, config: Mapping[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    source = config.get("chat_template")
    if isinstance(source, list):  # several named templates
        source = next((item["template"] for item in source if item.get("name") == "default"), None)
    return source


def _compile(source: str | None) -> jinja2.Template | None:
    """A checkpoint's template is foreign code: it runs in Jinja's sandbox and may not change its input."""
    if source is None:
        return None
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now(UTC).strftime(form)
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
    try:
        return environment.from_string(source)
    except jinja2.TemplateError as error:
        raise CheckpointError(f"the chat template does not compile: {error}") from error


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
