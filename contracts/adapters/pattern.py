"""Regular expressions over module paths, matched by RE2 in time linear in the path.

PEFT matches modules by `re`. The expressions come from tenants, and one that backtracks would hold the
interpreter, and with it every tenant's stream.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

MAX_LENGTH: Final = 4096
MAX_MEMORY: Final = 128 << 10
"""Bytes of a compiled expression and its automaton. The slowest known one takes 0.2 s for the 500 modules of
a large model, during which RE2 releases the interpreter to other threads."""
MAX_EXPRESSIONS: Final = 64
"""Most keys of one table that are regular expressions rather than names or paths."""

_PLAIN: Final = re.compile(r"\^?(?:[A-Za-z0-9_-]|\\?\.)+")


class PatternError(ValueError):
    """The text is not a regular expression."""


class NonlinearPatternError(PatternError):
    """A regular expression that cannot be matched within bounds: lookaround, backreferences, size."""


class Pattern:
    """A regular expression that is matched against whole paths. Paths hold no line breaks."""

    def __init__(self, text: str) -> None:
        """Raises PatternError."""
        # Import at first use: the GPU report runs the engine alone, without RE2.
        import re2

        if len(text) > MAX_LENGTH:
            raise NonlinearPatternError(f"is longer than {MAX_LENGTH} characters")
        options = re2.Options()
        options.max_mem, options.log_errors = MAX_MEMORY, False
        try:
            self._compiled = re2.compile(text, options)
        except re2.error as error:
            _demand_expression(text)
            reason = error.args[0].decode(errors="replace")
            raise NonlinearPatternError(f"cannot be matched in linear time: {reason}") from error

    def matches(self, path: str) -> bool:
        """Return True if the whole path matches."""
        return self._compiled.fullmatch(path) is not None


class SuffixTable:
    """PEFT's pattern keys: the first whose expression matches a path or the part after one of its dots."""

    def __init__(self, keys: Iterable[str]) -> None:
        """Raises PatternError naming the key."""
        self._plain: dict[str, int] = {}
        self._rooted: dict[str, int] = {}
        self._patterns: list[tuple[int, Pattern]] = []
        for index, key in enumerate(keys):
            if _PLAIN.fullmatch(key) is not None:
                table = self._rooted if key.startswith("^") else self._plain
                table.setdefault(key.removeprefix("^").replace("\\", ""), index)
                continue
            if len(self._patterns) >= MAX_EXPRESSIONS:
                raise PatternError(f"{key[:80]!r} is one of more than {MAX_EXPRESSIONS} regular expressions")
            try:
                self._patterns.append((index, Pattern(rf"(.*\.)?({key})")))
            except PatternError as error:
                raise PatternError(f"{key[:80]!r} {error}") from error

    def find(self, path: str) -> int | None:
        """Return the index of the key that applies, or None."""
        if not self._plain and not self._rooted and not self._patterns:
            return None
        found = [self._plain[end] for end in suffixes(path) if end in self._plain]
        if path in self._rooted:
            found.append(self._rooted[path])
        first = min(found, default=None)
        for index, pattern in self._patterns:
            if first is not None and index > first:
                break
            if pattern.matches(path):
                return index
        return first


def suffixes(path: str) -> Iterator[str]:
    """Yield the path, and the part after each of its dots."""
    yield path
    while "." in path:
        path = path.partition(".")[2]
        yield path


def _demand_expression(text: str) -> None:
    """Raise PatternError if Python's own `re` does not compile the text."""
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise PatternError(f"is not a regular expression: {error}") from error
