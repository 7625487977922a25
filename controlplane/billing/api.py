"""REST of usage reports: a tenant's own, and all tenants' for staff."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from controlplane.billing.renderers import UsageCsvRenderer, UsageJsonRenderer
from controlplane.billing.usage_report import GROUPS, UsageReport, UsageRow, usage_report
from controlplane.platform.http.strict import validated
from controlplane.tenants.models import Tenant
from controlplane.tenants.permissions import Staff, request_access, request_tenant, tenant_may
from controlplane.tenants.roles import Permission


class UsageRowSerializer(serializers.Serializer[UsageRow]):
    group = serializers.DictField(child=serializers.CharField(), help_text="Value of each `group_by` name.")
    requests = serializers.IntegerField()
    prompt_tokens = serializers.IntegerField(help_text="Includes cached tokens.")
    cached_tokens = serializers.IntegerField()
    completion_tokens = serializers.IntegerField()
    reasoning_tokens = serializers.IntegerField(help_text="Part of the completion tokens.")
    images = serializers.IntegerField(help_text="Images in the prompts.")
    price = serializers.CharField(allow_null=True, help_text="Decimal; null if some tokens have no price.")
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


class _ReportApi(APIView):
    renderer_classes = (UsageJsonRenderer, UsageCsvRenderer)
    group_by: ClassVar[str] = "day"

    def _report(self, request: Request, tenant: Tenant | None, project: str | None = None) -> Response:
        values = validated(UsageQuery, request.query_params)
        names = values.get("group_by", self.group_by)
        groups = [name.strip() for name in names.split(",") if name.strip()]
        report = usage_report(
            tenant=tenant, project=project, start=values["start"], end=values["end"], group_by=groups
        )
        response = Response(report)
        if getattr(request, "accepted_renderer", None) and request.accepted_renderer.format == "csv":
            name = f"usage-{report.start}-{report.end}.csv"
            response["Content-Disposition"] = f'attachment; filename="{name}"'
        return response


class UsageApi(_ReportApi):
    permission_classes = (tenant_may(Permission.USAGE_READ),)

    @_USAGE_SCHEMA
    def get(self, request: Request) -> Response:
        """Tokens and price of the tenant; for a key with scope `usage` only, of its project alone.

        Every token that a gateway received from a backend is billed.
        """
        access = request_access(request)
        return self._report(request, request_tenant(request), access.project if access else None)


class FleetUsageApi(_ReportApi):
    permission_classes = (Staff,)
    group_by = "tenant,day"

    @_USAGE_SCHEMA
    def get(self, request: Request) -> Response:
        """Tokens and price of all tenants, by tenant and day by default."""
        return self._report(request, None)
