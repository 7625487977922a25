"""REST API of component health and task queues (staff)."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from django.conf import settings
from drf_spectacular.utils import extend_schema
from redis.exceptions import RedisError
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from controlplane.fleet.overview import moment
from controlplane.operations.health.base import Level, Part
from controlplane.operations.health.parts import health_report
from controlplane.operations.health.queues import work_report
from controlplane.platform.task_signs import CheckSign, checks, connection
from controlplane.tenants.permissions import Staff

LEVELS = [level.value for level in Level]


class HealthPartSerializer(serializers.Serializer[Part]):
    name = serializers.CharField()
    title = serializers.CharField()
    level = serializers.ChoiceField(
        source="finding.level",
        choices=LEVELS,
        help_text="unused: not part of this installation; unknown: the state cannot be determined.",
    )
    text = serializers.CharField(source="finding.text")
    todo = serializers.CharField(source="finding.todo", allow_blank=True, help_text="Recommended action.")
    since = serializers.DateTimeField(
        source="finding.since",
        help_text="When the component entered this state: as the component reports it, or the first check"
        " with this level.",
    )
    details = serializers.ListField(source="finding.details", child=serializers.CharField())


class HealthSerializer(serializers.Serializer[Any]):
    at = serializers.DateTimeField()
    seconds = serializers.FloatField(help_text="Duration of all checks, in seconds.")
    level = serializers.ChoiceField(choices=LEVELS, help_text="Worst level of all components.")
    parts = HealthPartSerializer(many=True)


class HealthPartsApi(APIView):
    permission_classes = (Staff,)

    @extend_schema(responses=HealthSerializer)
    def get(self, request: Request) -> Response:
        """Returns the state of every component, when it entered that state, and the recommended action.

        A component that does not respond within 2.5 seconds is reported as down.
        """
        return Response(HealthSerializer(health_report()).data)


class CheckSerializer(serializers.Serializer[Any]):
    name = serializers.CharField(
        help_text="usage: rollups against usage events; books: ledger entries and balances against usage."
    )
    checked_at = serializers.DateTimeField()
    start = serializers.DateField(help_text="First UTC day of the check.")
    end = serializers.DateField(help_text="Last UTC day of the check.")
    differing = serializers.IntegerField(help_text="Number of totals that do not match their source records.")
    examples = serializers.ListField(
        child=serializers.CharField(), help_text="Examples of totals that do not match."
    )


class ChecksSerializer(serializers.Serializer[Any]):
    away = serializers.CharField(
        allow_blank=True, help_text="Error of Redis, which stores the results; empty if it responded."
    )
    checks = CheckSerializer(many=True, help_text="A check that has never run is omitted.")


class ChecksApi(APIView):
    permission_classes = (Staff,)

    @extend_schema(responses=ChecksSerializer)
    def get(self, request: Request) -> Response:
        """Returns the latest results of the nightly checks of usage and the ledger."""
        try:
            found = checks(connection(settings.GRAFTWORK.redis_url))
        except RedisError as error:
            told: dict[str, Any] = {"away": str(error) or type(error).__name__, "checks": []}
        else:
            told = {"away": "", "checks": [_check(name, found[name]) for name in sorted(found)]}
        return Response(ChecksSerializer(told).data)


def _check(name: str, sign: CheckSign) -> dict[str, Any]:
    return {"name": name, "checked_at": moment(sign.at), **asdict(sign)}


class QueueSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    depth = serializers.IntegerField()
    oldest_at = serializers.DateTimeField(allow_null=True)
    oldest_task = serializers.CharField(allow_blank=True)
    workers = serializers.ListField(
        child=serializers.CharField(), help_text="Live workers that consume the queue."
    )


class WorkerSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    seen_at = serializers.DateTimeField()
    started_at = serializers.DateTimeField()
    queues = serializers.ListField(child=serializers.CharField())
    alive = serializers.BooleanField()


class ScheduledSerializer(serializers.Serializer[Any]):
    task = serializers.CharField()
    queue = serializers.CharField()
    every = serializers.CharField()
    sent_at = serializers.DateTimeField(allow_null=True)
    ran_at = serializers.DateTimeField(allow_null=True)
    seconds = serializers.FloatField(allow_null=True)
    outcome = serializers.CharField(allow_blank=True)
    reason = serializers.CharField(allow_blank=True)
    late = serializers.BooleanField()


class WorkSerializer(serializers.Serializer[Any]):
    at = serializers.DateTimeField()
    away = serializers.CharField(
        allow_blank=True, help_text="Error of Redis, which stores this data; empty if it responded."
    )
    queues = QueueSerializer(many=True)
    workers = WorkerSerializer(many=True)
    scheduled = ScheduledSerializer(many=True)
    usage_waiting = serializers.IntegerField(
        help_text="Number of usage events not yet stored in the database."
    )
    usage_oldest_s = serializers.FloatField()


class QueuesApi(APIView):
    permission_classes = (Staff,)

    @extend_schema(responses=WorkSerializer)
    def get(self, request: Request) -> Response:
        """Returns task queues with their workers, scheduled tasks with their last run, and pending usage."""
        return Response(WorkSerializer(work_report()).data)
