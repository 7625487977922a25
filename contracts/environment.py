"""Reads a process's settings from GRAFTWORK_* environment variables, by the same rules in every plane.

Methods take a variable's name without the prefix. All raise SettingsError, whose text never repeats a value
that may be secret.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import urlsplit

PREFIX: Final = "GRAFTWORK_"
Parsed = TypeVar("Parsed")


class SettingsError(ValueError):
    """An environment variable is missing, malformed or unknown; the text names it and the accepted values."""


class EnvironmentReader:
    """Reads variables, and remembers their names for `refuse_unknown`."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._names: set[str] = set()

    def value(self, name: str) -> str | None:
        """Return the variable as it is, None when it is not set."""
        self._names.add(PREFIX + name)
        return self._environ.get(PREFIX + name)

    def text(self, name: str, default: str = "") -> str:
        """Return the variable, `default` when it is not set or empty."""
        return self.value(name) or default

    def integer(self, name: str, default: int, low: int, high: int) -> int:
        text = self.value(name)
        if text is None:
            return default
        if not (text.isascii() and text.isdigit() and len(text) < 20 and low <= int(text) <= high):
            raise SettingsError(f"{PREFIX}{name} must be an integer from {low} to {high}, got {text!r}")
        return int(text)

    def choice(self, name: str, choices: Sequence[str], default: str = "") -> str:
        """Return one of `choices`; without a default the first."""
        value = self.text(name, default or choices[0])
        if value not in choices:
            raise SettingsError(f"{PREFIX}{name} must be one of {', '.join(choices)}, got {value!r}")
        return value

    def flag(self, name: str) -> bool:
        """Return True for 1; False for 0 and when it is not set or empty."""
        return self.choice(name, ("0", "1")) == "1"

    def secret(self, name: str, *, required: bool = False) -> str:
        """Return a token that fits into an HTTP header, "" when it is not set."""
        value = self.text(name)
        if (required and not value) or not value.isascii() or any(mark.isspace() for mark in value):
            kind = "a non-empty ASCII text" if required else "ASCII"
            raise SettingsError(f"{PREFIX}{name} must be {kind} without white space")
        return value

    def url(self, name: str, schemes: Sequence[str], default: str | None = None) -> str:
        """Return a URL of one of `schemes`, `default` when it is not set; without a default it is required.

        With the default "" the variable may also be empty.
        """
        text = self.value(name)
        text = (default or "") if text is None else text.strip()
        if not text and default == "":
            return text
        parts = urlsplit(text)
        if parts.scheme not in schemes or not (parts.netloc or parts.path.strip("/")):
            accepted = " or ".join(f"{scheme}://" for scheme in schemes)
            # A URL may hold a password: the message repeats only its scheme.
            raise SettingsError(
                f"{PREFIX}{name} must be a URL that begins with {accepted}, got {parts.scheme or 'none'}://"
            )
        if parts.scheme in ("sqlite", "file") and (parts.netloc or not parts.path.startswith("/")):
            raise SettingsError(
                f"{PREFIX}{name} must name an absolute path, as {parts.scheme}:///..., got {text!r}"
            )
        return text

    def words(self, name: str, separator: str = ",") -> tuple[str, ...]:
        """Return the items of a list, without white space around them and without empty ones."""
        return tuple(word.strip() for word in self.text(name).split(separator) if word.strip())

    def parsed(self, name: str, parse: Callable[[tuple[str, ...]], Parsed], separator: str = ",") -> Parsed:
        """Return `parse` of the list's items; its ValueError says what is wrong."""
        try:
            return parse(self.words(name, separator))
        except ValueError as error:
            raise SettingsError(f"{PREFIX}{name}: {error}") from None

    def file(self, name: str) -> Path | None:
        """Return the path of an existing file, None when it is not set."""
        text = self.text(name)
        if text and not Path(text).is_file():
            raise SettingsError(f"{PREFIX}{name} must be the path of a file, got {text!r}")
        return Path(text) if text else None

    def refuse_unknown(self, others: Sequence[str], *, beginning: str = "") -> None:
        """Refuse variables that begin with `beginning` and that this process has not read.

        Args:
            others: beginnings of the variables of other processes, which a supervisor may set for all.
        """
        ignored = tuple(PREFIX + name for name in others)
        known = sorted(name for name in self._names if name.startswith(PREFIX + beginning))
        for name in sorted(self._environ):
            if name.startswith(PREFIX + beginning) and name not in known and not name.startswith(ignored):
                raise SettingsError(
                    f"{name} is not a known setting; correct or unset it. Known are {', '.join(known)}"
                )
