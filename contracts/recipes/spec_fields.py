"""Strict reader of one JSON object that a person wrote: every refusal names the field.

Standard library only.
"""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

_Choice = TypeVar("_Choice", bound=enum.StrEnum)
_MAX_BYTES: Final = 4 << 20


class SpecError(ValueError):
    """A recipe or order that is malformed; the text names the field and what is expected."""


class SpecFields:
    """The fields of one object. `end` refuses fields that were not read."""

    def __init__(self, where: str, value: object) -> None:
        """Raises SpecError if `value` is not an object; `where` prefixes errors, "" at the top."""
        if not isinstance(value, Mapping):
            raise SpecError(f"{where or 'the order'} must be an object, got {type(value).__name__}")
        self._where, self._values, self._read = where, value, set[str]()

    @classmethod
    def load(cls, path: Path) -> SpecFields:
        """Load a JSON file. Raises SpecError if it is missing, too large, or not JSON."""
        try:
            if path.stat().st_size > _MAX_BYTES:
                raise SpecError(f"{path} has more than {_MAX_BYTES >> 20} MiB: is it an order?")
            value = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise SpecError(f"cannot read {path}: {error}") from error
        return cls("", value)

    def path(self, name: str) -> str:
        """Return the field's full name, from the outermost object on."""
        return f"{self._where}.{name}" if self._where else name

    def error(self, name: str, problem: str) -> SpecError:
        """Return the error to raise; `problem` follows the field's name."""
        return SpecError(f"{self.path(name)} {problem}")

    def get(self, name: str) -> Any:
        """Return the value, or None, and mark the field as read."""
        self._read.add(name)
        return self._values.get(name)

    def __contains__(self, name: str) -> bool:
        return self._values.get(name) is not None

    def text(self, name: str, default: str | None = None) -> str:
        """Return a text, non-empty unless the default is, without NUL, which paths and databases refuse."""
        value = self.get(name)
        value = default if value is None else value
        if not isinstance(value, str) or (not value and default != "") or "\0" in value:
            raise self.error(name, f"must be a text that is not empty, got {value!r}")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.get(name)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise self.error(name, f"must be true or false, got {value!r}")
        return value

    def whole(self, name: str, default: int | None = None, *, least: int = 1, most: int = 1 << 31) -> int:
        value = self.get(name)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self.error(name, f"must be a whole number from {least} to {most}, got {value!r}")
        return value

    def number(self, name: str, default: float | None = None, *, least: float = 0.0) -> float:
        value = self.get(name)
        value = default if value is None else value
        if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value < math.inf:
            raise self.error(name, f"must be a number of at least {least:g}, got {value!r}")
        return float(value)

    def choice(self, name: str, kind: type[_Choice], default: _Choice | None = None) -> _Choice:
        value = self.get(name)
        if value is None and default is not None:
            return default
        try:
            return kind(value)
        except ValueError:
            raise self.error(
                name, f"must be {', '.join(item.value for item in kind)}, got {value!r}"
            ) from None

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a list of texts; empty when absent."""
        value = self.get(name)
        if value is None:
            return ()
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise self.error(name, f"must be a list of texts, got {value!r}")
        if wrong := [item for item in value if not isinstance(item, str)]:
            raise self.error(name, f"must be a list of texts, got {wrong[0]!r} in it")
        return tuple(value)

    def numbers(self, name: str, default: Sequence[int], *, most: int) -> tuple[int, ...]:
        """Return a non-empty list of different whole numbers from 1 to `most`."""
        value = self.get(name)
        value = list(default) if value is None else value
        fine = isinstance(value, list) and all(
            isinstance(item, int) and not isinstance(item, bool) and 1 <= item <= most for item in value
        )
        if not fine or not value or len(set(value)) != len(value):
            raise self.error(
                name, f"must be a list of different whole numbers from 1 to {most}, got {value!r}"
            )
        return tuple(value)

    def decimals(self, name: str, *, most: float) -> tuple[float, ...]:
        """Return a list of different numbers above 0, up to `most`; empty when absent."""
        value = self.get(name)
        if value is None:
            return ()
        fine = isinstance(value, list) and all(
            isinstance(item, int | float) and not isinstance(item, bool) and 0 < item <= most
            for item in value
        )
        if not fine or not value or len(set(value)) != len(value):
            raise self.error(
                name, f"must be a list of different numbers above 0, up to {most:g}, got {value!r}"
            )
        return tuple(float(item) for item in value)

    def section(self, name: str) -> SpecFields:
        """Return the fields of a nested object; no fields when it is absent."""
        value = self.get(name)
        return SpecFields(self.path(name), {} if value is None else value)

    def sections(self, name: str) -> list[SpecFields]:
        """Return the fields of each object in a list; empty when absent."""
        value = self.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.error(name, f"must be a list of objects, got {value!r}")
        return [SpecFields(f"{self.path(name)}[{index}]", item) for index, item in enumerate(value)]

    def version(self, expected: int) -> None:
        """Raise SpecError unless `version` is present and equals `expected`."""
        if self.get("version") != expected:
            raise self.error("version", f"must be {expected}, got {self._values.get('version')!r}")

    def end(self) -> None:
        """Raise SpecError for fields that were not read: an unknown field may be a misspelt one."""
        if unknown := sorted(set(self._values) - self._read):
            known = ", ".join(sorted(self._read))
            raise SpecError(f"{self.path(unknown[0])} is not a known field; known are {known}")
