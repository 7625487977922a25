"""Checked form texts: a text over its limit is refused, never cut."""

from __future__ import annotations

from collections.abc import Mapping

from django.http import HttpRequest

from controlplane.platform.lengths import checked_text


def entered(request: HttpRequest, name: str, *, most: int) -> str:
    """Return the form's field without surrounding blanks. Raises InvalidInputError, naming the field."""
    return checked_text(request.POST.get(name, ""), field=name, most=most)


def fitting(values: Mapping[str, str], most: Mapping[str, int]) -> dict[str, str]:
    """Return `values` if none is longer than its limit in `most`, else they are shown again.

    Raises InvalidInputError, naming the first field that is too long.
    """
    return {name: checked_text(text, field=name, most=most[name]) for name, text in values.items()}
