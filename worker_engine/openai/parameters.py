"""Request parameters, each defining both its validation and its JSON schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from worker_engine.openai.fields import Fields

Schema = Mapping[str, Any]
_MOST: Final = 2**63 - 1


class Parameter(Protocol):
    """Anything that can be described by a JSON schema."""

    @property
    def schema(self) -> Schema: ...


@dataclass(frozen=True, slots=True)
class Number:
    """A number from `low` to `high`; `open_low` excludes `low` itself."""

    default: float
    low: float
    high: float
    open_low: bool = False

    def read(self, fields: Fields, name: str) -> float:
        return fields.number(name, self.default, self.low, self.high, open_low=self.open_low)

    @property
    def schema(self) -> Schema:
        low = "exclusiveMinimum" if self.open_low else "minimum"
        return {"type": ["number", "null"], low: self.low, "maximum": self.high, "default": self.default}


@dataclass(frozen=True, slots=True)
class Whole:
    """An integer from `low` to `high`; None if absent."""

    low: int
    high: int = _MOST

    def read(self, fields: Fields, name: str) -> int | None:
        return fields.whole(name, self.low, self.high)

    @property
    def schema(self) -> Schema:
        return {"type": ["integer", "null"], "minimum": self.low, "maximum": self.high}


@dataclass(frozen=True, slots=True)
class Flag:
    """True or false."""

    default: bool = False

    def read(self, fields: Fields, name: str) -> bool:
        return fields.flag(name, default=self.default)

    @property
    def schema(self) -> Schema:
        return {"type": ["boolean", "null"], "default": self.default}


@dataclass(frozen=True, slots=True)
class Text:
    """A string; without a default it is required."""

    default: str | None = None
    max_length: int | None = None

    def read(self, fields: Fields, name: str) -> str:
        text = fields.text(name, self.default)
        if self.max_length is not None and len(text) > self.max_length:
            raise fields.wrong(name, f"a string of at most {self.max_length} characters")
        return text

    @property
    def schema(self) -> Schema:
        bound = {} if self.max_length is None else {"maxLength": self.max_length}
        return {"type": "string" if self.default is None else ["string", "null"], **bound}


@dataclass(frozen=True, slots=True)
class Items:
    """A list of at most `most` integers or strings; empty if absent. `wanted` describes it in errors."""

    most: int
    kind: type[int] | type[str]
    wanted: str
    max_length: int | None = None

    def read(self, fields: Fields, name: str) -> tuple[Any, ...]:
        items = fields.items(name, self.most, self.kind, self.wanted)
        if self.max_length is not None and not all(0 < len(item) <= self.max_length for item in items):
            raise fields.wrong(name, self.wanted)
        return items

    @property
    def schema(self) -> Schema:
        item: dict[str, Any] = {"type": "integer" if self.kind is int else "string"}
        if self.max_length is not None:
            item |= {"minLength": 1, "maxLength": self.max_length}
        return {"type": ["array", "null"], "items": item, "maxItems": self.most}


@dataclass(frozen=True, slots=True)
class SchemaOnly:
    """A parameter with its own parser elsewhere; only its schema is given here."""

    schema: Schema = field(default_factory=dict)


def object_schema(parameters: Mapping[str, Parameter], required: Sequence[str] = ()) -> dict[str, Any]:
    """Return the schema of an object with exactly these parameters."""
    properties = {name: dict(parameter.schema) for name, parameter in parameters.items()}
    schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    return schema | ({"required": list(required)} if required else {})
