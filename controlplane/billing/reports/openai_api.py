"""REST of usage in the shape of OpenAI's: `/organization/usage/completions` and `/organization/costs`."""

from __future__ import annotations

from typing import Any, Final

from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from controlplane.billing.reports.openai_usage.pages import completions_page, costs_page
from controlplane.billing.reports.openai_usage.query import COMPLETIONS, COSTS, Kind, UsageQuery
from controlplane.tenants.permissions import request_access, request_tenant, tenant_may
from controlplane.tenants.roles import Permission


class _Grouped(serializers.Serializer[Any]):
    """The names that a result was grouped by; null where it was not."""

    project_id = serializers.CharField(allow_null=True)
    api_key_id = serializers.CharField(allow_null=True, help_text="The key's public id.")
    user_id = serializers.CharField(
        allow_null=True, help_text="Always null; usage is grouped by key and project."
    )


class CompletionsResultSerializer(_Grouped):
    object = serializers.CharField(help_text="`organization.usage.completions.result`.")
    input_tokens = serializers.IntegerField(help_text="Includes cached tokens.")
    input_cached_tokens = serializers.IntegerField()
    input_uncached_tokens = serializers.IntegerField()
    output_tokens = serializers.IntegerField()
    input_audio_tokens = serializers.IntegerField()
    output_audio_tokens = serializers.IntegerField()
    num_model_requests = serializers.IntegerField(help_text="Attempts, including failed ones.")
    model = serializers.CharField(allow_null=True, help_text="Adapter, or the base model if none.")
    batch = serializers.BooleanField(allow_null=True)
    service_tier = serializers.CharField(allow_null=True)


class AmountSerializer(serializers.Serializer[Any]):
    value = serializers.FloatField()
    currency = serializers.CharField(help_text="ISO 4217 in lower case.")


class CostsResultSerializer(_Grouped):
    object = serializers.CharField(help_text="`organization.costs.result`.")
    amount = AmountSerializer(allow_null=True, help_text="Null if some usage has no price.")
    line_item = serializers.CharField(allow_null=True, help_text="`<model>, <item>`.")
    quantity = serializers.FloatField(allow_null=True)
    quantity_unit = serializers.CharField(allow_null=True)
    organization_id = serializers.CharField(allow_null=True)


class _Bucket(serializers.Serializer[Any]):
    object = serializers.CharField(help_text="`bucket`.")
    start_time = serializers.IntegerField(help_text="Unix seconds, UTC.")
    end_time = serializers.IntegerField()


class CompletionsBucketSerializer(_Bucket):
    results = CompletionsResultSerializer(many=True)


class CostsBucketSerializer(_Bucket):
    results = CostsResultSerializer(many=True)


class _Page(serializers.Serializer[Any]):
    object = serializers.CharField(help_text="`page`.")
    has_more = serializers.BooleanField()
    next_page = serializers.CharField(allow_null=True)


class CompletionsPageSerializer(_Page):
    data = CompletionsBucketSerializer(many=True)  # type: ignore[assignment]  # a field named as OpenAI's


class CostsPageSerializer(_Page):
    data = CostsBucketSerializer(many=True)  # type: ignore[assignment]


_FILTER_TEXTS: Final = {
    "line_items": "Only these line items, such as `pirate, output tokens`. Repeat the parameter (or "
    "`name[]`) for several, since each contains a comma."
}
"""Descriptions of filters that are no comma lists."""


def _parameters(kind: Kind) -> list[OpenApiParameter]:
    widths = " or ".join(
        f"`{width}` (limit {usual}, at most {most})" for width, (usual, most) in kind.limits.items()
    )
    texts = OpenApiTypes.STR
    listed = "Comma-separated, or repeated, also as `name[]`."
    return [
        OpenApiParameter(
            "start_time", int, required=True, description="Unix seconds, within the first bucket."
        ),
        OpenApiParameter("end_time", int, description="Unix seconds, excluded. Defaults to now."),
        OpenApiParameter("bucket_width", texts, description=f"{widths}. Buckets are of UTC."),
        OpenApiParameter("group_by", texts, description=f"Some of {', '.join(kind.groups)}. {listed}"),
        *(
            OpenApiParameter(name, texts, description=_FILTER_TEXTS.get(name, f"Only these. {listed}"))
            for name in kind.filters
        ),
        OpenApiParameter("limit", int, description="Buckets per page."),
        OpenApiParameter("page", texts, description="`next_page` of the previous page."),
    ]


class _UsageApi(APIView):
    kind: Kind

    def _query(self, request: Request) -> UsageQuery:
        parameters = {name: request.query_params.getlist(name) for name in request.query_params}
        return UsageQuery.parse(parameters, self.kind, now=timezone.now())

    def _project(self, request: Request) -> str | None:
        access = request_access(request)
        return access.project if access else None


_READ: Final = tenant_may(Permission.USAGE_READ)


class CompletionsUsageApi(_UsageApi):
    permission_classes = (_READ,)
    kind = COMPLETIONS

    @extend_schema(parameters=_parameters(COMPLETIONS), responses=CompletionsPageSerializer)
    def get(self, request: Request) -> Response:
        """The tenant's tokens and requests by hour or day, as OpenAI's `/organization/usage/completions`.

        A key with scope `usage` only reads its own project's usage.
        """
        query = self._query(request)
        page = completions_page(tenant=request_tenant(request), project=self._project(request), query=query)
        return Response(page)


class CostsApi(_UsageApi):
    permission_classes = (_READ,)
    kind = COSTS

    @extend_schema(parameters=_parameters(COSTS), responses=CostsPageSerializer)
    def get(self, request: Request) -> Response:
        """The tenant's costs of tokens by day, at that day's prices, as OpenAI's `/organization/costs`."""
        query = self._query(request)
        return Response(
            costs_page(tenant=request_tenant(request), project=self._project(request), query=query)
        )
