"""JSON schemas of request bodies, from the kinds of their parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from contracts.openai.kinds import Schema


class Parameter(Protocol):
    """Anything that can be described by a JSON schema."""

    @property
    def schema(self) -> Schema: ...


@dataclass(frozen=True, slots=True)
class SchemaOnly:
    """A parameter with its own parser elsewhere; only its schema is given here."""

    schema: Schema = field(default_factory=dict)


def object_schema(parameters: Mapping[str, Parameter], required: Sequence[str] = ()) -> dict[str, Any]:
    """Return the schema of an object with exactly these parameters."""
    properties = {name: dict(parameter.schema) for name, parameter in parameters.items()}
    schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    return schema | ({"required": list(required)} if required else {})
