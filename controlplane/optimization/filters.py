"""Filters of the lists of jobs and comparisons."""

from __future__ import annotations

import django_filters as filters

from controlplane.optimization.models import Machine, Status


class WorkFilter(filters.FilterSet):  # type: ignore[misc]
    base_model = filters.CharFilter("base_model__name")
    status = filters.ChoiceFilter(choices=Status.choices)
    machine = filters.ChoiceFilter(choices=Machine.choices)
