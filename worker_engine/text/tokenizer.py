"""The checkpoint's tokenizer and chat template, and incremental detokenization of streams."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NoReturn, Self

import jinja2
import jinja2.meta
from tokenizers import Tokenizer as FastTokenizer

from worker_engine.errors import CheckpointError, InvalidRequest
from worker_engine.protocol import SamplingParams
from worker_engine.text.bounded_template import BoundedEnvironment, render
from worker_engine.text.token_bytes import TokenBytes
from worker_engine.text.tool_calls.parser import overlap

REPLACEMENT = "\ufffd"
"""The byte decoder's output for an incomplete UTF-8 character."""
_END_OF_TEXT = "\ue000end of the last message\ue000"
"""Marks the end of a message that the model continues, since templates strip blanks and append markers."""
NO_ARGUMENTS: Final[Mapping[str, Any]] = {}
_CONTEXT = 5
"""Tokens of the prompt decoded before a completion's first: some decoders drop a text's leading space."""


class ChatTokenizer:
    """The tokenizer of one checkpoint."""

    def __init__(self, folder: Path) -> None:
        """Load the tokenizer. Raises CheckpointError when it is missing or the chat template does not
        compile.
        """
        path = folder / "tokenizer.json"
        try:
            self._tokenizer = FastTokenizer.from_file(str(path))
        except Exception as error:  # the library raises plain Exception
            raise CheckpointError(f"cannot read {path}: {error}") from error
        config_path = folder / "tokenizer_config.json"
        config = json.loads(config_path.read_text(encoding="utf-8")) if config_path.is_file() else {}
        self._special = {name: _content(config.get(name)) for name in ("bos_token", "eos_token", "pad_token")}
        source = _template_source(folder, config)
        self.template_source = source or ""
        self._template, self.template_arguments = _compile(source)
        self.template_knows_tools = "tools" in self.template_arguments
        self._bytes = TokenBytes(self._tokenizer)

    def vocabulary(self) -> dict[str, int]:
        """Return the id of every token, including special ones."""
        ids: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        return ids

    @cached_property
    def longest_token(self) -> int:
        """Characters of the longest token, which bounds the number of a text's tokens from below."""
        return max(map(len, self._tokenizer.get_vocab(with_added_tokens=True)))

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text, by default without special tokens; an incomplete character becomes U+FFFD."""
        text: str = self._tokenizer.decode(list(token_ids), skip_special_tokens=skip_special_tokens)
        return text

    def token_bytes(self, token_id: int) -> bytes:
        """Return a token's bytes: a special token's name, b"" for an unknown id."""
        return self._bytes[token_id]

    def special_token_id(self, text: str) -> int | None:
        """Return the id of the special token `text`; None if there is none."""
        token_id: int | None = self._tokenizer.token_to_id(text)
        return token_id if token_id is not None and self._bytes.is_special(token_id) else None

    def added_token_id(self, text: str) -> int | None:
        """Return the id of `text` if it was added to the vocabulary as a token, special or not; else None."""
        token_id: int | None = self._tokenizer.token_to_id(text)
        return token_id if token_id is not None and self._bytes.is_added(token_id) else None

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        arguments: Mapping[str, Any] = NO_ARGUMENTS,
        *,
        generation_prompt: bool = True,
        continues: bool = False,
    ) -> str:
        """Return the chat as one prompt.

        Args:
            tools: the tools available to the model, in OpenAI's format.
            arguments: further variables of the template, by name.
            generation_prompt: end with the prefix of the assistant's answer.
            continues: end after the text of the last message, which the model continues.
        Raises:
            InvalidRequest: when the model has no chat template or its template refuses the messages.
        """
        if self._template is None:
            raise InvalidRequest("this model has no chat template: use /v1/completions", param="messages")
        if continues:
            messages = [*messages[:-1], {**messages[-1], "content": messages[-1]["content"] + _END_OF_TEXT}]
        try:
            text = render(
                self._template,
                {
                    **arguments,
                    **self._special,
                    "messages": messages,
                    "tools": tools,
                    "add_generation_prompt": generation_prompt,
                },
            )
        except Exception as error:  # templates are untrusted code on untrusted values
            raise InvalidRequest(f"the chat template refuses: {error}", param="messages") from error
        if not continues:
            return text
        text, found, _ = text.rpartition(_END_OF_TEXT)
        if not found:
            raise InvalidRequest(
                "continue_final_message: the chat template does not show the text of the last message",
                param="continue_final_message",
            )
        return text


class Detokenizer:
    """Turns one sequence's tokens into text incrementally: whole characters, no part of a stop string."""

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        stop: Sequence[str] = (),
        *,
        include_stop: bool = False,
        skip_special_tokens: bool = True,
        min_tokens: int = 0,
        context: Sequence[int] = (),
    ) -> None:
        """Stop strings match after the first `min_tokens` tokens; `context` is the prompt's end."""
        self._tokenizer, self._stop = tokenizer, tuple(stop)
        self._include_stop, self._skip_special = include_stop, skip_special_tokens
        self._deaf_tokens = min_tokens
        self._ids: list[int] = list(context)
        if self._decode(self._ids).endswith(REPLACEMENT):
            self._ids = []
        self._prefix, self._read = 0, len(self._ids)
        self._held = ""
        self.stopped = False

    @classmethod
    def for_completion(
        cls, tokenizer: ChatTokenizer, params: SamplingParams, prompt: Sequence[int], *, made: int = 0
    ) -> Self:
        """Build the detokenizer for a completion of `prompt`, whose end may be `made` tokens before it."""
        return cls(
            tokenizer,
            params.stop,
            include_stop=params.include_stop,
            skip_special_tokens=params.skip_special_tokens,
            min_tokens=max(params.min_tokens - made, 0),
            context=prompt[-_CONTEXT:],
        )

    def append(self, token_id: int) -> str:
        """Return text that may be sent now; `stopped` is set when a stop string is complete."""
        self._ids.append(token_id)
        text = self.feed(self._decode_new(final=False))
        self._deaf_tokens = max(self._deaf_tokens - 1, 0)
        return text

    def feed(self, text: str) -> str:
        """Take text that belongs to no token of this sequence. Return text that may be sent now."""
        return text if self._deaf_tokens > 0 else self._release(text)

    def _decode(self, token_ids: Sequence[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=self._skip_special)

    def flush(self) -> str:
        """Return the remaining text when no token follows."""
        text = self._release(self._decode_new(final=True))
        held, self._held = self._held, ""
        return text + held

    def _decode_new(self, *, final: bool) -> str:
        """Decode from a few tokens back, since a token's text may depend on its left neighbor."""
        known = self._decode(self._ids[self._prefix : self._read])
        whole = self._decode(self._ids[self._prefix :])
        if len(whole) <= len(known) or (whole.endswith(REPLACEMENT) and not final):
            return ""
        self._prefix, self._read = self._read, len(self._ids)
        return whole[len(known) :]

    def _release(self, text: str) -> str:
        if self.stopped or not self._stop:
            return "" if self.stopped else text
        self._held += text
        hits = [(index, stop) for stop in self._stop if (index := self._held.find(stop)) >= 0]
        if hits:
            self.stopped = True
            index, stop = min(hits)
            shown, self._held = self._held[: index + len(stop) * self._include_stop], ""
            return shown
        keep = max(overlap(self._held, stop) for stop in self._stop)
        shown, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return shown


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


def _compile(source: str | None) -> tuple[jinja2.Template | None, set[str]]:
    """Return the template and the names of its variables, without functions that it may call.

    A checkpoint's template is untrusted code: it runs in Jinja's sandbox, within bounds, and cannot change
    its input.
    """
    if source is None:
        return None, set()
    environment = BoundedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now(UTC).strftime(form)
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
    try:
        names = jinja2.meta.find_undeclared_variables(environment.parse(source))
        return environment.from_string(source), names - environment.globals.keys()
    except jinja2.TemplateError as error:
        raise CheckpointError(f"the chat template does not compile: {error}") from error


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
