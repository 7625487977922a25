"""Texts that have bounds: what is too long is refused with the bound, never cut."""

from __future__ import annotations

from controlplane.errors import InvalidInputError


def checked_text(text: str, *, field: str, most: int) -> str:
    """`text` without blanks at its ends. Raises InvalidInputError: it has more than `most` characters."""
    text = text.strip()
    if len(text) > most:
        raise InvalidInputError(
            f"{field} has {len(text)} characters; {most} is the most: shorten it", field=field
        )
    return text
