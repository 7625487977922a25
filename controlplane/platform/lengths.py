"""Bounded texts: a text that is too long is refused, never truncated."""

from __future__ import annotations

from controlplane.errors import InvalidInputError


def checked_text(text: str, *, field: str, most: int) -> str:
    """Return `text` without surrounding blanks. Raises InvalidInputError beyond `most` characters."""
    text = text.strip()
    if len(text) > most:
        raise InvalidInputError(
            f"{field} has {len(text)} characters; the maximum is {most}: shorten it", field=field
        )
    return text
