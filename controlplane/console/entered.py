"""Checked form texts: a text over its limit is refused, never cut."""

from __future__ import annotations

from django.http import HttpRequest

from controlplane.platform.lengths import checked_text


def entered(request: HttpRequest, name: str, *, most: int) -> str:
    """Return the form's field without surrounding blanks. Raises InvalidInputError, naming the field."""
    return checked_text(request.POST.get(name, ""), field=name, most=most)
