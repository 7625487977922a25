"""REST of the request log."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any, Final

from django.conf import settings
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.utils.urls import replace_query_param
from rest_framework.views import APIView

from contracts.usage_event import STATUSES
from controlplane.billing.price_list import PriceList
from controlplane.billing.quantities import adapter_name
from controlplane.billing.reports.days import days_asked
from controlplane.billing.request_costs import request_nano
from controlplane.metering.event_rows import COLUMNS
from controlplane.metering.models import UsageEventRow
from controlplane.metering.requests import MOST_DAYS, SEARCHED, RequestFilter, request_attempts, request_page
from controlplane.platform.http.pagination import LARGEST_PAGE
from controlplane.platform.http.strict import validated
from controlplane.tenants.permissions import request_access, request_tenant, tenant_may
from controlplane.tenants.roles import Permission
from controlplane.tenants.selectors import api_key_names

_NAMES: Final = ("project", "key", "model", "adapter", "alias", "error_code")
_DEFAULT_DAYS: Final = 7


class RequestsQuery(serializers.Serializer[Any]):
    start = serializers.DateField(
        required=False, help_text=f"First UTC day; the last {_DEFAULT_DAYS} days by default."
    )
    end = serializers.DateField(
        required=False, help_text=f"Last UTC day, included; {MOST_DAYS} days at most."
    )
    project = serializers.CharField(required=False, max_length=200, help_text="Slug.")
    key = serializers.CharField(required=False, max_length=200, help_text="A key's public id.")
    model = serializers.CharField(
        required=False, max_length=200, help_text="Model name as requested by the client."
    )
    adapter = serializers.CharField(
        required=False, max_length=200, help_text="An adapter's name, or `name@v2` for one version."
    )
    alias = serializers.CharField(required=False, max_length=200)
    status = serializers.ChoiceField(required=False, choices=STATUSES)
    error_code = serializers.CharField(required=False, max_length=200)
    cursor = serializers.CharField(
        required=False, max_length=40, help_text="Start of the page; take it from `next`."
    )
    page_size = serializers.IntegerField(required=False, min_value=1, max_value=LARGEST_PAGE, default=50)


class AttemptSerializer(serializers.Serializer[Any]):
    request_id = serializers.CharField(
        help_text="Value of the response's `x-request-id` header. For a call that names an adapter for each "
        "prompt, each prompt's request has this value with `-0`, `-1` and so on."
    )
    attempt = serializers.IntegerField(help_text="Starts at 0; each retry or fallback adds 1.")
    started_at = serializers.DateTimeField()
    model = serializers.CharField(help_text="Model name as requested by the client.")
    alias = serializers.CharField(help_text="'' for none.")
    arm = serializers.CharField(help_text="Of a split alias.")
    adapter = serializers.CharField(help_text="Adapter name; '' for the base model.")
    version = serializers.CharField(help_text="Engine name.")
    base_model = serializers.CharField()
    operation = serializers.CharField(help_text="Endpoint's name, such as chat; '' from older gateways.")
    backend = serializers.CharField()
    project = serializers.CharField()
    key_id = serializers.CharField()
    key_name = serializers.CharField(allow_null=True, help_text="Null if the key was deleted.")
    status = serializers.ChoiceField(choices=STATUSES)
    error_code = serializers.CharField(help_text="Empty unless the request failed.")
    prompt_tokens = serializers.IntegerField(help_text="Includes cached tokens.")
    cached_tokens = serializers.IntegerField()
    completion_tokens = serializers.IntegerField(help_text="Includes reasoning tokens.")
    reasoning_tokens = serializers.IntegerField()
    images = serializers.IntegerField(help_text="Images in the prompt.")
    estimated = serializers.BooleanField(help_text="The backend reported no usage.")
    ttft_ms = serializers.FloatField(allow_null=True)
    duration_ms = serializers.FloatField()
    price = serializers.CharField(allow_null=True, help_text="Decimal; null if some tokens have no price.")


_COPIED: Final = tuple(
    name
    for name in AttemptSerializer().get_fields()
    if name in COLUMNS and name not in ("started_at", "adapter")
)
"""Fields that are columns of the row, as they are."""


class RequestsSerializer(serializers.Serializer[Any]):
    next = serializers.CharField(allow_null=True)
    kept_days = serializers.IntegerField(help_text="Days that requests are kept.")
    currency = serializers.CharField()
    results = AttemptSerializer(many=True)


class RequestSerializer(serializers.Serializer[Any]):
    request_id = serializers.CharField()
    kept_until = serializers.DateField(help_text="UTC day after which the request may be deleted.")
    currency = serializers.CharField()
    attempts = AttemptSerializer(many=True)


class RequestsApi(APIView):
    permission_classes = (tenant_may(Permission.USAGE_READ),)

    @extend_schema(
        operation_id="requests_list",
        parameters=[RequestsQuery],
        responses={200: RequestsSerializer},
        description=(
            "Single requests, newest first: what was asked for and what it took, never what was said."
            f" A line is an attempt. A filter is held against {SEARCHED} attempts a page: follow `next`"
            " until it is null."
        ),
    )
    def get(self, request: Request) -> Response:
        """Single requests, newest first."""
        values = validated(RequestsQuery, request.query_params)
        values, access, tenant = values, request_access(request), request_tenant(request)
        request_filter = _request_filter(values, access.project if access else None)
        page = request_page(
            tenant=tenant.pk, wanted=request_filter, before=values.get("cursor", ""), size=values["page_size"]
        )
        prices = PriceList.load()
        names = api_key_names(tenant=tenant.pk, public_ids=[row.key_id for row in page.rows])
        here = request.build_absolute_uri()
        return Response(
            {
                "next": replace_query_param(here, "cursor", page.older) if page.older else None,
                "kept_days": settings.GRAFTWORK.usage_keep_days,
                "currency": prices.currency(),
                "results": [_attempt_data(row, prices, names) for row in page.rows],
            }
        )


class RequestApi(APIView):
    permission_classes = (tenant_may(Permission.USAGE_READ),)

    @extend_schema(responses=RequestSerializer)
    def get(self, request: Request, request_id: str) -> Response:
        """One request with its attempts, by the `x-request-id` that its answer carried."""
        access, tenant = request_access(request), request_tenant(request)
        project = access.project if access else None
        rows = request_attempts(tenant=tenant.pk, request_id=request_id, project=project)
        prices = PriceList.load()
        names = api_key_names(tenant=tenant.pk, public_ids=[row.key_id for row in rows])
        return Response(
            {
                "request_id": request_id,
                "kept_until": rows[0].day + dt.timedelta(days=settings.GRAFTWORK.usage_keep_days),
                "currency": prices.currency(),
                "attempts": [_attempt_data(row, prices, names) for row in rows],
            }
        )


def _request_filter(values: Mapping[str, Any], project: str | None) -> RequestFilter:
    start, end = days_asked(values, default=_DEFAULT_DAYS)
    named = {name: values[name] for name in (*_NAMES, "status") if values.get(name)}
    # A key of one project never reads another's usage, whatever the query asks for.
    if project is not None:
        named["project"] = project
    return RequestFilter(start, end, **named)


def _attempt_data(row: UsageEventRow, prices: PriceList, names: Mapping[str, str]) -> dict[str, Any]:
    nano = request_nano(row, prices)
    return {
        **{name: getattr(row, name) for name in _COPIED},
        "started_at": dt.datetime.fromtimestamp(row.started_at / 1000, dt.UTC),
        "model": row.requested_model,
        "adapter": adapter_name(row.adapter),
        "version": row.adapter,
        "key_name": names.get(row.key_id),
        "price": None if nano is None else f"{nano // 10**9}.{nano % 10**9:09}",
    }
