"""Filters of the lists of alarms and of adapters' metrics."""

from __future__ import annotations

import django_filters as filters
from django.db.models import QuerySet

from controlplane.adapters.models import Adapter
from controlplane.adapters.selectors import adapter_named
from controlplane.metering.adapter_metrics import RANGES
from controlplane.monitoring.models import Metric, State


class MetricsFilter(filters.FilterSet):  # type: ignore[misc]
    search = filters.CharFilter(method="by_name", help_text="Part of the adapter's name.")
    range = filters.ChoiceFilter(
        choices=[(name, name) for name in RANGES],
        method="as_read",
        help_text="Range: `hour`, `day` (default), `week` or `month`.",
    )

    def by_name(self, adapters: QuerySet[Adapter], name: str, value: str) -> QuerySet[Adapter]:
        return adapter_named(adapters, value)

    def as_read(self, adapters: QuerySet[Adapter], name: str, value: str) -> QuerySet[Adapter]:
        return adapters  # the view reads the range's metrics


class AlarmFilter(filters.FilterSet):  # type: ignore[misc]
    state = filters.ChoiceFilter(choices=State.choices)
    metric = filters.ChoiceFilter(choices=Metric.choices)
    adapter = filters.CharFilter("adapter__name", help_text="Name of the adapter.")
    enabled = filters.BooleanFilter()
