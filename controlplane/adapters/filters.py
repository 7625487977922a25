"""Filters of the lists of adapters, versions and aliases."""

from __future__ import annotations

import django_filters as filters
from django.db.models import Exists, OuterRef, QuerySet

from controlplane.adapters.models import Adapter, AdapterVersion
from controlplane.adapters.selectors import adapter_labelled, adapter_named
from controlplane.errors import InvalidInputError


class AdapterFilter(filters.FilterSet):  # type: ignore[misc]
    search = filters.CharFilter(method="by_name", help_text="Part of the name.")
    base_model = filters.CharFilter("base_model__name")
    status = filters.ChoiceFilter(
        choices=AdapterVersion.Status.choices,
        method="by_status",
        help_text="Only adapters with a version in this status.",
    )
    label = filters.CharFilter(
        method="by_labels", help_text="Label as `key=value`; repeat the parameter to require several labels."
    )
    deleted = filters.ChoiceFilter(
        choices=[("true", "true"), ("false", "false")],
        method="as_listed",
        help_text="true: list deleted adapters that can be restored, instead of live adapters.",
    )

    def by_name(self, adapters: QuerySet[Adapter], name: str, value: str) -> QuerySet[Adapter]:
        return adapter_named(adapters, value)

    def by_status(self, adapters: QuerySet[Adapter], name: str, value: str) -> QuerySet[Adapter]:
        return adapters.filter(Exists(AdapterVersion.objects.filter(adapter=OuterRef("pk"), status=value)))

    def by_labels(self, adapters: QuerySet[Adapter], name: str, value: str) -> QuerySet[Adapter]:
        labels: dict[str, str] = {}
        for text in self.data.getlist(name):
            key, equals, wanted = text.partition("=")
            if not equals:
                raise InvalidInputError("write a label as key=value", field="label")
            labels[key] = wanted
        return adapter_labelled(adapters, labels)

    def as_listed(self, adapters: QuerySet[Adapter], name: str, value: str) -> QuerySet[Adapter]:
        return adapters  # the view chose the list


class VersionFilter(filters.FilterSet):  # type: ignore[misc]
    status = filters.ChoiceFilter(choices=AdapterVersion.Status.choices)


class AliasFilter(filters.FilterSet):  # type: ignore[misc]
    search = filters.CharFilter("name", "icontains", help_text="Part of the name.")
    version = filters.NumberFilter("version__number", help_text="Only aliases that point at this version.")
