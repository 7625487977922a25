"""Regular expressions over module paths in linear time.

PEFT matches modules by `re`. The expressions come from tenants, and one that backtracks for ever would hold
the interpreter, and with it every tenant's stream. So `re` only parses; matching goes through all
alternatives at once (Thompson, 1968). Standard library only, as the control plane imports it.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

MAX_LENGTH: Final = 4096
MAX_STATES: Final = 4096
MAX_STEPS: Final = 4_000_000
"""Of one pattern, over all that it is asked: about two seconds."""

_parser: Any = importlib.import_module("re._parser")
_PLAIN: Final = re.compile(r"\^?(?:[A-Za-z0-9_-]|\\?\.)+")
_CATEGORIES: Final = {
    "CATEGORY_DIGIT": r"\d",
    "CATEGORY_NOT_DIGIT": r"\D",
    "CATEGORY_SPACE": r"\s",
    "CATEGORY_NOT_SPACE": r"\S",
    "CATEGORY_WORD": r"\w",
    "CATEGORY_NOT_WORD": r"\W",
}
_Place = Callable[[str, int], bool]
_CONDITIONS: Final[dict[str, _Place]] = {
    "AT_BEGINNING": lambda text, at: at == 0,
    "AT_BEGINNING_STRING": lambda text, at: at == 0,
    "AT_END": lambda text, at: at == len(text),
    "AT_END_STRING": lambda text, at: at == len(text),
    "AT_BOUNDARY": lambda text, at: _word(text, at - 1) != _word(text, at),
    "AT_NON_BOUNDARY": lambda text, at: _word(text, at - 1) == _word(text, at),
}
_REPEATS: Final = ("MAX_REPEAT", "MIN_REPEAT")


class PatternError(ValueError):
    """The text is no regular expression, needs more than linear time, or is too large."""


class Pattern:
    """A regular expression that is matched against whole paths. Paths are ASCII and hold no line breaks."""

    def __init__(self, text: str) -> None:
        """Raises PatternError."""
        if len(text) > MAX_LENGTH:
            raise PatternError(f"is longer than {MAX_LENGTH} characters")
        try:
            tree = _parser.parse(text)
        except (re.error, RecursionError, OverflowError) as error:
            raise PatternError(f"is no regular expression: {error}") from error
        if tree.state.flags != re.UNICODE:
            raise PatternError("has inline flags")
        # By state: the characters that lead to the next state, or the states reached without any, each
        # under a condition on the place.
        self._reads: list[frozenset[str] | None] = []
        self._skips: list[list[tuple[_Place | None, int]]] = []
        self._seen: dict[str, bool] = {}
        self._steps = 0
        start = self._state()
        self._start, self._end = start, self._sequence(tree, start)

    def matches(self, path: str) -> bool:
        """Whether the whole path matches. Raises PatternError when all calls together take too long."""
        if path not in self._seen:
            self._seen[path] = self._run(path)
        return self._seen[path]

    def _run(self, path: str) -> bool:
        states = self._closure({self._start}, path, 0)
        for at, letter in enumerate(path):
            states = self._closure({s + 1 for s in states if letter in (self._reads[s] or ())}, path, at + 1)
        return self._end in states

    def _closure(self, states: set[int], path: str, at: int) -> set[int]:
        pending = list(states)
        while pending:
            for condition, target in self._skips[pending.pop()]:
                if target not in states and (condition is None or condition(path, at)):
                    states.add(target)
                    pending.append(target)
        self._steps += len(states) + 1
        if self._steps > MAX_STEPS:
            raise PatternError("takes too long to match")
        return states

    def _state(self) -> int:
        if len(self._reads) >= MAX_STATES:
            raise PatternError(f"takes more than {MAX_STATES} states")
        self._reads.append(None)
        self._skips.append([])
        return len(self._reads) - 1

    def _skip(self, source: int, target: int, condition: _Place | None = None) -> None:
        self._skips[source].append((condition, target))

    def _sequence(self, nodes: Iterable[tuple[Any, Any]], state: int) -> int:
        """Appends the states of `nodes` behind `state`; returns the last one."""
        for kind, value in nodes:
            state = self._node(str(kind), value, state)
        return state

    def _node(self, kind: str, value: Any, state: int) -> int:
        if kind in ("LITERAL", "NOT_LITERAL", "ANY", "IN"):
            return self._letter(frozenset(_letters(kind, value)), state)
        if kind == "AT":
            after = self._state()
            self._skip(state, after, _CONDITIONS[str(value)])
            return after
        if kind == "SUBPATTERN" and not value[1] and not value[2]:
            return self._sequence(value[3], state)
        if kind == "BRANCH":
            return self._branch(value[1], state)
        if kind in _REPEATS:
            return self._repeat(value[0], value[1], value[2], state)
        raise PatternError(f"uses {kind.lower()}, which cannot be matched in linear time")

    def _letter(self, letters: frozenset[str], state: int) -> int:
        """A reading state leads to the state behind it: states are numbered as they are made."""
        before = self._state()
        self._skip(state, before)
        self._reads[before] = letters
        return self._state()

    def _branch(self, branches: Iterable[Any], state: int) -> int:
        ends = []
        for nodes in branches:
            start = self._state()
            self._skip(state, start)
            ends.append(self._sequence(nodes, start))
        after = self._state()
        for end in ends:
            self._skip(end, after)
        return after

    def _repeat(self, least: int, most: Any, nodes: Any, state: int) -> int:
        for _ in range(least):
            state = self._sequence(nodes, state)
        after = self._state()
        if str(most) == "MAXREPEAT":
            start = self._state()
            self._skip(state, start)
            self._skip(start, after)
            self._skip(self._sequence(nodes, start), start)
            return after
        self._skip(state, after)
        for _ in range(most - least):
            state = self._sequence(nodes, state)
            self._skip(state, after)
        return after


class SuffixTable:
    """PEFT's pattern keys: the first whose expression matches a path or what follows a dot in it."""

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
            try:
                self._patterns.append((index, Pattern(rf"(.*\.)?({key})")))
            except PatternError as error:
                raise PatternError(f"{key[:80]!r} {error}") from error

    def find(self, path: str) -> int | None:
        """The index of the key that counts, or None."""
        if not self._plain and not self._rooted and not self._patterns:
            return None
        found = [self._plain[end] for end in _suffixes(path) if end in self._plain]
        if path in self._rooted:
            found.append(self._rooted[path])
        first = min(found, default=None)
        for index, pattern in self._patterns:
            if first is not None and index > first:
                break
            if pattern.matches(path):
                return index
        return first


def _suffixes(path: str) -> Iterator[str]:
    yield path
    while "." in path:
        path = path.partition(".")[2]
        yield path


def _letters(kind: str, value: Any) -> Iterator[str]:
    """The ASCII characters that a node reads."""
    letters = (chr(code) for code in range(128))
    if kind == "ANY":
        yield from (letter for letter in letters if letter != "\n")
    elif kind == "IN":
        negated = str(value[0][0]) == "NEGATE"
        yield from (letter for letter in letters if _within(letter, value[negated:]) != negated)
    else:
        yield from (letter for letter in letters if (ord(letter) == value) == (kind == "LITERAL"))


def _within(letter: str, items: Iterable[tuple[Any, Any]]) -> bool:
    for kind, value in items:
        name = str(kind)
        if name == "LITERAL" and ord(letter) == value:
            return True
        if name == "RANGE" and value[0] <= ord(letter) <= value[1]:
            return True
        if name == "CATEGORY" and re.fullmatch(_CATEGORIES[str(value)], letter) is not None:
            return True
    return False


def _word(text: str, at: int) -> bool:
    return 0 <= at < len(text) and (text[at].isalnum() or text[at] == "_")
