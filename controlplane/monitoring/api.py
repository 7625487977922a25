"""REST of alarms and of adapters' metrics."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from django.db.models import QuerySet
from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import generics, status
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from controlplane.adapters.models import Adapter
from controlplane.adapters.selectors import adapter_get, adapter_list
from controlplane.metering.adapter_metrics import RANGES, adapter_metrics, metrics_by_adapter, range_named
from controlplane.monitoring.filters import AlarmFilter, MetricsFilter
from controlplane.monitoring.models import Alarm, AlarmChange
from controlplane.monitoring.selectors import alarm_change_list, alarm_get, alarm_list
from controlplane.monitoring.serializers import (
    AdapterMetricsSerializer,
    AlarmChangeSerializer,
    AlarmChangesInput,
    AlarmInput,
    AlarmSerializer,
    MetricsSerializer,
    NamedMetricsSerializer,
    adapter_metrics_shown,
)
from controlplane.monitoring.services import alarm_create, alarm_delete, alarm_update
from controlplane.platform.http.object_api import RetrieveApi, conditional
from controlplane.platform.http.strict import validated
from controlplane.platform.idempotency.api import idempotent
from controlplane.tenants.models import Tenant
from controlplane.tenants.permissions import Staff, request_tenant, request_user, tenant_may
from controlplane.tenants.roles import Permission
from controlplane.tenants.selectors import tenant_get

_Permissions = tuple[type[BasePermission], ...]
_READ: Final = tenant_may(Permission.ADAPTERS_READ)
_MAY: Final = tenant_may(Permission.ADAPTERS_READ, Permission.ADAPTERS_WRITE)
_RANGE: Final = OpenApiParameter(
    "range",
    str,
    enum=list(RANGES),
    description="`hour` by minute, `day` by hour, `week` by six hours or `month` by day (UTC). Default: day.",
)


class _OfTenant(APIView):
    """The tenant of a route, by the caller or (staff) by the path."""

    def tenant(self) -> Tenant:
        return tenant_get(slug=self.kwargs["slug"]) if "slug" in self.kwargs else request_tenant(self.request)


class AdapterMetricsApi(_OfTenant):
    permission_classes: _Permissions = (_READ,)

    @extend_schema(parameters=[_RANGE], responses=AdapterMetricsSerializer)
    def get(self, request: Request, name: str, slug: str = "") -> Response:
        """Returns an adapter's requests, errors, tokens and latency percentiles, over time and by copy.

        `hour` counts a request in the minute in which it ended; the other ranges in the hour of its start.
        """
        tenant = self.tenant()
        adapter = adapter_get(tenant=tenant, name=name)
        span = range_named(request.query_params.get("range") or "day")
        found = adapter_metrics(tenant=tenant.pk, adapter=adapter.name, span=span, now=timezone.now())
        return Response(adapter_metrics_shown(adapter.name, found))


class TenantAdapterMetricsApi(AdapterMetricsApi):
    permission_classes = (Staff,)


class AdaptersMetricsApi(_OfTenant, generics.ListAPIView[Adapter]):
    """Metrics of the tenant's adapters, by name."""

    permission_classes: _Permissions = (_READ,)
    serializer_class = NamedMetricsSerializer  # type: ignore[assignment]  # shows metrics of the rows
    filterset_class = MetricsFilter
    queryset = Adapter.objects.none()  # tells the schema the model

    def get_queryset(self) -> QuerySet[Adapter]:
        return adapter_list(tenant=self.tenant())

    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Returns each adapter's requests, errors, tokens and latency percentiles in the range."""
        page = self.paginate_queryset(self.filter_queryset(self.get_queryset())) or []
        # The filter accepts known names only.
        span = RANGES[request.query_params.get("range") or "day"]
        names = [adapter.name for adapter in page]
        found = metrics_by_adapter(tenant=self.tenant().pk, adapters=names, span=span, now=timezone.now())
        rows = [{**MetricsSerializer(found[name]).data, "adapter": name} for name in names]
        return self.get_paginated_response(rows)


class TenantAdaptersMetricsApi(AdaptersMetricsApi):
    permission_classes = (Staff,)


class _OfOwner(APIView):
    """The owner of a route's alarms: the caller's tenant, or None for the operator."""

    is_operator: ClassVar[bool] = False

    def owner(self) -> Tenant | None:
        return None if self.is_operator else request_tenant(self.request)

    def alarm(self) -> Alarm:
        name = "operator_alarm_id" if self.is_operator else "alarm_id"
        return alarm_get(tenant=self.owner(), alarm_id=self.kwargs[name])


class AlarmsApi(_OfOwner, generics.ListAPIView[Alarm]):
    """Alarms by name."""

    permission_classes: _Permissions = (_MAY,)
    serializer_class = AlarmSerializer
    filterset_class = AlarmFilter
    queryset = Alarm.objects.none()  # tells the schema the model

    def get_queryset(self) -> QuerySet[Alarm]:
        return alarm_list(tenant=self.owner())

    @idempotent()
    @extend_schema(request=AlarmInput, responses={201: AlarmSerializer})
    def post(self, request: Request) -> Response:
        """Creates an alarm. Its state is INSUFFICIENT_DATA until the first evaluation, within a minute."""
        values = validated(AlarmInput, request.data)
        alarm = alarm_create(tenant=self.owner(), created_by=request_user(request), **values)
        return Response(AlarmSerializer(alarm).data, status.HTTP_201_CREATED)


class FleetAlarmsApi(AlarmsApi):
    """The operator's alarms by name."""

    permission_classes = (Staff,)
    is_operator = True


class AlarmApi(_OfOwner, RetrieveApi[Alarm]):
    permission_classes: _Permissions = (_MAY,)
    serializer_class = AlarmSerializer
    etag_ignores = frozenset({"state", "state_reason", "state_at", "evaluated_to"})

    def get_object(self) -> Alarm:
        return self.alarm()

    @conditional()
    @extend_schema(request=AlarmChangesInput)
    def patch(self, request: Request, **kwargs: Any) -> Response:
        """Changes the given fields. The state is evaluated again within a minute."""
        serializer = AlarmChangesInput(data=request.data)
        serializer.is_valid(raise_exception=True)
        alarm = alarm_update(alarm=self.get_object(), **serializer.validated_data)
        return Response(AlarmSerializer(alarm).data)

    @conditional()
    def delete(self, request: Request, **kwargs: Any) -> Response:
        """Deletes the alarm with its history."""
        alarm_delete(alarm=self.get_object())
        return Response(status=status.HTTP_204_NO_CONTENT)


class FleetAlarmApi(AlarmApi):
    permission_classes = (Staff,)
    is_operator = True


class AlarmHistoryApi(_OfOwner, generics.ListAPIView[AlarmChange]):
    """Changes of an alarm's state, newest first."""

    permission_classes: _Permissions = (_MAY,)
    serializer_class = AlarmChangeSerializer
    queryset = AlarmChange.objects.none()  # tells the schema the model

    def get_queryset(self) -> QuerySet[AlarmChange]:
        return alarm_change_list(alarm=self.alarm())


class FleetAlarmHistoryApi(AlarmHistoryApi):
    """Changes of the operator's alarm's state, newest first."""

    permission_classes = (Staff,)
    is_operator = True
