"""Filters of lists: each list's FilterSet; unknown query parameters are refused."""

from __future__ import annotations

from typing import Any, Final

from django.db.models import QuerySet
from django_filters.rest_framework import DjangoFilterBackend
from rest_framework.request import Request

from controlplane.errors import InvalidInputError

_COMMON: Final = ("cursor", "page_size", "format")


class StrictFilters(DjangoFilterBackend):  # type: ignore[misc]
    """django-filter's backend that refuses unknown parameters, so that a misspelt filter is an error."""

    def filter_queryset(self, request: Request, queryset: QuerySet[Any], view: Any) -> QuerySet[Any]:
        filterset_class = self.get_filterset_class(view, queryset)
        known = [*(filterset_class.base_filters if filterset_class else ()), *_COMMON]
        if unknown := sorted(set(request.query_params) - set(known)):
            name = unknown[0][:64]
            raise InvalidInputError(f"{name!r} is none of {', '.join(known)}", field=name)
        filtered: QuerySet[Any] = super().filter_queryset(request, queryset, view)
        return filtered
