"""REST of the adapters that gateways hold back; for staff."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import generics, serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from controlplane.monitoring.models import AdapterQuarantine
from controlplane.monitoring.quarantines.services import quarantine_get, quarantine_list, quarantine_release
from controlplane.platform.idempotency.api import idempotent
from controlplane.tenants.permissions import Staff


class QuarantineSerializer(serializers.ModelSerializer[AdapterQuarantine]):
    tenant = serializers.CharField(source="tenant_slug")
    is_held = serializers.BooleanField(help_text="True while gateways refuse the version's requests.")
    copies = serializers.ListField(child=serializers.CharField())

    class Meta:
        model = AdapterQuarantine
        fields = (
            "id",
            "tenant",
            "adapter",
            "version",
            "engine_name",
            "base_model",
            "copies",
            "times",
            "held_at",
            "until",
            "released_at",
            "is_held",
        )


class QuarantinesApi(generics.ListAPIView[AdapterQuarantine]):
    """Adapter versions that gateways hold back or held back, newest first."""

    permission_classes = (Staff,)
    serializer_class = QuarantineSerializer
    queryset = AdapterQuarantine.objects.none()  # tells the schema the model

    def get_queryset(self) -> QuerySet[AdapterQuarantine]:
        return quarantine_list()


class QuarantineReleaseApi(APIView):
    permission_classes = (Staff,)

    @idempotent()
    @extend_schema(request=None, responses=QuarantineSerializer)
    def post(self, request: Request, quarantine_id: int, **kwargs: Any) -> Response:
        """Releases the version: gateways take its requests again within seconds."""
        released = quarantine_release(quarantine=quarantine_get(quarantine_id=quarantine_id))
        return Response(QuarantineSerializer(released).data)
