"""Kinds of parameter values: each checks a value and describes it as a JSON schema.

The gateway calls `expected` as its check. The bundled worker reads parameters by it and publishes `schema`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

Schema = Mapping[str, Any]
MAX_TOKENS: Final = 1 << 20
_ARGUMENT: Final = re.compile("[a-z][a-z0-9_]{0,63}")


class Kind(Protocol):
    """The values that a parameter accepts. JSON null counts as absent and is not checked."""

    @property
    def default(self) -> Any:
        """The value of an absent parameter."""

    @property
    def schema(self) -> Schema: ...

    def expected(self, value: Any) -> str | None:
        """Return None if a value is valid, else a text that completes "must be ..."."""


@dataclass(frozen=True, slots=True)
class Number:
    """A number from `low` to `high`; `open_low` excludes `low` itself."""

    low: float
    high: float
    default: float
    open_low: bool = False

    def expected(self, value: Any) -> str | None:
        right = type(value) in (int, float) and self.low <= value <= self.high
        if right and not (self.open_low and value == self.low):
            return None
        return f"a number {'above' if self.open_low else 'from'} {self.low:g} to {self.high:g}"

    @property
    def schema(self) -> Schema:
        low = "exclusiveMinimum" if self.open_low else "minimum"
        return {"type": ["number", "null"], low: self.low, "maximum": self.high, "default": self.default}


@dataclass(frozen=True, slots=True)
class Integer:
    """An integer from `low` to `high`; None if absent."""

    low: int
    high: int
    default: None = None

    def expected(self, value: Any) -> str | None:
        right = type(value) is int and self.low <= value <= self.high
        return None if right else f"an integer from {self.low} to {self.high}"

    @property
    def schema(self) -> Schema:
        return {"type": ["integer", "null"], "minimum": self.low, "maximum": self.high}


@dataclass(frozen=True, slots=True)
class CountOrAll:
    """An integer from 1 to `high`, or -1 for as many as possible; None if absent."""

    high: int
    default: None = None

    def expected(self, value: Any) -> str | None:
        right = type(value) is int and (value == -1 or 1 <= value <= self.high)
        return None if right else f"-1 or an integer from 1 to {self.high}"

    @property
    def schema(self) -> Schema:
        return {"type": ["integer", "null"], "minimum": -1, "maximum": self.high, "not": {"const": 0}}


@dataclass(frozen=True, slots=True)
class Flag:
    """True or false."""

    default: bool = False

    def expected(self, value: Any) -> str | None:
        return None if type(value) is bool else "true or false"

    @property
    def schema(self) -> Schema:
        return {"type": ["boolean", "null"], "default": self.default}


@dataclass(frozen=True, slots=True)
class Text:
    """A string; a default of None means that it is required."""

    default: str | None = None
    max_length: int | None = None

    def expected(self, value: Any) -> str | None:
        if isinstance(value, str) and (self.max_length is None or len(value) <= self.max_length):
            return None
        return "a string" if self.max_length is None else f"a string of at most {self.max_length} characters"

    @property
    def schema(self) -> Schema:
        bound = {} if self.max_length is None else {"maxLength": self.max_length}
        return {"type": "string" if self.default is None else ["string", "null"], **bound}


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of these strings; None if absent."""

    values: tuple[str, ...]
    default: None = None

    def expected(self, value: Any) -> str | None:
        return None if isinstance(value, str) and value in self.values else f"one of {', '.join(self.values)}"

    @property
    def schema(self) -> Schema:
        return {"type": ["string", "null"], "enum": [*self.values, None]}


@dataclass(frozen=True, slots=True)
class Arguments:
    """An object of at most `most` arguments by name, `max_bytes` of JSON, `max_depth` levels; None if absent.

    Names are lower-case identifiers that are not `reserved`.
    """

    most: int
    max_bytes: int
    max_depth: int
    reserved: frozenset[str]
    default: None = None

    def expected(self, value: Any) -> str | None:
        right = isinstance(value, dict) and len(value) <= self.most and _depth(value) <= self.max_depth
        if not right or len(json.dumps(value, ensure_ascii=False).encode(errors="replace")) > self.max_bytes:
            return (
                f"an object of at most {self.most} arguments, {self.max_bytes} bytes of JSON and "
                f"{self.max_depth} levels"
            )
        wrong = next((name for name in value if _ARGUMENT.fullmatch(name) is None), None)
        if wrong is not None:
            return f"an object whose names are lower-case identifiers, which {wrong[:64]!r} is not"
        if taken := next((name for name in value if name in self.reserved), None):
            return f"an object without {taken}, which the chat template gets from other parameters"
        return None

    @property
    def schema(self) -> Schema:
        names = {"pattern": f"^{_ARGUMENT.pattern}$", "not": {"enum": sorted(self.reserved)}}
        return {"type": ["object", "null"], "propertyNames": names, "maxProperties": self.most}


def _depth(value: Any) -> int:
    """Return the levels of objects and lists in decoded JSON, whose parser bounds them."""
    levels, items = 0, [value]
    while items := [item for item in items if isinstance(item, dict | list)]:
        levels += 1
        items = [part for item in items for part in (item.values() if isinstance(item, dict) else item)]
    return levels


@dataclass(frozen=True, slots=True)
class Items:
    """A list of `least` to `most` integers or strings; `max_length` also excludes empty strings."""

    kind: type[int] | type[str]
    most: int
    least: int = 0
    max_length: int | None = None
    default: tuple[()] = ()

    def expected(self, value: Any) -> str | None:
        right = isinstance(value, list) and self.least <= len(value) <= self.most
        right = right and all(type(item) is self.kind for item in value)
        if right and (self.max_length is None or all(0 < len(item) <= self.max_length for item in value)):
            return None
        size = f"{self.least} to {self.most}" if self.least else f"at most {self.most}"
        length = "" if self.max_length is None else f", each of 1 to {self.max_length} characters"
        return f"a list of {size} values of type {self.kind.__name__}{length}"

    @property
    def schema(self) -> Schema:
        item: dict[str, Any] = {"type": "integer" if self.kind is int else "string"}
        if self.max_length is not None:
            item |= {"minLength": 1, "maxLength": self.max_length}
        least = {"minItems": self.least} if self.least else {}
        return {"type": ["array", "null"], "items": item, "maxItems": self.most, **least}


@dataclass(frozen=True, slots=True)
class Stops:
    """A string, or a list of at most `most` strings, of 1 to `max_length` characters; None if absent."""

    most: int
    max_length: int
    default: None = None

    def expected(self, value: Any) -> str | None:
        stops = [value] if isinstance(value, str) else value
        right = isinstance(stops, list) and len(stops) <= self.most
        if right and all(isinstance(text, str) and 0 < len(text) <= self.max_length for text in stops):
            return None
        return f"a string or at most {self.most} strings of 1 to {self.max_length} characters"

    @property
    def schema(self) -> Schema:
        text = {"type": "string", "minLength": 1, "maxLength": self.max_length}
        return {"anyOf": [text, {"type": "array", "items": text, "maxItems": self.most}, {"type": "null"}]}


@dataclass(frozen=True, slots=True)
class Biases:
    """An object of at most `most` numbers from -`high` to `high` by token id; None if absent."""

    most: int
    high: int
    default: None = None

    def expected(self, value: Any) -> str | None:
        right = isinstance(value, dict) and len(value) <= self.most
        right = right and all(
            token.isascii() and token.isdecimal() and len(token) < 10 and type(bias) in (int, float)
            for token, bias in value.items()
        )
        if right and all(abs(bias) <= self.high for bias in value.values()):
            return None
        return f"an object of at most {self.most} biases from -{self.high} to {self.high} by token id"

    @property
    def schema(self) -> Schema:
        return {
            "type": ["object", "null"],
            "propertyNames": {"pattern": "^[0-9]{1,9}$"},
            "additionalProperties": {"type": "number", "minimum": -self.high, "maximum": self.high},
            "maxProperties": self.most,
        }


@dataclass(frozen=True, slots=True)
class Options:
    """An object of flags with these names; None if absent."""

    names: tuple[str, ...]
    default: None = None

    def expected(self, value: Any) -> str | None:
        right = isinstance(value, dict) and value.keys() <= set(self.names)
        if right and all(item is None or type(item) is bool for item in value.values()):
            return None
        return f"an object of {', '.join(self.names)}, each true or false"

    @property
    def schema(self) -> Schema:
        flags = {name: {"type": ["boolean", "null"]} for name in self.names}
        return {"type": ["object", "null"], "properties": flags, "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class Prompts:
    """A text, a list of token ids, or a list of 1 to `most` of either kind; required.

    Empty texts are accepted: a tokenizer may begin each text with a token.
    """

    most: int
    default: None = None

    def expected(self, value: Any) -> str | None:
        prompts = prompts_of(value)
        right = 0 < len(prompts) <= self.most
        if right and (all(type(prompt) is str for prompt in prompts) or all(map(_are_ids, prompts))):
            return None
        return f"a string, a list of token ids, or a list of 1 to {self.most} of either"

    @property
    def schema(self) -> Schema:
        text = {"type": "string", "minLength": 1}
        ids = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
        several = {"type": "array", "minItems": 1, "maxItems": self.most}
        return {"anyOf": [text, ids, {**several, "items": text}, {**several, "items": ids}]}


def prompts_of(value: Any) -> list[Any]:
    """Return the prompts as a list; a list of numbers is one prompt."""
    if isinstance(value, list) and not (value and type(value[0]) is int):
        return value
    return [value]


def _are_ids(value: Any) -> bool:
    right = type(value) is list and 0 < len(value) <= MAX_TOKENS
    return right and set(map(type, value)) == {int} and min(value) >= 0
