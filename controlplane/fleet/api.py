"""REST of the fleet as it is now (staff)."""

from __future__ import annotations

from typing import Any, Final

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from controlplane.catalog.selectors import base_model_get
from controlplane.errors import InvalidInputError
from controlplane.fleet.adapters_seen_api import read_minutes
from controlplane.fleet.overview import CopyState, Overview, SeenCopy, fleet_overview
from controlplane.fleet.residency import TIERS, Cell, ResidencyMap, residency_map
from controlplane.fleet.traffic import Traffic
from controlplane.tenants.permissions import Staff


class TrafficSerializer(serializers.Serializer[Traffic]):
    requests = serializers.IntegerField(help_text="Attempts that began within the minutes and have ended.")
    failed = serializers.IntegerField(source="errors", help_text="By fault of the copy or the way to it.")
    client_errors = serializers.IntegerField(help_text="Attempts that a request's own fault ended.")
    tokens = serializers.IntegerField()
    per_second = serializers.FloatField()
    ttft_p50_ms = serializers.FloatField(allow_null=True)
    ttft_p95_ms = serializers.FloatField(allow_null=True)


class FleetCopySerializer(serializers.Serializer[SeenCopy]):
    name = serializers.CharField(help_text="The copy's id; of one that no route leads to, its place's name.")
    place = serializers.CharField(allow_blank=True)
    kind = serializers.CharField()
    deployment = serializers.CharField(allow_blank=True)
    state = serializers.ChoiceField(choices=[state.value for state in CopyState])
    since = serializers.DateTimeField(allow_null=True)
    reason = serializers.CharField(allow_blank=True)
    answered_at = serializers.DateTimeField(allow_null=True, help_text="When the figures are from.")
    running = serializers.IntegerField(source="look.figures.running", allow_null=True, default=None)
    waiting = serializers.IntegerField(source="look.figures.waiting", allow_null=True, default=None)
    kv_share = serializers.FloatField(
        source="look.figures.used_share", allow_null=True, default=None, help_text="Of the pool, in use."
    )
    kv_pages = serializers.IntegerField(source="look.figures.kv_total", allow_null=True, default=None)
    adapters = serializers.DictField(
        source="look.figures.adapters", child=serializers.IntegerField(), default=dict, help_text="By tier."
    )
    traffic = TrafficSerializer()


class FleetDeploymentSerializer(serializers.Serializer[Any]):
    name = serializers.CharField(source="row.name")
    status = serializers.CharField(source="row.status")
    reason = serializers.CharField(source="row.reason", allow_blank=True)
    least = serializers.IntegerField(help_text="Copies that are to be there now.")
    most = serializers.IntegerField()
    routed = serializers.IntegerField(help_text="Copies that routes lead to.")


class FleetBaseSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    deployments = FleetDeploymentSerializer(many=True)
    copies = FleetCopySerializer(many=True)


class FleetSerializer(serializers.Serializer[Overview]):
    at = serializers.DateTimeField()
    minutes = serializers.IntegerField(help_text="Of traffic.")
    traffic = TrafficSerializer()
    bases = FleetBaseSerializer(many=True)


class FleetApi(APIView):
    permission_classes = (Staff,)

    @extend_schema(responses=FleetSerializer)
    def get(self, request: Request) -> Response:
        """Every base model with its deployments and copies: state, load, memory, traffic. A copy that does
        not answer keeps its last figures, with their time."""
        return Response(FleetSerializer(fleet_overview()).data)


class CellSerializer(serializers.Serializer[Cell]):
    copy = serializers.CharField()
    tier = serializers.ChoiceField(choices=list(TIERS))
    pinned = serializers.BooleanField()
    requests = serializers.IntegerField(source="use.requests")


class MapRowSerializer(serializers.Serializer[Any]):
    adapter = serializers.CharField(source="name")
    requests = serializers.IntegerField()
    on = CellSerializer(source="cells", many=True)


class ResidencySerializer(serializers.Serializer[ResidencyMap]):
    at = serializers.DateTimeField()
    minutes = serializers.IntegerField()
    silent = serializers.DictField(
        source="faults", child=serializers.CharField(), help_text="By copy, why it does not tell."
    )
    total = serializers.IntegerField()
    page = serializers.IntegerField()
    pages = serializers.IntegerField()
    adapters = MapRowSerializer(source="rows", many=True)


_PARAMETERS: Final = [
    OpenApiParameter("base_model", str, required=True),
    OpenApiParameter("minutes", int, description="Of usage, 1 to 60; 15."),
    OpenApiParameter("search", str, description="Part of an engine name."),
    OpenApiParameter("all", bool, description="Also versions that lie nowhere and were not used."),
    OpenApiParameter("page", int, description="From 1."),
]


class FleetResidencyApi(APIView):
    permission_classes = (Staff,)

    @extend_schema(parameters=_PARAMETERS, responses=ResidencySerializer)
    def get(self, request: Request) -> Response:
        """Which adapters of a base model lie where, the busiest first, 50 a page."""
        query = request.query_params
        if not (name := query.get("base_model", "")):
            raise InvalidInputError("say which base_model it is about", field="base_model")
        base = base_model_get(name=name)
        found = residency_map(
            base=base, minutes=read_minutes(query.get("minutes", "15")), search=query.get("search", ""),
            everything=query.get("all", "") in ("true", "1"), page=read_page(query.get("page", "1")),
        )  # fmt: skip
        return Response(ResidencySerializer(found).data)


def read_page(text: str) -> int:
    """Raises InvalidInputError."""
    if not (text.isascii() and text.isdigit() and 0 < len(text) < 7):
        raise InvalidInputError("page is a whole number from 1 on", field="page")
    return int(text)
