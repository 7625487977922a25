"""What lists can be narrowed by: each list's FilterSet, and nothing that it does not name."""

from __future__ import annotations

from typing import Any, Final

from django.db.models import QuerySet
from django_filters.rest_framework import DjangoFilterBackend
from rest_framework.request import Request

from controlplane.errors import InvalidInputError

_OF_EVERY_LIST: Final = ("cursor", "page_size", "format")


class StrictFilters(DjangoFilterBackend):  # type: ignore[misc]
    """django-filter's backend, which refuses parameters that the list does not know: a misspelt filter
    would otherwise give the whole list."""

    def filter_queryset(self, request: Request, queryset: QuerySet[Any], view: Any) -> QuerySet[Any]:
        filterset_class = self.get_filterset_class(view, queryset)
        known = [*(filterset_class.base_filters if filterset_class else ()), *_OF_EVERY_LIST]
        if unknown := sorted(set(request.query_params) - set(known)):
            name = unknown[0][:64]
            raise InvalidInputError(f"{name!r} is none of {', '.join(known)}", field=name)
        filtered: QuerySet[Any] = super().filter_queryset(request, queryset, view)
        return filtered
