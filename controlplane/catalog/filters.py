"""Filters of the list of base models."""

from __future__ import annotations

import django_filters as filters


class BaseModelFilter(filters.FilterSet):  # type: ignore[misc]
    search = filters.CharFilter("name", "icontains", help_text="Part of the name.")
    architecture = filters.CharFilter("architecture")
