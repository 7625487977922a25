"""Parses output constraints: `response_format`, and vLLM's `structured_outputs` and `guided_*`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

import orjson

from contracts.openai.parameters import CONSTRAINTS
from worker_engine.errors import InvalidRequest
from worker_engine.json_depth import MAX_DEPTH, demand_shallow
from worker_engine.openai.fields import Fields
from worker_engine.protocol import Grammar, GrammarKind
from worker_engine.text.character_classes import schema_with_ascii_classes, with_ascii_classes

_KINDS: Final = ("json", "regex", "choice", "grammar", "json_object")
MAX_CHOICES: Final = 10_000
_ANY_OBJECT: Final = Grammar(GrammarKind.JSON_SCHEMA, '{"type":"object"}')


@dataclass(frozen=True, slots=True)
class Constraint:
    """A grammar, and the parameter that requested it."""

    param: str
    grammar: Grammar


def parse_constraint(fields: Fields) -> Constraint | None:
    """Return the constraint, if any. Raises InvalidRequest naming a malformed or a second one."""
    found = [
        Constraint(name, grammar)
        for name in CONSTRAINTS
        if name in fields and (grammar := _grammar(fields, name)) is not None
    ]
    if len(found) > 1:
        one, other = found[0].param, found[1].param
        raise InvalidRequest(f"{one} and {other} exclude each other", param=other)
    return found[0] if found else None


def _grammar(fields: Fields, name: str) -> Grammar | None:
    if name == "response_format":
        return _response_format(Fields(fields.get(name, None, dict, "an object"), f"{name}."))
    if name != "structured_outputs":
        return _structured(fields, name, name.removeprefix("guided_"))
    inner = Fields(fields.get(name, None, dict, "an object"), f"{name}.")
    inner.refuse_others(_KINDS)
    kinds = [kind for kind in _KINDS if kind in inner]
    if len(kinds) != 1:
        raise InvalidRequest(f"{name} must hold one of {', '.join(_KINDS)}", param=name)
    return _structured(inner, kinds[0], kinds[0])


def _response_format(fields: Fields) -> Grammar | None:
    kind = fields.text("type")
    if kind == "json_schema":
        fields.refuse_others(("type", "json_schema"))
        inner = Fields(fields.get("json_schema", None, dict, "an object"), "response_format.json_schema.")
        inner.refuse_others(("name", "description", "schema", "strict"))
        inner.text("name")
        inner.text("description", "")
        schema = inner.get("schema", None, dict, "a JSON schema as an object")
        return Grammar(GrammarKind.JSON_SCHEMA, _dump(schema), strict=inner.flag("strict"))
    fields.refuse_others(("type",))
    if kind not in ("text", "json_object"):
        raise fields.wrong("type", "text, json_object or json_schema")
    return _ANY_OBJECT if kind == "json_object" else None


def _structured(fields: Fields, name: str, kind: str) -> Grammar | None:
    if kind == "json_object":
        return _ANY_OBJECT if fields.flag(name) else None
    if kind == "regex":
        return Grammar(GrammarKind.REGEX, with_ascii_classes(fields.text(name)))
    if kind == "grammar":
        return Grammar(GrammarKind.CLIENT, fields.text(name))
    if kind == "choice":
        wanted = f"1 to {MAX_CHOICES} non-empty strings"
        choices: list[Any] = fields.get(name, None, list, wanted)
        if not 0 < len(choices) <= MAX_CHOICES or not all(type(item) is str and item for item in choices):
            raise fields.wrong(name, wanted)
        return Grammar(GrammarKind.REGEX, "|".join(map(_escape, choices)))
    value = fields.get(name, None, (dict, str), "a JSON schema")
    if isinstance(value, str):
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError as error:
            raise fields.wrong(name, f"a JSON schema ({error})") from error
    if not isinstance(value, dict):
        raise fields.wrong(name, "a JSON schema")
    try:
        # The body's depth check did not see into this JSON string.
        demand_shallow({name: value})
    except InvalidRequest as error:
        raise fields.wrong(name, f"a JSON schema of at most {MAX_DEPTH} levels") from error
    return Grammar(GrammarKind.JSON_SCHEMA, _dump(value))


def _dump(schema: dict[str, Any]) -> str:
    return orjson.dumps(schema_with_ascii_classes(schema)).decode()


def _escape(text: str) -> str:
    """Return the text as a literal in Rust's regular expression syntax."""
    return re.sub(r"([\\.+*?()|\[\]{}^$#&\-~/])", r"\\\1", text)
