"""REST of usage (tenants) and price books (staff)."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from django.db.models import QuerySet
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import generics, serializers, status
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.billing.models import Price, PriceBook
from controlplane.billing.renderers import UsageCsvRenderer
from controlplane.billing.selectors import (
    GROUPS,
    UsageReport,
    UsageRow,
    price_book_get,
    price_book_list,
    usage_report,
)
from controlplane.billing.services import price_book_create, price_set
from controlplane.tenants.models import Tenant
from controlplane.tenants.permissions import Staff, TenantManager, request_tenant


class UsageRowSerializer(serializers.Serializer[UsageRow]):
    group = serializers.DictField(child=serializers.CharField(), help_text="Value of each `group_by` name.")
    requests = serializers.IntegerField()
    prompt_tokens = serializers.IntegerField(help_text="With the cached ones.")
    cached_tokens = serializers.IntegerField()
    completion_tokens = serializers.IntegerField()
    price = serializers.CharField(allow_null=True, help_text="Decimal; null when some token has no price.")
    unpriced = serializers.BooleanField()


class UsageReportSerializer(serializers.Serializer[UsageReport]):
    start = serializers.DateField()
    end = serializers.DateField()
    group_by = serializers.ListField(child=serializers.ChoiceField(choices=GROUPS))
    currency = serializers.CharField()
    rows = UsageRowSerializer(many=True)
    total = UsageRowSerializer()


class UsageQuery(serializers.Serializer[Any]):
    start = serializers.DateField()
    end = serializers.DateField()
    group_by = serializers.CharField(required=False)


_USAGE_SCHEMA: Final = extend_schema(
    parameters=[
        OpenApiParameter("start", OpenApiTypes.DATE, required=True, description="First UTC day."),
        OpenApiParameter("end", OpenApiTypes.DATE, required=True, description="Last UTC day, included."),
        OpenApiParameter("group_by", description=f"Comma list of {', '.join(GROUPS)}."),
        OpenApiParameter("format", enum=["json", "csv"], description="Or by `Accept: text/csv`."),
    ],
    responses={(200, "application/json"): UsageReportSerializer, (200, "text/csv"): OpenApiTypes.STR},
)


class _ReportApi(generics.GenericAPIView[Any]):
    serializer_class = UsageReportSerializer
    renderer_classes = (JSONRenderer, UsageCsvRenderer)
    pagination_class = None
    group_by: ClassVar[str] = "day"

    def _report(self, request: Request, tenant: Tenant | None) -> Response:
        query = UsageQuery(data=request.query_params)
        query.is_valid(raise_exception=True)
        values = query.validated_data
        wanted = values.get("group_by", self.group_by)
        groups = [name.strip() for name in wanted.split(",") if name.strip()]
        report = usage_report(tenant=tenant, start=values["start"], end=values["end"], group_by=groups)
        response = Response(UsageReportSerializer(report).data)
        if getattr(request, "accepted_renderer", None) and request.accepted_renderer.format == "csv":
            name = f"usage-{report.start}-{report.end}.csv"
            response["Content-Disposition"] = f'attachment; filename="{name}"'
        return response


class UsageApi(_ReportApi):
    permission_classes = (TenantManager,)

    @_USAGE_SCHEMA
    def get(self, request: Request) -> Response:
        """Tokens and price of the tenant. Every token that a gateway received from a backend is billed."""
        return self._report(request, request_tenant(request))


class FleetUsageApi(_ReportApi):
    permission_classes = (Staff,)
    group_by = "tenant,day"

    @_USAGE_SCHEMA
    def get(self, request: Request) -> Response:
        """Tokens and price of all tenants, by tenant and day unless `group_by` says otherwise."""
        return self._report(request, None)


class PriceSerializer(serializers.ModelSerializer[Price]):
    class Meta:
        model = Price
        fields = (
            "base_model", "adapter", "effective_from", "input_nano", "cached_input_nano", "output_nano",
        )  # fmt: skip


class PriceBookSerializer(serializers.ModelSerializer[PriceBook]):
    prices = PriceSerializer(many=True, read_only=True)

    class Meta:
        model = PriceBook
        fields = ("name", "currency", "is_default", "prices")
        extra_kwargs: ClassVar[dict[str, Any]] = {"name": {"validators": []}}


class PriceBooksApi(generics.ListAPIView[PriceBook]):
    permission_classes = (Staff,)
    serializer_class = PriceBookSerializer

    def get_queryset(self) -> QuerySet[PriceBook]:
        return price_book_list()

    @extend_schema(request=PriceBookSerializer, responses={201: PriceBookSerializer})
    def post(self, request: Request) -> Response:
        data = PriceBookSerializer(data=request.data)
        data.is_valid(raise_exception=True)
        book = price_book_create(**data.validated_data)
        return Response(PriceBookSerializer(book).data, status.HTTP_201_CREATED)


class PriceBookApi(generics.GenericAPIView[PriceBook]):
    permission_classes = (Staff,)
    serializer_class = PriceBookSerializer

    def get(self, request: Request, name: str) -> Response:
        return Response(PriceBookSerializer(price_book_get(name=name)).data)


class PricesApi(generics.GenericAPIView[Price]):
    permission_classes = (Staff,)
    serializer_class = PriceSerializer

    @extend_schema(request=PriceSerializer, responses={201: PriceSerializer})
    def post(self, request: Request, name: str) -> Response:
        """Adds a price from a UTC day on. Amounts are nano-units (1e-9) of the currency per token."""
        book = price_book_get(name=name)
        data = PriceSerializer(data=request.data)
        data.is_valid(raise_exception=True)
        price = price_set(book=book, **data.validated_data)
        return Response(PriceSerializer(price).data, status.HTTP_201_CREATED)
