"""Filters of the list of alarms."""

from __future__ import annotations

import django_filters as filters

from controlplane.monitoring.models import Metric, State


class AlarmFilter(filters.FilterSet):  # type: ignore[misc]
    state = filters.ChoiceFilter(choices=State.choices)
    metric = filters.ChoiceFilter(choices=Metric.choices)
    adapter = filters.CharFilter("adapter__name", help_text="Name of the adapter.")
    enabled = filters.BooleanFilter()
