"""Looks up a row that must exist."""

from __future__ import annotations

from typing import TypeVar

from django.db.models import Model, QuerySet

from controlplane.errors import NotFoundError

M = TypeVar("M", bound=Model)


def row_get(rows: QuerySet[M], refusal: str) -> M:
    """Return the first of `rows`. Raises NotFoundError with the text `refusal` if there is none."""
    row = rows.first()
    if row is None:
        raise NotFoundError(refusal)
    return row
