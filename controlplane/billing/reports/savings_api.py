"""REST of a tenant's savings."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from controlplane.billing.reports.api import REGION, InstanceRateSerializer
from controlplane.billing.reports.days import days_asked
from controlplane.billing.reports.instance_prices import NANO
from controlplane.billing.reports.models import HOUR
from controlplane.billing.reports.savings import TIERS
from controlplane.billing.reports.tenant_savings import TENANT_FORMULA, tenant_saving
from controlplane.platform.http.strict import validated
from controlplane.tenants.permissions import request_tenant, tenant_may
from controlplane.tenants.roles import Permission

DEFAULT_DAYS = 30
TENANT_TIER = "stored"
"""A dedicated endpoint would run for as long as its adapter can be called."""


class TenantSavingQuery(serializers.Serializer[Any]):
    start = serializers.DateField(required=False, help_text="First UTC day; defaults to the last 30 days.")
    end = serializers.DateField(required=False, help_text="Last UTC day, included.")
    region = serializers.CharField(
        max_length=30, default=REGION, help_text="Region whose instance prices apply."
    )
    dedicated_type = serializers.CharField(
        max_length=40,
        required=False,
        default="",
        help_text="Instance type of a dedicated deployment. Defaults to the cheapest one with a price.",
    )
    tier = serializers.ChoiceField(choices=TIERS, default=TENANT_TIER, help_text="Adapters to include.")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        start, end = days_asked(attrs, default=DEFAULT_DAYS)
        return {**attrs, "start": start, "end": end}


class VersionSavingSerializer(serializers.Serializer[Any]):
    adapter = serializers.CharField()
    version = serializers.CharField(help_text="Engine name.")
    hours = serializers.CharField()
    dedicated = serializers.CharField(help_text="Decimal, in `currency`.")


class TenantSavingSerializer(serializers.Serializer[Any]):
    formula = serializers.CharField()
    start = serializers.DateField()
    end = serializers.DateField()
    adapter_hours = serializers.CharField()
    dedicated = serializers.CharField(help_text="Decimal, in `currency`.")
    paid = serializers.CharField(
        help_text="Cost of requests and hosting on these days, before credits and tax."
    )
    currency = serializers.CharField()
    percent = serializers.CharField(
        allow_null=True, help_text="Savings; negative if sharing costs more, null if unknown."
    )
    unpriced = serializers.BooleanField(
        help_text="True if some requests or hosting have no price, so that `paid` is too low."
    )
    dedicated_price = InstanceRateSerializer(help_text="Price with its day, region and source.")
    versions = VersionSavingSerializer(many=True, help_text="The 100 versions with the most hours.")


class TenantSavingsApi(APIView):
    permission_classes = (tenant_may(Permission.BILLING_READ),)

    @extend_schema(parameters=[TenantSavingQuery], responses=TenantSavingSerializer)
    def get(self, request: Request) -> Response:
        """Compares the tenant's cost with a dedicated endpoint for each of its adapters."""
        values = validated(TenantSavingQuery, request.query_params)
        saving = tenant_saving(tenant=request_tenant(request), **values)
        return Response(
            {
                "formula": TENANT_FORMULA,
                "start": values["start"],
                "end": values["end"],
                "adapter_hours": _hours(saving.adapter_seconds),
                "dedicated": _amount(saving.dedicated_nano),
                "paid": _amount(saving.paid_nano),
                "currency": saving.currency,
                "percent": saving.percent,
                "unpriced": saving.unpriced,
                "dedicated_price": InstanceRateSerializer(saving.price).data,
                "versions": [
                    {
                        "adapter": row.adapter,
                        "version": row.engine_name,
                        "hours": _hours(row.seconds),
                        "dedicated": _amount(row.dedicated_nano),
                    }
                    for row in saving.versions
                ],
            }
        )


def _hours(seconds: int) -> str:
    return f"{Decimal(seconds) / HOUR:.6f}"


def _amount(nano: int) -> str:
    return f"{Decimal(nano) * NANO:.9f}"
