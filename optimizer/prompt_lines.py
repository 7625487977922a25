"""User data as JSON lines (prompts, conversations or texts); errors name the line number."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from contracts.recipes.progress import Code, JobError

DATA: Final = Path(__file__).parent / "measurement" / "data"
BUNDLED_PROMPTS: Final = DATA / "prompts.jsonl"
BUNDLED_TEXTS: Final = DATA / "texts.jsonl"
MAX_BYTES: Final = 512 << 20
_MAX_LINE: Final = 1 << 20
_MAX_LINES: Final = 100_000
_FORMS: Final = ("prompt", "messages", "text")
_ROLES: Final = ("system", "developer", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class PromptLine:
    """One line.

    Attributes:
        number: in its file, from 1.
        text: a prompt or a text; None for a conversation.
        messages: a conversation in OpenAI's format; None for a text.
        expected: the correct answer, for the scorer `exact`.
        max_tokens: of the answer; None takes the order's.
    """

    number: int
    text: str | None = None
    messages: tuple[Mapping[str, Any], ...] | None = None
    expected: str | None = None
    max_tokens: int | None = None

    @property
    def plain(self) -> str:
        """The line's text without a chat template."""
        if self.text is not None:
            return self.text
        return "\n".join(str(message["content"]) for message in self.messages or ())


def read_lines(path: Path, *, least: int = 1) -> list[PromptLine]:
    """Return all lines that are not blank.

    Args:
        least: fewest lines accepted.

    Raises:
        JobError: bad_data, with the file's name and the line's number.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise JobError(Code.BAD_DATA, f"{path} has more than {MAX_BYTES >> 20} MiB: take a sample of it")
        with path.open("rb") as file:
            lines = list(_parsed(path, enumerate(file, 1)))
    except OSError as error:
        raise JobError(Code.BAD_DATA, f"cannot read {path}: {error.strerror}") from error
    if len(lines) < least:
        raise JobError(Code.BAD_DATA, f"{path} has {len(lines)} lines of data, at least {least} are needed")
    return lines


def _parsed(path: Path, lines: Iterator[tuple[int, bytes]]) -> Iterator[PromptLine]:
    for number, line in lines:
        if number > _MAX_LINES:
            raise JobError(Code.BAD_DATA, f"{path} has more than {_MAX_LINES} lines: take a sample of it")
        if line.strip():
            try:
                yield _line(number, line)
            except ValueError as error:
                raise JobError(Code.BAD_DATA, f"{path}, line {number}: {error}") from error


def _line(number: int, line: bytes) -> PromptLine:
    """Parse one line. Raises ValueError with the reason."""
    if len(line) > _MAX_LINE:
        raise ValueError(f"is longer than {_MAX_LINE >> 20} MiB")
    try:
        value = json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8 (byte {error.start})") from error
    except RecursionError as error:
        raise ValueError("is nested too deeply") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON: {error.msg} at column {error.colno}") from error
    if not isinstance(value, dict):
        raise ValueError(f"must be an object, got {type(value).__name__}")
    if b"\\ud" in line.lower() and not _is_text(json.dumps(value, ensure_ascii=False)):
        raise ValueError("has half of a surrogate pair, which is no character")
    forms = [name for name in _FORMS if name in value]
    if len(forms) != 1:
        raise ValueError(f"must have one of {', '.join(_FORMS)}, got {', '.join(sorted(value)) or 'none'}")
    expected, most = value.get("expected"), value.get("max_tokens")
    if expected is not None and not isinstance(expected, str):
        raise ValueError("expected must be a text")
    if most is not None and (not isinstance(most, int) or isinstance(most, bool) or most < 1):
        raise ValueError("max_tokens must be a whole number of at least 1")
    if forms == ["messages"]:
        return PromptLine(number, messages=_messages(value["messages"]), expected=expected, max_tokens=most)
    if not isinstance(value[forms[0]], str) or not value[forms[0]]:
        raise ValueError(f"{forms[0]} must be a text that is not empty")
    return PromptLine(number, text=value[forms[0]], expected=expected, max_tokens=most)


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _messages(value: object) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(value, list) or not value:
        raise ValueError("messages must be a list that is not empty")
    for index, message in enumerate(value):
        if not isinstance(message, dict) or message.get("role") not in _ROLES:
            raise ValueError(f"messages[{index}].role must be one of {', '.join(_ROLES)}")
        if not isinstance(message.get("content"), str):
            raise ValueError(f"messages[{index}].content must be a text")
    return tuple(value)
