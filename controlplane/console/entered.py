"""Texts as people enter them: what is longer than its place is refused with the bound, never cut."""

from __future__ import annotations

from collections.abc import Mapping

from django.http import HttpRequest

from controlplane.platform.lengths import checked_text


def entered(request: HttpRequest, name: str, *, most: int) -> str:
    """The form's field without blanks at its ends. Raises InvalidInputError, naming the field."""
    return checked_text(request.POST.get(name, ""), field=name, most=most)


def fitting(values: Mapping[str, str], most: Mapping[str, int]) -> dict[str, str]:
    """`values` that are kept to be shown again, once none is longer than `most` says.

    Raises InvalidInputError, naming the first field that is.
    """
    return {name: checked_text(text, field=name, most=most[name]) for name, text in values.items()}
