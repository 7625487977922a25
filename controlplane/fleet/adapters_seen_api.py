"""REST API of adapter monitoring (staff)."""

from __future__ import annotations

from typing import Any, Final

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.deployments.models import Deployment
from controlplane.deployments.selectors import deployment_get
from controlplane.errors import InvalidInputError
from controlplane.fleet.adapters_seen import MOST_MINUTES, AdaptersSeen, OnCopy, SeenAdapter, adapters_seen
from controlplane.platform.http.object_api import ObjectApi, conditional
from controlplane.tenants.permissions import Staff

_PARAMETERS: Final = [
    OpenApiParameter("minutes", int, description="Usage window in minutes, 1 to 60. Default: 15."),
    OpenApiParameter("search", str, description="Substring of the engine name."),
]


class AdapterOnCopySerializer(serializers.Serializer[Any]):
    copy = serializers.CharField()
    loaded = serializers.ChoiceField(
        choices=["device", "host", "server", "no", "unknown"],
        help_text="Memory tier. server: registered on a server that does not report the tier.",
    )
    pinned = serializers.BooleanField()
    bytes = serializers.IntegerField(allow_null=True)
    running = serializers.IntegerField(allow_null=True, help_text="Requests that currently use the adapter.")
    requests = serializers.IntegerField(help_text="Number of requests that ended within the window.")
    failed = serializers.IntegerField(help_text="Number of failed requests.")
    prompt_tokens = serializers.IntegerField()
    completion_tokens = serializers.IntegerField()
    ttft_p50_ms = serializers.FloatField(allow_null=True)
    ttft_p95_ms = serializers.FloatField(allow_null=True)
    last_used_at = serializers.DateTimeField(allow_null=True)


class SeenAdapterSerializer(serializers.Serializer[Any]):
    adapter = serializers.CharField(
        help_text="Engine name, or the digest of content without a known version."
    )
    placed = serializers.CharField(
        allow_blank=True, help_text="Status of the placement rule; empty without a rule."
    )
    on = AdapterOnCopySerializer(many=True)


class CopyMemorySerializer(serializers.Serializer[Any]):
    copy = serializers.CharField()
    answers = serializers.BooleanField()
    adapters = serializers.IntegerField()
    bytes = serializers.IntegerField(allow_null=True)
    max_bytes = serializers.IntegerField(allow_null=True)
    pinned_bytes = serializers.IntegerField(allow_null=True)


class AdaptersSeenSerializer(serializers.Serializer[Any]):
    """Adapters on a deployment's copies, busiest first."""

    minutes = serializers.IntegerField()
    copies = CopyMemorySerializer(many=True)
    adapters = SeenAdapterSerializer(many=True)
    total = serializers.IntegerField(help_text="Number of matching adapters; the list may be truncated.")


class AdaptersSeenApi(ObjectApi[Deployment]):
    permission_classes = (Staff,)
    serializer_class = AdaptersSeenSerializer

    def get_object(self) -> Any:
        query, found = self.request.query_params, deployment_get(name=self.kwargs["deployment"])
        minutes = read_minutes(query.get("minutes", "15"))
        return shown(adapters_seen(deployment=found, minutes=minutes, search=query.get("search", "")))

    @conditional()
    @extend_schema(parameters=_PARAMETERS)
    def get(self, request: Request, deployment: str) -> Response:
        """Lists each adapter on each copy: residency, usage within the window, and last use."""
        return Response(AdaptersSeenSerializer(self.get_object()).data)


def read_minutes(text: str) -> int:
    """Parse the `minutes` parameter. Raises InvalidInputError."""
    if not (text.isascii() and text.isdigit() and len(text) < 5):
        raise InvalidInputError(f"minutes must be an integer from 1 to {MOST_MINUTES}", field="minutes")
    return int(text)


def shown(seen: AdaptersSeen) -> dict[str, Any]:
    """Return the values for AdaptersSeenSerializer."""
    return {
        "minutes": seen.minutes,
        "total": seen.total,
        "copies": [
            {
                "copy": copy,
                "answers": memory is not None,
                "adapters": 0 if memory is None else len(memory.adapters),
                "bytes": memory and memory.nbytes,
                "max_bytes": memory and memory.max_bytes,
                "pinned_bytes": memory and memory.pinned_bytes,
            }
            for copy, memory in seen.memories.items()
        ],
        "adapters": [
            {
                "adapter": item.name,
                "placed": "" if item.rule is None else item.rule.status,
                "on": [_on_copy(item, place, seen) for place in item.on],
            }
            for item in seen.adapters
        ],
    }


def _on_copy(item: SeenAdapter, place: OnCopy, seen: AdaptersSeen) -> dict[str, Any]:
    held, use = place.held, place.use
    return {
        "copy": place.copy,
        "loaded": loaded(place),
        "pinned": item.pinned_on(place.copy),
        "bytes": held and held.nbytes,
        "running": held and held.requests,
        "requests": use.requests,
        "failed": use.errors,
        "prompt_tokens": use.prompt_tokens,
        "completion_tokens": use.completion_tokens,
        "ttft_p50_ms": use.ttft_p50_ms,
        "ttft_p95_ms": use.ttft_p95_ms,
        "last_used_at": place.last_used(seen.at),
    }


def loaded(place: OnCopy) -> str:
    """Return the tier of the adapter on this copy, `no`, or `unknown`."""
    if place.held is not None:
        return place.held.tier
    return "no" if place.known else "unknown"
