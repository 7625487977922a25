"""A client's grammar, in Lark's or GBNF's notation, checked and with our rules for its parts.

Regular expressions and JSON schemas in it are held to the limits of those that stand alone. Counts multiply
from definition to definition, which the grammar library does not bound by itself.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, Final

from worker_engine.errors import InvalidRequest
from worker_engine.json_depth import demand_shallow
from worker_engine.text.character_classes import schema_with_ascii_classes, with_ascii_classes
from worker_engine.text.grammar_limits import MAX_NESTED_REPETITIONS, check_pattern, check_schema, check_size
from worker_engine.text.schema_loops import without_endless_references
from worker_engine.text.tool_calls.base import WHITESPACE

_TOKEN: Final = re.compile(
    r"""
    (?P<header> ^[ \t]*[?!]? (?P<defined> [A-Za-z_]\w* ) (?:[ \t]*\.[ \t]*\d+)? [ \t]* (?P<opened> [:\[] ) )
    | (?P<comment> (?://|\#)[^\n]* )
    | (?P<text> "(?:[^"\\\n]|\\.)*" )
    | (?P<special> <[^<>\s]*> )
    | (?P<regex> /(?:[^/\\\n]|\\.)+/ ) (?P<flags> [a-z]* )
    | (?P<directive> %[a-z]+ )
    | \{ \s* (?P<count> \d+ ) \s* (?: , \s* (?P<most> \d+ )? \s* )? \}
    | ~ \s* (?P<times> \d+ ) (?: \.\. (?P<times_most> \d+ ) )?
    | (?P<name> [A-Za-z_]\w* )
    | (?P<colon> : )
    """,
    re.VERBOSE | re.MULTILINE,
)
_DIRECTIVES: Final = frozenset({"%ignore", "%import", "%json"})
_BLANKS: Final = re.compile(r"\s*")
_NO_OPTIONS: Final = re.compile(r"%llguidance\s*\{\s*\}")
"""The line that translated GBNF begins with. It sets no option."""


_UNFORCED: Final = '%llguidance {"no_forcing": true}\n'
"""Keeps the library from computing all bytes that must follow. A grammar without an end has endlessly many,
and one mask of it would take all time and memory."""


@dataclass(slots=True)
class _Definition:
    """A rule of the grammar.

    Attributes:
        product: its counts, multiplied.
        inner: the largest product of counts within one of its regular expressions.
        names: rules that it refers to, in the grammar's order: a set's would differ from process to process,
            and with it what is refused where rules refer to one another.
    """

    product: int = 1
    inner: int = 1
    names: dict[str, None] = field(default_factory=dict)


def checked_grammar(text: str) -> str:
    """Return a client's grammar as Lark.

    Raises:
        InvalidRequest: it is too large, repeats too much, or asks for what is not served.
    """
    from llguidance.gbnf_to_lark import any_to_lark

    check_size(text)
    try:
        text = any_to_lark(text)
    except Exception as error:  # the library raises plain Exception
        raise InvalidRequest(f"the grammar is neither Lark (with `start:`) nor GBNF: {error}") from error
    check_size(text)
    return _UNFORCED + _Reader(_NO_OPTIONS.sub("", text)).read()


class _Reader:
    """Reads a grammar token by token and copies everything but regular expressions and schemas."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._definitions: dict[str, _Definition] = {"": _Definition()}
        self._current = ""
        self._colon_due = False

    def read(self) -> str:
        parts: list[str] = []
        at = 0
        while (match := _TOKEN.search(self._text, at)) is not None:
            parts.append(self._text[at : match.start()])
            written, at = self._take(match)
            parts.append(written)
        self._demand_few_repetitions()
        return "".join([*parts, self._text[at:]])

    def _take(self, match: re.Match[str]) -> tuple[str, int]:
        """Return what to write for a token, and where to go on."""
        kind, end, definition = match.lastgroup, match.end(), self._definitions[self._current]
        if match["defined"] is not None:
            self._define(match["defined"], attributes=match["opened"] == "[")
        elif kind == "name":
            definition.names[match[0]] = None
        elif kind == "colon":
            if not self._colon_due:
                raise InvalidRequest(
                    "a definition in a grammar must begin with its name, in the line of its colon"
                )
            self._colon_due = False
        elif match["regex"] is not None:
            return self._regex(match, definition), end
        elif kind == "directive":
            return self._directive(match)
        elif counts := [match[name] for name in ("count", "most", "times", "times_most") if match[name]]:
            definition.product *= max(1, *(int(digits[-9:]) + 10**9 * (len(digits) > 9) for digits in counts))
            if definition.product > MAX_NESTED_REPETITIONS:
                raise _too_many()
        return match[0], end

    def _define(self, name: str, *, attributes: bool) -> None:
        if attributes:
            # It may also be a name in the definition before, with an optional group behind it.
            self._definitions[self._current].names[name] = None
        self._current, self._colon_due = name, attributes
        self._definitions.setdefault(name, _Definition())

    def _regex(self, match: re.Match[str], definition: _Definition) -> str:
        if set(match["flags"]) - {"i", "s"}:
            raise InvalidRequest(f"a regular expression may not have the flags {match['flags'][:20]!r}")
        pattern = with_ascii_classes(match["regex"][1:-1])
        definition.inner = max(definition.inner, check_pattern(pattern))
        return f"/{pattern}/{match['flags']}"

    def _directive(self, match: re.Match[str]) -> tuple[str, int]:
        if match[0] not in _DIRECTIVES:
            raise InvalidRequest(f"a grammar may not have {match[0][:40]}")
        if match[0] != "%json":
            return match[0], match.end()
        start = _BLANKS.match(self._text, match.end())
        try:
            schema, end = json.JSONDecoder().raw_decode(self._text, start.end() if start else match.end())
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(f"%json in the grammar is not followed by a JSON schema: {error}") from error
        return f"%json {_schema(schema)}", end

    def _demand_few_repetitions(self) -> None:
        """Multiply counts along the references; a rule that refers to itself counts once."""
        weights: dict[str, int] = {}
        open_names: set[str] = set()
        for name in self._definitions:
            path = [name]
            while path:
                top = path[-1]
                if top in weights:
                    path.pop()
                    continue
                definition = self._definitions[top]
                known = [item for item in definition.names if item in self._definitions]
                if top not in open_names:
                    open_names.add(top)
                    path += [item for item in known if item not in weights and item not in open_names]
                    continue
                path.pop()
                inner = max([definition.inner, *(weights.get(item, 1) for item in known)])
                weights[top] = definition.product * inner
                if weights[top] > MAX_NESTED_REPETITIONS and definition.product > 1:
                    raise _too_many()


def _schema(schema: Any) -> str:
    if not isinstance(schema, dict):
        return json.dumps(schema)
    demand_shallow({"%json": schema})
    check_schema(json.dumps(schema))
    schema = without_endless_references(schema_with_ascii_classes(schema))
    return json.dumps({**schema, "x-guidance": {"whitespace_pattern": WHITESPACE}})


def _too_many() -> InvalidRequest:
    return InvalidRequest(
        f"the grammar repeats something over {MAX_NESTED_REPETITIONS} times by counts within one another"
    )
