"""REST API of the current state of the fleet (staff)."""

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
    requests = serializers.IntegerField(help_text="Attempts that started within the window and have ended.")
    failed = serializers.IntegerField(
        source="errors", help_text="Attempts that failed because of the copy or the network."
    )
    client_errors = serializers.IntegerField(help_text="Attempts that failed because of an invalid request.")
    tokens = serializers.IntegerField()
    per_second = serializers.FloatField()
    ttft_p50_ms = serializers.FloatField(allow_null=True)
    ttft_p95_ms = serializers.FloatField(allow_null=True)


class FleetCopySerializer(serializers.Serializer[SeenCopy]):
    name = serializers.CharField(
        help_text="Id of the copy; for a copy without a route, the name of its resource."
    )
    place = serializers.CharField(allow_blank=True)
    kind = serializers.CharField()
    deployment = serializers.CharField(allow_blank=True)
    state = serializers.ChoiceField(choices=[state.value for state in CopyState])
    since = serializers.DateTimeField(allow_null=True)
    reason = serializers.CharField(allow_blank=True)
    answered_at = serializers.DateTimeField(allow_null=True, help_text="Time of the metrics.")
    running = serializers.IntegerField(source="polled.figures.running", allow_null=True, default=None)
    waiting = serializers.IntegerField(source="polled.figures.waiting", allow_null=True, default=None)
    kv_share = serializers.FloatField(
        source="polled.figures.used_share",
        allow_null=True,
        default=None,
        help_text="Share of the KV pool in use.",
    )
    kv_pages = serializers.IntegerField(source="polled.figures.kv_total", allow_null=True, default=None)
    adapters = serializers.DictField(
        source="polled.figures.adapters",
        child=serializers.IntegerField(),
        default=dict,
        help_text="Number of adapters by memory tier; of vLLM those with running requests.",
    )
    adapter_slots = serializers.IntegerField(
        source="polled.figures.adapter_slots",
        allow_null=True,
        default=None,
        help_text="Adapters that fit into device memory at once, where the server reports it.",
    )
    tuned_configs = serializers.ListField(
        source="polled.figures.tuned_configs",
        child=serializers.CharField(),
        default=list,
        help_text="Files of tuned kernel configurations in use.",
    )
    traffic = TrafficSerializer()


class FleetDeploymentSerializer(serializers.Serializer[Any]):
    name = serializers.CharField(source="row.name")
    status = serializers.CharField(source="row.status")
    reason = serializers.CharField(source="row.reason", allow_blank=True)
    least = serializers.IntegerField(help_text="Minimum number of copies desired now.")
    most = serializers.IntegerField(help_text="Maximum number of copies desired now.")
    routed = serializers.IntegerField(help_text="Number of copies in the route table.")


class FleetBaseSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    deployments = FleetDeploymentSerializer(many=True)
    copies = FleetCopySerializer(many=True)


class FleetSerializer(serializers.Serializer[Overview]):
    at = serializers.DateTimeField()
    minutes = serializers.IntegerField(help_text="Traffic window in minutes.")
    traffic = TrafficSerializer()
    bases = FleetBaseSerializer(many=True)


class FleetApi(APIView):
    permission_classes = (Staff,)

    @extend_schema(responses=FleetSerializer)
    def get(self, request: Request) -> Response:
        """Returns every base model with its deployments and copies: state, load, memory and traffic.

        A copy that does not respond keeps its last metrics, with their time.
        """
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
        source="faults",
        child=serializers.CharField(),
        help_text="Error of each copy that does not respond, by copy.",
    )
    total = serializers.IntegerField()
    page = serializers.IntegerField()
    pages = serializers.IntegerField()
    adapters = MapRowSerializer(source="rows", many=True)


_PARAMETERS: Final = [
    OpenApiParameter("base_model", str, required=True),
    OpenApiParameter("minutes", int, description="Usage window in minutes, 1 to 60. Default: 15."),
    OpenApiParameter("search", str, description="Substring of the engine name."),
    OpenApiParameter("all", bool, description="Include versions that are not resident and were not used."),
    OpenApiParameter("page", int, description="Page number, from 1."),
]


class FleetResidencyApi(APIView):
    permission_classes = (Staff,)

    @extend_schema(parameters=_PARAMETERS, responses=ResidencySerializer)
    def get(self, request: Request) -> Response:
        """Lists the adapters of a base model with their residency by copy, busiest first, 50 per page."""
        query = request.query_params
        if not (name := query.get("base_model", "")):
            raise InvalidInputError("base_model is required", field="base_model")
        base = base_model_get(name=name)
        found = residency_map(
            base=base,
            minutes=read_minutes(query.get("minutes", "15")),
            search=query.get("search", ""),
            everything=query.get("all", "") in ("true", "1"),
            page=read_page(query.get("page", "1")),
        )
        return Response(ResidencySerializer(found).data)


def read_page(text: str) -> int:
    """Parse the `page` parameter. Raises InvalidInputError."""
    if not (text.isascii() and text.isdigit() and 0 < len(text) < 7):
        raise InvalidInputError("page must be an integer from 1", field="page")
    return int(text)
