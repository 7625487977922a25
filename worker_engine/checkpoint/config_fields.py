"""A checkpoint's JSON files, read field by field: every refusal names the file and the field."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

from worker_engine.errors import CheckpointError

_LARGEST: Final = 1 << 31
"""A whole number above it is no size of a model, and would be memory before a tensor's shape refutes it."""


class Fields:
    """One JSON object. A field that is null counts as absent, as transformers writes it."""

    def __init__(self, where: str, values: Mapping[str, Any]) -> None:
        """`where` opens every error: the file, and the path of an object inside it."""
        self._where, self._values = where, values

    @classmethod
    def load(cls, path: Path) -> Self:
        """Raises CheckpointError when there is no such file, or no JSON object in it."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise CheckpointError(
                f"cannot read {path}: {error}. Is --model a Hugging Face folder?"
            ) from error
        if not isinstance(values, dict):
            raise CheckpointError(f"{path} must hold a JSON object")
        return cls(str(path), values)

    def __contains__(self, name: str) -> bool:
        return self._values.get(name) is not None

    @property
    def names(self) -> tuple[str, ...]:
        """Of all fields that are there, in their order."""
        return tuple(name for name in self._values if name in self)

    def error(self, name: str, problem: str) -> CheckpointError:
        """To be raised: `problem` follows the field's name."""
        return CheckpointError(f"{self._where}: {name} {problem}")

    def whole(self, name: str, default: int | None = None, *, least: int = 1) -> int:
        """A whole number of at least `least`."""
        value = self._get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value < _LARGEST:
            raise self.error(name, f"must be a whole number of at least {least}, got {value!r}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A positive number."""
        value = self._get(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
            raise self.error(name, f"must be a positive number, got {value!r}")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self.error(name, f"must be true or false, got {value!r}")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        value = self._get(name, default)
        if not isinstance(value, str):
            raise self.error(name, f"must be a text, got {value!r}")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of texts; empty when absent."""
        value = self._values.get(name) or []
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.error(name, f"must be a list of texts, got {value!r}")
        return tuple(value)

    def wholes(self, name: str) -> tuple[int, ...]:
        """A list of whole numbers of at least 0; empty when absent."""
        value = self._values.get(name) or []
        if not isinstance(value, list) or not all(type(item) is int and item >= 0 for item in value):
            raise self.error(name, f"must be a list of whole numbers, got {value!r}")
        return tuple(value)

    def token_ids(self, name: str) -> tuple[int, ...]:
        """A token or a list of them; empty when absent."""
        value = self._values.get(name)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(isinstance(item, int) and not isinstance(item, bool) for item in ids):
            raise self.error(name, f"must be a token's number or a list of them, got {value!r}")
        return tuple(ids)

    def section(self, name: str) -> Fields | None:
        """The fields of an object inside this one; None when absent or empty."""
        value = self._values.get(name)
        if not value:
            return None
        if not isinstance(value, dict):
            raise self.error(name, f"must be an object, got {value!r}")
        return Fields(f"{self._where}: {name}", value)

    def must_be(self, name: str, expected: object) -> None:
        """Raises CheckpointError for a value that asks for something else than what is served."""
        if name in self and self._values[name] != expected:
            raise self.error(name, f"{self._values[name]!r} is not served, only {expected!r}")

    def must_be_absent(self, name: str, reason: str) -> None:
        """Raises CheckpointError when the field is there, unless it is false or empty."""
        if self._values.get(name):
            raise self.error(name, f"{self._values[name]!r} is not served: {reason}")

    def only(self, *names: str) -> None:
        """Raises CheckpointError for any other field: what we do not know may change the result."""
        for name in self._values:
            if name not in names and name in self:
                raise self.error(name, f"is not served; expected only {', '.join(names)}")

    def _get(self, name: str, default: object) -> Any:
        value = self._values.get(name)
        if value is None:
            value = default
        if value is None:
            raise self.error(name, "is missing")
        return value
