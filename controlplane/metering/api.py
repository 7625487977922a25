"""REST of usage that is reported from outside as CloudEvents, of dead letters, and of hosting time."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from django.db.models import QuerySet
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import generics, serializers, status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from controlplane.errors import InvalidInputError
from controlplane.metering.cloud_events.envelope import LONGEST, SPEC_VERSION, USAGE_TYPE
from controlplane.metering.cloud_events.intake import Outcome, Status, events_take
from controlplane.metering.cloud_events.names import Reporter
from controlplane.metering.cloud_events.parsers import (
    BATCH,
    BINARY,
    MOST_EVENTS,
    PARSERS,
    STRUCTURED,
    is_batch,
    request_events,
)
from controlplane.metering.cloud_events.usage import data_schema
from controlplane.metering.hosting.report import GROUPS, HostingRow, hosting_report
from controlplane.metering.models import DeadUsageEvent, HostingKind, UsageSource
from controlplane.metering.replay import dead_usage_replay_ask
from controlplane.metering.selectors import dead_letter_list
from controlplane.metering.sources import source_create, source_delete, source_get, source_list
from controlplane.platform.http.object_api import RetrieveApi, conditional
from controlplane.platform.http.strict import StrictSerializer, validated
from controlplane.platform.idempotency.api import idempotent
from controlplane.tenants.models import ApiKey
from controlplane.tenants.permissions import Staff, UsageReporter, request_tenant, tenant_may
from controlplane.tenants.roles import Permission


class OutcomeSerializer(serializers.Serializer[Outcome]):
    id = serializers.CharField(allow_blank=True, help_text="Event id as sent; '' if the event has none.")
    source = serializers.CharField(allow_blank=True)  # type: ignore[assignment]  # a field, not where from
    status = serializers.ChoiceField(
        choices=[status.value for status in Status],
        help_text="`dead_letter`: stored, and counted once the names in it exist; `refused`: not stored.",
    )
    reason = serializers.CharField(allow_blank=True)


class OutcomesSerializer(serializers.Serializer[Any]):
    accepted = serializers.IntegerField()
    duplicate = serializers.IntegerField()
    dead_letter = serializers.IntegerField()
    refused = serializers.IntegerField()
    events = OutcomeSerializer(many=True, help_text="In the order of the request.")


_EVENT: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["specversion", "id", "source", "type", "time", "data"],
    "properties": {
        "specversion": {"type": "string", "enum": [SPEC_VERSION]},
        "id": {"type": "string", "minLength": 1, "maxLength": LONGEST},
        "source": {"type": "string", "minLength": 1, "maxLength": LONGEST},
        "type": {"type": "string", "enum": [USAGE_TYPE]},
        "time": {"type": "string", "format": "date-time"},
        "datacontenttype": {"type": "string", "enum": ["application/json"]},
        "data": data_schema(),
    },
}
_BODIES: Final = {
    STRUCTURED: _EVENT,
    BATCH: {"type": "array", "items": _EVENT, "maxItems": MOST_EVENTS},
    BINARY: data_schema(),
}
_HEADERS: Final = [
    OpenApiParameter(f"ce-{name}", str, OpenApiParameter.HEADER, description=f"If the body is `data`: {text}")
    for name, text in (
        ("specversion", f"`{SPEC_VERSION}`."),
        ("id", "together with `ce-source`, the event's identity."),
        ("source", "what reports."),
        ("type", f"`{USAGE_TYPE}`."),
        ("time", "time of the event, RFC 3339."),
    )
]


class UsageEventsApi(APIView):
    permission_classes = (UsageReporter,)
    parser_classes = PARSERS

    @extend_schema(request=_BODIES, parameters=_HEADERS, responses={200: OutcomesSerializer})
    def post(self, request: Request) -> Response:
        """Takes usage of external servers as CloudEvents 1.0: structured, batch or binary.

        An event sent again, with the same `id` and `source`, counts once. Events answered as accepted are
        committed. A batch is answered event by event; a single event that is refused is a 400.
        """
        assert isinstance(request.auth, ApiKey)
        events = request_events(request)
        outcomes = events_take(reporter=Reporter.of_key(request.auth), events=events)
        if not is_batch(request) and outcomes[0].status is Status.REFUSED:
            raise InvalidInputError(outcomes[0].reason)
        counts = Counter(outcome.status for outcome in outcomes)
        body = {status.value: counts[status] for status in Status}
        return Response({**body, "events": [outcome.to_dict() for outcome in outcomes]})


class UsageSourceSerializer(StrictSerializer, serializers.ModelSerializer[UsageSource]):
    tenant = serializers.CharField(
        source="service_account.tenant_id", help_text="Tenant of the service account."
    )
    service_account = serializers.CharField(source="service_account.name", max_length=63)
    tenants = serializers.ListField(
        child=serializers.CharField(max_length=63),
        allow_null=True,
        help_text="Tenants that its keys may report for, with all their projects. Null for all tenants.",
    )

    class Meta:
        model = UsageSource
        fields = ("id", "tenant", "service_account", "tenants", "created_at")


class UsageSourcesApi(generics.ListAPIView[UsageSource]):
    permission_classes = (Staff,)
    serializer_class = UsageSourceSerializer

    def get_queryset(self) -> QuerySet[UsageSource]:
        return source_list()

    @idempotent()
    @extend_schema(request=UsageSourceSerializer, responses={201: UsageSourceSerializer})
    def post(self, request: Request) -> Response:
        """Lets a service account's keys with scope `usage:write` report for tenants other than its own."""
        values = validated(UsageSourceSerializer, request.data)
        account = values["service_account"]
        source = source_create(
            tenant=account["tenant_id"], service_account=account["name"], tenants=values["tenants"]
        )
        return Response(UsageSourceSerializer(source).data, status.HTTP_201_CREATED)


class UsageSourceApi(RetrieveApi[UsageSource]):
    permission_classes = (Staff,)
    serializer_class = UsageSourceSerializer

    def get_object(self) -> UsageSource:
        return source_get(source_id=self.kwargs["source"])

    @conditional()
    def delete(self, request: Request, source: int) -> Response:
        """Restricts its keys to their own projects again."""
        source_delete(source=self.get_object())
        return Response(status=status.HTTP_204_NO_CONTENT)


class HostingRowSerializer(serializers.Serializer[HostingRow]):
    kind = serializers.ChoiceField(choices=[(kind.value, kind.value) for kind in HostingKind])
    group = serializers.DictField(child=serializers.CharField(), help_text="Value of each `group_by` name.")
    quantity_seconds = serializers.IntegerField(help_text="Count or bytes, multiplied by seconds.")
    amount = serializers.CharField(help_text="Decimal, in `unit`.")
    unit = serializers.CharField(help_text="Hours, or GB-hours (10^9 bytes).")


class HostingReportSerializer(serializers.Serializer[Any]):
    start = serializers.DateField()
    end = serializers.DateField()
    rows = HostingRowSerializer(many=True)


class HostingQuery(serializers.Serializer[Any]):
    start = serializers.DateField()
    end = serializers.DateField()
    group_by = serializers.CharField(required=False, default="day")


_HOSTING_SCHEMA: Final = extend_schema(
    parameters=[
        OpenApiParameter("start", OpenApiTypes.DATE, required=True, description="First UTC day."),
        OpenApiParameter("end", OpenApiTypes.DATE, required=True, description="Last UTC day, included."),
        OpenApiParameter("group_by", description=f"Comma-separated; any of {', '.join(GROUPS)}."),
    ],
    responses={200: HostingReportSerializer},
)


class _HostingApi(APIView):
    def _report(self, request: Request, tenant: str | None) -> Response:
        values = validated(HostingQuery, request.query_params)
        groups = [name.strip() for name in values["group_by"].split(",") if name.strip()]
        rows = hosting_report(tenant=tenant, start=values["start"], end=values["end"], group_by=groups)
        body = {"start": values["start"], "end": values["end"], "rows": rows}
        return Response(HostingReportSerializer(body).data)


class HostingApi(_HostingApi):
    permission_classes = (tenant_may(Permission.BILLING_READ),)

    @_HOSTING_SCHEMA
    def get(self, request: Request) -> Response:
        """Adapter-hours by tier and GB-hours of the tenant's adapters; hours count once they are over."""
        return self._report(request, request_tenant(request).pk)


class FleetHostingApi(_HostingApi):
    permission_classes = (Staff,)

    @_HOSTING_SCHEMA
    def get(self, request: Request) -> Response:
        """Hosting time of all tenants, and copy-, GPU- and instance-hours of the operator's deployments."""
        return self._report(request, None)


class DeadLetterSerializer(serializers.ModelSerializer[DeadUsageEvent]):
    class Meta:
        model = DeadUsageEvent
        fields = ("id", "stream_id", "tenant", "reason", "payload", "received_at")


class DeadLettersApi(generics.ListAPIView[DeadUsageEvent]):
    """Usage events that could not be counted, newest first, each with the reason."""

    permission_classes = (Staff,)
    serializer_class = DeadLetterSerializer
    queryset = DeadUsageEvent.objects.none()
    filter_backends = ()

    def get_queryset(self) -> QuerySet[DeadUsageEvent]:
        return dead_letter_list()


class ReplaySerializer(serializers.Serializer[Any]):
    asked = serializers.IntegerField(help_text="Number of dead letters; a task ingests them again.")


class DeadLetterReplayApi(APIView):
    permission_classes = (Staff,)

    @idempotent()
    @extend_schema(request=None, responses={202: ReplaySerializer})
    def post(self, request: Request) -> Response:
        """Replays all dead letters, after their cause is fixed; each event counts once."""
        letters = dead_usage_replay_ask()
        return Response(ReplaySerializer({"asked": letters}).data, status.HTTP_202_ACCEPTED)
