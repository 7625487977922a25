"""REST API of consolidation plans (staff)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.deployments.models import Deployment
from controlplane.deployments.placement.planner import Plan, Traffic
from controlplane.deployments.selectors import deployment_get
from controlplane.errors import InvalidInputError
from controlplane.fleet.consolidation import MOST_MINUTES, consolidation_execute, consolidation_plan
from controlplane.platform.http.object_api import ObjectApi, conditional
from controlplane.platform.idempotency.api import idempotent
from controlplane.tenants.permissions import Staff

_MINUTES: Final = OpenApiParameter(
    "minutes", int, description="Traffic window in minutes, 1 to 60. Default: 15."
)


class AdapterTrafficSerializer(serializers.Serializer[Any]):
    adapter = serializers.CharField(allow_blank=True, help_text="Engine name; empty for the base model.")
    concurrency = serializers.FloatField(help_text="Mean number of concurrent requests.")
    copies = serializers.ListField(
        child=serializers.CharField(), help_text="Copies that served the traffic, by decreasing share."
    )
    to = serializers.ListField(child=serializers.CharField(), help_text="Copies assigned by the plan.")


class ConsolidationSerializer(serializers.Serializer[Any]):
    """A consolidation plan."""

    minutes = serializers.IntegerField()
    keep = serializers.ListField(child=serializers.CharField(), help_text="Copies that the plan keeps.")
    spare = serializers.ListField(child=serializers.CharField(), help_text="Copies that the plan stops.")
    saved = serializers.IntegerField(help_text="Number of copies that are not needed.")
    moves = serializers.IntegerField(help_text="Number of adapters whose new streams move to another copy.")
    short = serializers.FloatField(help_text="Concurrent requests that exceed the capacity; 0 for none.")
    load = serializers.DictField(child=serializers.FloatField(), help_text="Planned load by copy.")
    adapters = AdapterTrafficSerializer(many=True)


class ConsolidationApi(ObjectApi[Deployment]):
    """Consolidation of a deployment's traffic onto fewer copies."""

    permission_classes = (Staff,)
    serializer_class = ConsolidationSerializer

    def get_object(self) -> Any:
        found = deployment_get(name=self.kwargs["deployment"])
        minutes = _minutes(self.request)
        return shown(*consolidation_plan(deployment=found, minutes=minutes), minutes=minutes)

    @conditional()
    @extend_schema(parameters=[_MINUTES])
    def get(self, request: Request, deployment: str) -> Response:
        """Plans the minimum number of copies for the recent traffic; changes nothing."""
        return Response(ConsolidationSerializer(self.get_object()).data)

    @idempotent()
    @extend_schema(request=None, parameters=[_MINUTES], responses={202: ConsolidationSerializer})
    def post(self, request: Request, deployment: str) -> Response:
        """Executes the plan: new streams go to the remaining copies; spare copies stop when idle."""
        found, minutes = deployment_get(name=deployment), _minutes(request)
        made, traffic = consolidation_execute(deployment=found, minutes=minutes)
        body = ConsolidationSerializer(shown(made, traffic, minutes=minutes)).data
        return Response(body, status.HTTP_202_ACCEPTED)


def _minutes(request: Request) -> int:
    text = request.query_params.get("minutes", "15")
    if not (text.isascii() and text.isdigit() and len(text) < 5):
        raise InvalidInputError(f"minutes must be an integer from 1 to {MOST_MINUTES}", field="minutes")
    return int(text)


def shown(made: Plan, traffic: Sequence[Traffic], *, minutes: int) -> dict[str, Any]:
    """Return the values for ConsolidationSerializer."""
    return {
        "minutes": minutes,
        "keep": made.keep,
        "spare": made.spare,
        "saved": made.saved,
        "moves": len(made.moves),
        "short": made.short,
        "load": made.load,
        "adapters": [
            {
                "adapter": item.adapter,
                "concurrency": round(item.concurrency, 4),
                "copies": item.copies,
                "to": made.placed.get(item.adapter, ()),
            }
            for item in traffic
        ],
    }
