"""Pagination of lists."""

from __future__ import annotations

from typing import Any, Final

from django.core.exceptions import ValidationError
from django.db import DataError, transaction
from rest_framework.exceptions import NotFound
from rest_framework.pagination import CursorPagination
from rest_framework.request import Request

from controlplane.errors import InvalidInputError

LARGEST_PAGE: Final = 500


class CursorPages(CursorPagination):
    """`?page_size=100&cursor=...`: 50 rows a page by default, at most LARGEST_PAGE.

    `next` is the URL of the following page. A page begins behind the last row of the one before, so it costs
    the same however deep it lies, and rows that come or go meanwhile are neither repeated nor left out. The
    order is the selector's, whose first column should tell rows apart.
    """

    page_size = 50
    page_size_query_param = "page_size"
    max_page_size = LARGEST_PAGE
    page_size_query_description = f"Rows per page, 1 to {LARGEST_PAGE}."
    cursor_query_description = "Start of the page, from `next` or `previous`."

    def paginate_queryset(self, queryset: Any, request: Request, view: Any = None) -> list[Any]:
        # The position in a cursor comes back from the client, and only the database knows its type.
        try:
            # The page and what is fetched with it: one transaction states one scope (row_security), and
            # one per statement cost a quarter of a list.
            with transaction.atomic():
                return super().paginate_queryset(queryset, request, view) or []
        except (NotFound, ValueError, ValidationError, OverflowError, DataError):
            raise InvalidInputError(
                "the cursor is invalid: start again without one", field="cursor"
            ) from None

    def get_page_size(self, request: Request) -> int:
        text = request.query_params.get(self.page_size_query_param)
        if text is None:
            return CursorPages.page_size
        if not (text.isascii() and text.isdigit() and len(text) < 6 and 0 < int(text) <= LARGEST_PAGE):
            raise InvalidInputError(f"page_size must be from 1 to {LARGEST_PAGE}", field="page_size")
        return int(text)

    def decode_cursor(self, request: Request) -> Any:
        if request.query_params.get(self.cursor_query_param) == "":
            raise ValueError("empty")
        cursor = super().decode_cursor(request)
        if cursor is not None and "\0" in str(cursor.position):
            raise ValueError("PostgreSQL's text has no NUL")
        return cursor

    def get_ordering(self, request: Request, queryset: Any, view: Any) -> tuple[str, ...]:
        ordering = queryset.query.order_by or queryset.model._meta.ordering or ("pk",)
        return tuple(str(name) for name in ordering)
