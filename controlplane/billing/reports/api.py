"""REST of the fleet's bill (staff): instance prices, attribution, savings and blended token prices."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from django.db.models import QuerySet
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import generics, serializers, status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from controlplane.billing.reports.aws_prices import Payment, instance_prices_read
from controlplane.billing.reports.fleet_bill import BY, fleet_attribution
from controlplane.billing.reports.instance_prices import NANO, instance_price_list, instance_price_set
from controlplane.billing.reports.instance_rates import InstanceRate, instance_saving
from controlplane.billing.reports.models import InstancePrice, Plan
from controlplane.billing.reports.savings import (
    FORMULA,
    TIERS,
    Saving,
    blended_prices,
    saving_estimate,
    saving_measured,
)
from controlplane.deployments.selectors import target_get
from controlplane.platform.http.strict import StrictSerializer, validated
from controlplane.platform.idempotency.api import idempotent
from controlplane.tenants.permissions import Staff

REGION = "us-east-1"


class InstancePriceSerializer(StrictSerializer, serializers.ModelSerializer[InstancePrice]):
    class Meta:
        model = InstancePrice
        fields = (
            "id",
            "instance_type",
            "region",
            "plan",
            "effective_from",
            "currency",
            "hour_nano",
            "reference_type",
            "percent_below",
            "source",
        )
        validators = ()


class InstanceRateSerializer(serializers.Serializer[InstanceRate]):
    """The row of the price table that a figure was computed with."""

    id = serializers.IntegerField()
    instance_type = serializers.CharField()
    region = serializers.CharField()
    plan = serializers.CharField()
    effective_from = serializers.DateField(help_text="UTC day.")
    currency = serializers.CharField()
    hour_nano = serializers.IntegerField(help_text="Nano-units per hour.")
    source = serializers.CharField(help_text="Where the rate is published.")  # type: ignore[assignment]  # a field of ours, not DRF's attribute


class InstancePricesApi(generics.ListAPIView[InstancePrice]):
    permission_classes = (Staff,)
    serializer_class = InstancePriceSerializer

    def get_queryset(self) -> QuerySet[InstancePrice]:
        return instance_price_list()

    @idempotent()
    @extend_schema(request=InstancePriceSerializer, responses={201: InstancePriceSerializer})
    def post(self, request: Request) -> Response:
        """Adds the hourly price of an instance type in a region from a UTC day on, in nano-units."""
        price = instance_price_set(**validated(InstancePriceSerializer, request.data))
        return Response(InstancePriceSerializer(price).data, status.HTTP_201_CREATED)


class AwsPricesInput(StrictSerializer, serializers.Serializer[Any]):
    target = serializers.CharField(help_text="SageMaker target whose credentials read the prices.")
    region = serializers.CharField(
        max_length=30, default="", allow_blank=True, help_text="By default the target's."
    )
    payment = serializers.ChoiceField(
        choices=Payment.choices, default=Payment.NO_UPFRONT, help_text="When the Savings Plan is paid for."
    )


class AwsPricesApi(APIView):
    permission_classes = (Staff,)

    # AWS's answers take seconds, in which no transaction may be open; a repeat adds nothing.
    @idempotent(atomic=False)
    @extend_schema(request=AwsPricesInput, responses={201: InstancePriceSerializer(many=True)})
    def post(self, request: Request) -> Response:
        """Reads today's on-demand prices and 1-year Savings Plan rates from AWS; returns the added prices."""
        values = validated(AwsPricesInput, request.data)
        read = instance_prices_read(**values | {"target": target_get(name=values["target"])})
        return Response(InstancePriceSerializer(read.added, many=True).data, status.HTTP_201_CREATED)


class _Range(serializers.Serializer[Any]):
    start = serializers.DateField(help_text="First UTC day.")
    end = serializers.DateField(help_text="Last UTC day, included.")
    region = serializers.CharField(
        max_length=30, default=REGION, help_text="Region whose instance prices apply."
    )


class AttributionQuery(_Range):
    by = serializers.ChoiceField(choices=BY, default=BY[0])


class PartSerializer(serializers.Serializer[Any]):
    tenant = serializers.CharField(
        allow_blank=True, help_text="Tenant id; '' for the part that belongs to no tenant."
    )
    amount = serializers.CharField(help_text="Decimal.")


class AttributionSerializer(serializers.Serializer[Any]):
    by = serializers.CharField()
    currency = serializers.CharField()
    total = serializers.CharField(help_text="Total cost of the fleet; equals the sum of the parts.")
    parts = PartSerializer(many=True)
    unpriced = serializers.ListField(child=serializers.CharField(), help_text="Excluded instance types.")


class AttributionApi(APIView):
    permission_classes = (Staff,)

    @extend_schema(parameters=[AttributionQuery], responses=AttributionSerializer)
    def get(self, request: Request) -> Response:
        """The bill of the fleet's machines, divided among tenants by tokens, hosting time or memory."""
        values = validated(AttributionQuery, request.query_params)
        found = fleet_attribution(**values)
        return Response(
            {
                "by": values["by"],
                "currency": found.bill.currency or "USD",
                "total": _amount(found.bill.total),
                "parts": [
                    {"tenant": tenant, "amount": _amount(part)}
                    for tenant, part in sorted(found.parts.items())
                ],
                "unpriced": list(found.bill.unpriced),
            }
        )


class SavingsQuery(_Range):
    dedicated_type = serializers.CharField(
        max_length=40, help_text="Instance type of a dedicated deployment."
    )
    tier = serializers.ChoiceField(choices=TIERS, default=TIERS[0], help_text="Adapters to include.")


class EstimateQuery(serializers.Serializer[Any]):
    adapters = serializers.IntegerField(min_value=1, max_value=1_000_000)
    dedicated_type = serializers.CharField(max_length=40)
    shared_type = serializers.CharField(max_length=40)
    shared_instances = serializers.IntegerField(min_value=0, max_value=1_000_000, default=1)
    region = serializers.CharField(max_length=30, default=REGION)
    day = serializers.DateField(required=False, help_text="Day whose prices apply. Defaults to today.")
    plan = serializers.ChoiceField(choices=Plan.choices, default=Plan.ON_DEMAND)


class InstanceSavingQuery(serializers.Serializer[Any]):
    instance_type = serializers.CharField(max_length=40)
    compared_with = serializers.CharField(max_length=40, help_text="The other instance type.")
    region = serializers.CharField(max_length=30, default=REGION)
    plan = serializers.ChoiceField(choices=Plan.choices, default=Plan.ON_DEMAND)
    day = serializers.DateField(required=False, help_text="Day whose prices apply. Defaults to today.")


class InstanceSavingSerializer(serializers.Serializer[Any]):
    percent = serializers.CharField(help_text="1 - rate / reference, in percent.")
    source = serializers.CharField()  # type: ignore[assignment]  # a field of ours, not DRF's attribute
    effective_from = serializers.DateField(help_text="UTC day.")
    rate = InstanceRateSerializer(allow_null=True, help_text="Null if only the difference is published.")
    reference = InstanceRateSerializer(allow_null=True)


class InstanceSavingApi(generics.GenericAPIView[Any]):
    permission_classes = (Staff,)
    serializer_class = InstanceSavingSerializer
    pagination_class = None

    @extend_schema(parameters=[InstanceSavingQuery], responses={200: InstanceSavingSerializer})
    def get(self, request: Request) -> Response:
        """Compares the rates of two instance types by a plan."""
        values = validated(InstanceSavingQuery, request.query_params)
        values.setdefault("day", timezone.now().date())
        return Response(InstanceSavingSerializer(instance_saving(**values)).data)


class SavingSerializer(serializers.Serializer[Any]):
    formula = serializers.CharField()
    adapter_hours = serializers.CharField()
    dedicated = serializers.CharField(help_text="Decimal, in `currency`.")
    shared = serializers.CharField()
    currency = serializers.CharField()
    percent = serializers.CharField(
        allow_null=True, help_text="Savings; negative if sharing costs more, null if unknown."
    )
    dedicated_price = InstanceRateSerializer(help_text="Price with its day, region and source.")
    unpriced = serializers.ListField(child=serializers.CharField(), help_text="Excluded instance types.")


class SavingsApi(APIView):
    permission_classes = (Staff,)

    @extend_schema(parameters=[SavingsQuery], responses=SavingSerializer)
    def get(self, request: Request) -> Response:
        """Compares the cost of the fleet's machines with a dedicated endpoint for each adapter."""
        return _saving(saving_measured(**validated(SavingsQuery, request.query_params)))


class SavingsEstimateApi(APIView):
    permission_classes = (Staff,)

    @extend_schema(parameters=[EstimateQuery], responses=SavingSerializer)
    def get(self, request: Request) -> Response:
        """Estimates this saving for one hour with the given numbers of adapters and machines."""
        values = validated(EstimateQuery, request.query_params)
        values.setdefault("day", timezone.now().date())
        return _saving(saving_estimate(**values))


class BlendedQuery(serializers.Serializer[Any]):
    instance_type = serializers.CharField(max_length=40)
    region = serializers.CharField(max_length=30, default=REGION)
    itl_p50_ms = serializers.DecimalField(max_digits=12, decimal_places=4)
    concurrency = serializers.IntegerField(min_value=1, max_value=1_000_000)
    plan = serializers.ChoiceField(
        choices=Plan.choices, default=Plan.ON_DEMAND, help_text="Whose rate in the price table applies."
    )
    discount = serializers.DecimalField(
        max_digits=5,
        decimal_places=4,
        default=Decimal(0),
        help_text="Fraction below the on-demand price; excludes other plans, whose rates include it.",
    )
    input_nano = serializers.IntegerField(min_value=0, max_value=10**15, required=False)
    output_nano = serializers.IntegerField(min_value=0, max_value=10**15, required=False)


class BlendedSerializer(serializers.Serializer[Any]):
    by_throughput = serializers.CharField(
        help_text="Per million tokens: (1 - discount) x instance price / (throughput x 3600 / 1e6) / 4."
    )
    tokens_per_second = serializers.CharField(help_text="Throughput: concurrency / itl_p50.")
    by_list_price = serializers.CharField(
        allow_null=True, help_text="Per million tokens: (3 x input + output) / 4; null without both prices."
    )
    discount = serializers.CharField(
        allow_null=True, help_text="Fraction below the on-demand price; null if that price is unknown."
    )
    instance_price = InstanceRateSerializer(help_text="Rate with its plan, day, region and source.")


class BlendedPriceApi(APIView):
    permission_classes = (Staff,)

    @extend_schema(parameters=[BlendedQuery], responses=BlendedSerializer)
    def get(self, request: Request) -> Response:
        """The price of a million tokens by both blended formulas; `*_nano` are per token."""
        found = blended_prices(day=timezone.now().date(), **validated(BlendedQuery, request.query_params))
        listed = found.by_list_price
        return Response(
            {
                "by_throughput": f"{found.by_throughput:.6f}",
                "tokens_per_second": f"{found.throughput:.3f}",
                "by_list_price": None if listed is None else f"{listed:.6f}",
                "discount": None if found.discount is None else f"{found.discount:f}",
                "instance_price": InstanceRateSerializer(found.price).data,
            }
        )


def _saving(saving: Saving) -> Response:
    return Response(
        {
            "formula": FORMULA,
            "adapter_hours": f"{Decimal(saving.adapter_seconds) / 3600:.6f}",
            "dedicated": _amount(saving.dedicated_nano),
            "shared": _amount(saving.shared_nano),
            "currency": saving.currency,
            "percent": saving.percent,
            "dedicated_price": InstanceRateSerializer(saving.price).data,
            "unpriced": list(saving.unpriced),
        }
    )


def _amount(nano: int) -> str:
    return f"{Decimal(nano) * NANO:.9f}"
