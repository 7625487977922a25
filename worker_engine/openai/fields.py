"""Typed access to the fields of a JSON object: what is ill-typed or out of range is refused by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from contracts.openai.kinds import Kind
from worker_engine.errors import InvalidRequest, MissingParameter, UnknownParameter


class Fields:
    """One object of a request's body; null counts as absent, as OpenAI's clients send it."""

    def __init__(self, values: Mapping[str, Any], prefix: str = "") -> None:
        self._values = {name: item for name, item in values.items() if item is not None}
        self._prefix = prefix

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def refuse_others(self, known: Iterable[str]) -> None:
        """Raises InvalidRequest for the first field that is not in `known`."""
        if unknown := sorted(set(self._values) - set(known)):
            name = self._prefix + unknown[0]
            raise UnknownParameter(f"{name} is not a known parameter", param=name)

    def get(self, name: str, default: object, kind: type | tuple[type, ...], wanted: str) -> Any:
        """A field of type `kind`; a default of None makes it required."""
        value = self._values.get(name, default)
        if value is None:
            raise MissingParameter(f"{self._prefix}{name} is required", param=self._prefix + name)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self.wrong(name, wanted)
        return value

    def wrong(self, name: str, wanted: str) -> InvalidRequest:
        """The refusal of a field that is not what was wanted."""
        param, shown = self._prefix + name, show(self._values.get(name))
        return InvalidRequest(f"{param} must be {wanted}, got {shown}", param=param)

    def read(self, name: str, kind: Kind) -> Any:
        """Return the value of a parameter, or the default of its kind if it is absent.

        Raises:
            InvalidRequest: the value is not of that kind.
        """
        value = self._values.get(name)
        if value is None:
            return kind.default
        if (expected := kind.expected(value)) is not None:
            raise self.wrong(name, expected)
        # The default has the type that callers expect: a number is a float, a list a tuple.
        return value if kind.default is None else type(kind.default)(value)

    def require(self, name: str, kind: Kind) -> Any:
        """Return the value of a parameter. Raises MissingParameter, InvalidRequest."""
        if name not in self._values:
            raise MissingParameter(f"{self._prefix}{name} is required", param=self._prefix + name)
        return self.read(name, kind)

    def text(self, name: str, default: str | None = None) -> str:
        return str(self.get(name, default, str, "a string"))

    def flag(self, name: str, *, default: bool = False) -> bool:
        return bool(self.get(name, default, bool, "true or false"))


def show(value: object) -> str:
    """A value as JSON, cut to what fits into a message."""
    text = orjson.dumps(value, default=str).decode()
    return text if len(text) <= 60 else text[:57] + "..."
