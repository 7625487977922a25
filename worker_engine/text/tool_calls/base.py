"""Formats of tool calls by model family: the interface, and what all families share.

A format consists of texts around JSON objects. `parser.CallParser` parses it, a Lark grammar enforces it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from worker_engine.text.character_classes import schema_with_ascii_classes

WHITESPACE: Final = r"[\x20\x0A\x0D\x09]{1,8}"
"""Bounded, because an uncertain model may otherwise write spaces until max_tokens."""
MAX_PARALLEL_CALLS: Final = 16
"""Most calls in one answer that a grammar allows: a small model may otherwise repeat itself until max_tokens.
"""


@dataclass(frozen=True, slots=True)
class Function:
    """A function that may be called; `parameters` is the JSON schema of its arguments."""

    name: str
    parameters: Mapping[str, Any] = field(hash=False)
    strict: bool = False


@dataclass(frozen=True, slots=True)
class CallForm:
    """One family's way of writing calls.

    Attributes:
        begin: what opens a call, or the list of calls.
        end: what closes it; "" when nothing does.
        opening: text between `begin` and the first object that the grammar writes.
        separator: what stands between two objects of one list; "" when each call has `begin` and `end`.
        closing: text behind the last object that the grammar writes.
        arguments: the key of a call's arguments.
        bare: `begin` may be left out when the answer starts with an object.
        naming: what stands between a call's name and its object, which then is the arguments alone; "" when
            the object holds both.
    """

    begin: str
    end: str
    opening: str
    separator: str
    closing: str
    arguments: str = "arguments"
    bare: bool = False
    naming: str = ""


def lark(
    form: CallForm,
    functions: Sequence[Function],
    *,
    parallel: bool,
    added_token_id: Callable[[str], int | None],
) -> str:
    """Return the grammar of an answer that consists only of calls of `functions`.

    Args:
        added_token_id: returns the id of a token that was added to the vocabulary, or None; a
            grammar cannot match such a token by its spelling.
    """
    more = f"{{0,{MAX_PARALLEL_CALLS - 1}}}"
    begin, end = (_terminal(text, added_token_id) for text in ("" if form.bare else form.begin, form.end))
    if form.naming:
        return _named(form, functions, begin, more if parallel else "", added_token_id)
    opening, closing = _text(form.opening), _text(form.closing)
    if form.separator:
        several = f" ({_text(form.separator)} call){more}" if parallel else ""
        rule = f"{begin} {opening} call{several} {closing}"
    else:
        one = f"{begin} {opening} call {closing} {end}"
        rule = one + (f' ("\\n" {one}){more}' if parallel else "")
    schema = schema_with_ascii_classes(_call_schema(form, functions))
    return f"start: {rule}\ncall: %json {json.dumps(schema)}\n"


def _named(
    form: CallForm,
    functions: Sequence[Function],
    begin: str,
    more: str,
    added_token_id: Callable[[str], int | None],
) -> str:
    """As `lark`, where a call is a name and the object of its arguments; `more`: how many may follow one."""
    naming = _terminal(form.naming, added_token_id)
    calls = " | ".join(f"{_text(item.name)} {naming} arguments_{at}" for at, item in enumerate(functions))
    several = f" ({begin} call){more}" if more else ""
    guidance = _guidance(functions)
    schemas = (schema_with_ascii_classes(item.parameters) for item in functions)
    objects = [
        f"arguments_{at}: %json {json.dumps({**schema, 'x-guidance': guidance})}"
        for at, schema in enumerate(schemas)
    ]
    return "\n".join([f"start: {begin} call{several}", f"call: {calls}", *objects, ""])


def _terminal(text: str, added_token_id: Callable[[str], int | None]) -> str:
    token_id = added_token_id(text) if text else None
    return _text(text) if token_id is None else f"<[{token_id}]>"


def _text(text: str) -> str:
    return json.dumps(text) if text else ""


def _call_schema(form: CallForm, functions: Sequence[Function]) -> Mapping[str, Any]:
    """Return the schema of a call; each function's schema is moved with its references."""
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": item.name}, form.arguments: {"$ref": f"#/$defs/{item.name}"}},
            "required": ["name", form.arguments],
            "additionalProperties": False,
        }
        for item in functions
    ]
    return {
        "x-guidance": _guidance(functions),
        "$defs": {item.name: _rooted(item.parameters, f"#/$defs/{item.name}") for item in functions},
        "anyOf": calls,
    }


def _guidance(functions: Sequence[Function]) -> Mapping[str, Any]:
    """Return how schemas are read: for non-strict functions, unknown keywords are ignored."""
    best_effort = not all(item.strict for item in functions)
    return {"whitespace_pattern": WHITESPACE, "lenient": best_effort, "coerce_one_of": best_effort}


def _rooted(node: Any, root: str) -> Any:
    if isinstance(node, dict):
        return {
            name: root + item[1:]
            if name == "$ref" and isinstance(item, str) and (item == "#" or item.startswith("#/"))
            else _rooted(item, root)
            for name, item in node.items()
        }
    return [_rooted(item, root) for item in node] if isinstance(node, list) else node
