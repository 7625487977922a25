"""Pagination and name search of long lists, as in the REST API."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Generic, TypeVar
from urllib.parse import urlsplit

from django.db.models import Model, QuerySet
from django.http import Http404, HttpRequest
from rest_framework.request import Request

from controlplane.errors import InvalidInputError
from controlplane.platform.http.pagination import CursorPages

M = TypeVar("M", bound=Model)
CHOICES: Final = 500
"""Most options that a field offers; further values can be typed."""


@dataclass(frozen=True, slots=True)
class Page(Generic[M]):
    """Rows, and the queries of the previous and next pages; None if there is none."""

    rows: list[M]
    previous: str | None
    next: str | None


def page_of(request: HttpRequest, rows: QuerySet[M]) -> Page[M]:
    """Return the page of the request's `cursor`, by default the first.

    Raises:
        Http404: the cursor is invalid.
    """
    pages = CursorPages()
    try:
        found = pages.paginate_queryset(rows, Request(request))
    except InvalidInputError as error:
        raise Http404(str(error)) from error
    return Page(found, _query(pages.get_previous_link()), _query(pages.get_next_link()))


def searched(request: HttpRequest) -> str:
    """Return the request's search text; '' for none."""
    return request.GET.get("search", "").strip()[:200]


def _query(link: str | None) -> str | None:
    return None if link is None else f"?{urlsplit(link).query}"
