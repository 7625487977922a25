"""REST of dead letters (staff)."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import generics, serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.metering.models import DeadUsageEvent
from controlplane.metering.replay import dead_usage_replay_ask
from controlplane.metering.selectors import dead_letter_list
from controlplane.platform.idempotency.api import idempotent
from controlplane.tenants.permissions import Staff


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


class DeadLetterReplayApi(generics.GenericAPIView[DeadUsageEvent]):
    permission_classes = (Staff,)
    serializer_class = ReplaySerializer
    queryset = DeadUsageEvent.objects.none()
    pagination_class = None

    @idempotent()
    @extend_schema(request=None, responses={202: ReplaySerializer})
    def post(self, request: Request) -> Response:
        """Replays all dead letters, after their cause is fixed; each event counts once."""
        letters = dead_usage_replay_ask()
        return Response(ReplaySerializer({"asked": letters}).data, status.HTTP_202_ACCEPTED)
