"""Filters of the lists of webhook endpoints and deliveries."""

from __future__ import annotations

import django_filters as filters

from controlplane.webhooks.models import WebhookDelivery


class EndpointFilter(filters.FilterSet):  # type: ignore[misc]
    enabled = filters.BooleanFilter("disabled_at", "isnull")


class DeliveryFilter(filters.FilterSet):  # type: ignore[misc]
    status = filters.ChoiceFilter(choices=WebhookDelivery.Status.choices)
    type = filters.CharFilter("event__type", help_text="Type of the event.")
