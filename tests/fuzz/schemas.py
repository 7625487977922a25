"""JSON schemas, of answers and of tools' parameters: admitted or refused, and obeyed by what is written."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any, Final

import jsonschema
import orjson
import referencing.exceptions

from tests.fuzz import grammars
from tests.fuzz.drawing import changed_json, json_value
from tests.fuzz.grammars import GrammarCases
from tests.fuzz.target import Target, demand
from worker_engine.errors import InvalidRequest
from worker_engine.openai.body import parse_object
from worker_engine.openai.fields import Fields
from worker_engine.openai.prepare import _checked_functions
from worker_engine.openai.tools import parse_tools
from worker_engine.protocol import Grammar, GrammarKind
from worker_engine.text.tool_calls.base import lark
from worker_engine.text.tool_calls.forms import MISTRAL

_NAMES: Final = ("a", "b", "name", "é", "x y", '"', "", "$ref", "properties", "0")
_PATTERNS: Final = ("^[a-c]+$", "[0-9]{2}", r"^\d{3}-\w$", "^(yes|no)$", "x", "^$", "^é")
_FORMATS: Final = (
    "date",
    "date-time",
    "time",
    "uuid",
    "ipv4",
    "ipv6",
    "email",
    "hostname",
    "uri",
    "duration",
    "regex",
)


def schema(draw: Random, depth: int = 3) -> Any:
    """Return a well-formed schema of keywords that the grammar library knows, or refuses by name."""
    kind = draw.choice(_CONTAINERS + _LEAVES if depth else _LEAVES)
    return kind(draw, depth - 1)


def _object(draw: Random, depth: int) -> Any:
    names = draw.sample(_NAMES, draw.randrange(5))
    value: dict[str, Any] = {"type": "object", "properties": {name: schema(draw, depth) for name in names}}
    if draw.random() < 0.7:
        value["required"] = draw.sample(names, draw.randrange(len(names) + 1)) + ["z"] * (draw.random() < 0.1)
    if draw.random() < 0.6:
        value["additionalProperties"] = draw.choice((False, False, True, schema(draw, depth)))
    if draw.random() < 0.1:
        value["patternProperties"] = {draw.choice(_PATTERNS): schema(draw, depth)}
    if draw.random() < 0.1:
        value[draw.choice(("minProperties", "maxProperties"))] = draw.randrange(4)
    return value


def _array(draw: Random, depth: int) -> Any:
    value: dict[str, Any] = {"type": "array"}
    if draw.random() < 0.9:
        value["items"] = draw.choice((schema(draw, depth), schema(draw, depth), False))
    if draw.random() < 0.2:
        value["prefixItems"] = [schema(draw, depth) for _ in range(draw.randrange(1, 4))]
    if draw.random() < 0.5:
        value["minItems"] = draw.randrange(4)
    if draw.random() < 0.5:
        value["maxItems"] = value.get("minItems", 0) + draw.choice((0, 1, 3, 100))
    return value


def _branches(draw: Random, depth: int) -> Any:
    name = draw.choice(("anyOf", "anyOf", "oneOf", "allOf"))
    value = {name: [schema(draw, depth) for _ in range(draw.randrange(1, 4))]}
    return value | (draw.choice((_number, _string, _object))(draw, 0) if draw.random() < 0.2 else {})


def _number(draw: Random, depth: int) -> Any:
    value: dict[str, Any] = {"type": draw.choice(("integer", "number"))}
    low = draw.choice((-1000, -7, 0, 1, 2.5, 10**6))
    if draw.random() < 0.5:
        value[draw.choice(("minimum", "exclusiveMinimum"))] = low
    if draw.random() < 0.5:
        value[draw.choice(("maximum", "exclusiveMaximum"))] = low + draw.choice((0, 1, 2, 9, 100, 12345))
    if draw.random() < 0.2:
        value["multipleOf"] = draw.choice((1, 2, 3, 10, 97))
    return value


def _string(draw: Random, depth: int) -> Any:
    value: dict[str, Any] = {"type": "string"}
    if draw.random() < 0.4:
        value["minLength"] = draw.choice((0, 1, 3, 40))
    if draw.random() < 0.4:
        value["maxLength"] = value.get("minLength", 0) + draw.choice((0, 1, 9, 1000))
    if draw.random() < 0.3:
        value["pattern"] = draw.choice((*_PATTERNS, grammars.regex(draw, 1)))
    if draw.random() < 0.2:
        value["format"] = draw.choice(_FORMATS)
    return value


def _values(draw: Random, depth: int) -> Any:
    if draw.random() < 0.3:
        return {"const": json_value(draw, 2)}
    return {"enum": [json_value(draw, 1) for _ in range(draw.randrange(1, 5))]}


def _plain(draw: Random, depth: int) -> Any:
    several = {"type": draw.sample(("null", "boolean", "integer", "string", "array", "object"), 2)}
    return draw.choice((True, {}, {"type": "null"}, {"type": "boolean"}, several, {"description": "x"}))


def _reference(draw: Random, depth: int) -> Any:
    return {
        "$ref": draw.choice(("#/$defs/a", "#/$defs/b", "#/$defs/b", "#", "#/$defs/none", "https://x.test/"))
    }


def _rare(draw: Random, depth: int) -> Any:
    inner = schema(draw, 0)
    return draw.choice(
        (
            {"not": inner},
            {"if": inner, "then": inner},
            {"contains": inner},
            {"uniqueItems": True},
            {"type": "array", "items": inner, "uniqueItems": True},
            {"dependentRequired": {"a": ["b"]}},
        )
    )


_LEAVES: Final = (_number, _number, _string, _string, _values, _plain, _reference)
_CONTAINERS: Final = (_object, _object, _object, _array, _branches, _rare)


class SchemaCases:
    """Runs cases on one compiler, as a worker does for its requests."""

    def __init__(self, cases: GrammarCases) -> None:
        self._cases = cases

    def run(self, draw: Random) -> str:
        asked = _object(draw, 3) if draw.random() < 0.6 else schema(draw)
        asked = asked if isinstance(asked, dict) else {}
        if draw.random() < 0.5:
            asked["$defs"] = {"a": schema(draw, 1), "b": schema(draw, 1)}
        if draw.random() < 0.4:
            asked = changed_json(draw, asked, 0.05)
        if draw.random() < 0.3:
            return self._call(draw, asked)
        strict = draw.random() < 0.8
        form = {"name": "x", "schema": asked, "strict": strict}
        body = {"response_format": {"type": "json_schema", "json_schema": form}}
        outcome, text = self._cases.write(draw, body)
        if outcome == "complete":
            _check(asked, text, strict=strict)
        return outcome

    def _call(self, draw: Random, asked: Any) -> str:
        """A call of the one tool that must be called, with these parameters."""
        tool = {"type": "function", "function": {"name": "f", "parameters": asked, "strict": True}}
        body = {"tools": [tool], "tool_choice": "required"}
        try:
            use = parse_tools(Fields(parse_object(orjson.dumps(body))))
            assert use is not None
            functions = _checked_functions(use.functions)
            text = lark(MISTRAL, functions, parallel=False, added_token_id=lambda _: None)
            outcome, written = self._cases.follow(draw, Grammar(GrammarKind.LARK, text), "tools")
        except InvalidRequest as refusal:
            demand(0 < len(str(refusal)) < 1000, refusal)
            return "refused"
        if outcome == "complete":
            with suppress(_RepeatedName):
                [call] = _parsed(written.removeprefix(MISTRAL.begin))
                assert call.keys() == {"name", "arguments"}
                assert call["name"] == "f"
                _validate(use.functions[0].parameters, call["arguments"])
        return outcome


class _RepeatedName(ValueError):
    """An object has a name twice. No grammar can forbid it for names that the schema leaves open."""


def _parsed(text: str) -> Any:
    """Numbers stay as they are written; a float would round 4.99999999999999999 to 5."""
    return json.loads(text, parse_float=Decimal, object_pairs_hook=_members)


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise _RepeatedName
    return members


def _check(asked: Any, text: str, *, strict: bool) -> None:
    """Fails unless the text is JSON and, under a strict schema, what the schema describes."""
    with suppress(_RepeatedName):
        value = _parsed(text)
        if strict:
            _validate(asked, value)


def _validate(asked: Mapping[str, Any], value: Any) -> None:
    validator = jsonschema.Draft202012Validator
    try:
        validator.check_schema(asked)
        validator(json.loads(json.dumps(asked), parse_float=Decimal)).validate(value)
    except (jsonschema.SchemaError, referencing.exceptions.Unresolvable):
        return  # the grammar library takes a keyword for absent where its value is malformed
    except jsonschema.ValidationError as error:
        raise AssertionError(f"{json.dumps(asked)} accepted {value!r}: {error.message}") from error


@contextmanager
def open_target(folder: Path) -> Iterator[Target]:
    """Opens the compiler of a worker whose vocabulary is the 256 bytes and an end of text."""
    with grammars.open_cases(folder) as cases:
        yield Target(SchemaCases(cases).run, cases.pids)
