"""REST endpoints for placing single adapters: pin, unpin, evict, move (staff only)."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import generics, serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.deployments.models import AdapterRule, Deployment
from controlplane.deployments.placement.rules import adapter_evict, adapter_move, adapter_pin, adapter_unpin
from controlplane.deployments.placement.selectors import rule_get, rule_list
from controlplane.deployments.selectors import deployment_get
from controlplane.platform.http.object_api import ObjectApi, conditional
from controlplane.platform.http.strict import StrictSerializer
from controlplane.platform.idempotency.api import idempotent
from controlplane.tenants.permissions import Staff

_COPY: dict[str, Any] = {"max_length": 40}


class AdapterRuleSerializer(serializers.ModelSerializer[AdapterRule]):
    adapter = serializers.CharField(source="engine_name")
    on = serializers.ListField(
        child=serializers.CharField(), help_text="Copies that should hold the adapter."
    )
    ready = serializers.ListField(child=serializers.CharField(), help_text="Copies that hold the adapter.")
    away = serializers.ListField(
        child=serializers.CharField(), help_text="Copies that requests for the adapter avoid."
    )
    leaving = serializers.SerializerMethodField(help_text="Copies that the adapter is leaving.")

    class Meta:
        model = AdapterRule
        fields = (
            "adapter",
            "copies",
            "on",
            "ready",
            "away",
            "leaving",
            "status",
            "reason",
            "created_by",
            "created_at",
        )

    def get_leaving(self, rule: AdapterRule) -> list[str]:
        return sorted(rule.leaving)


class AdapterPinInput(StrictSerializer):
    """Number of copies that keep the adapter loaded; default: the length of `on`, or 1."""

    copies = serializers.IntegerField(min_value=1, max_value=1000, required=False)
    on = serializers.ListField(
        child=serializers.CharField(**_COPY),
        required=False,
        max_length=1000,
        help_text="Ids of the first copies; other copies replace removed ones.",
    )


class AdapterEvictInput(StrictSerializer):
    copies = serializers.ListField(
        child=serializers.CharField(**_COPY),
        required=False,
        max_length=1000,
        help_text="Ids of the copies. Default: all copies.",
    )
    keep_away = serializers.BooleanField(
        default=False, help_text="Whether later requests avoid these copies while another copy is available."
    )


class AdapterMoveInput(StrictSerializer):
    from_copy = serializers.CharField(**_COPY, help_text="Source copy.")
    to_copy = serializers.CharField(**_COPY, help_text="Destination copy, on which the adapter is pinned.")


class AdapterRulesApi(generics.ListAPIView[AdapterRule]):
    """Placement rules of adapters, including rules that are being removed."""

    permission_classes = (Staff,)
    serializer_class = AdapterRuleSerializer
    queryset = AdapterRule.objects.none()

    def get_queryset(self) -> QuerySet[AdapterRule]:
        return rule_list(deployment=deployment_get(name=self.kwargs["deployment"]))


class _RuleApi(ObjectApi[AdapterRule]):
    permission_classes = (Staff,)
    serializer_class = AdapterRuleSerializer

    def get_object(self) -> AdapterRule:
        return rule_get(deployment=self.deployment(), engine_name=self.kwargs["engine_name"])

    def deployment(self) -> Deployment:
        return deployment_get(name=self.kwargs["deployment"])

    def _arguments(self, request: Request, kind: type[serializers.Serializer[Any]]) -> dict[str, Any]:
        data = kind(data=request.data)
        data.is_valid(raise_exception=True)
        return {
            "deployment": self.deployment(),
            "engine_name": self.kwargs["engine_name"],
            **data.validated_data,
        }


class AdapterRuleApi(_RuleApi):
    """Pins, moves and excluded copies of one adapter version."""

    permission_classes = (Staff,)
    etag_ignores = frozenset({"ready", "leaving", "status", "reason"})

    def row_to_lock(self, found: AdapterRule) -> Deployment:
        return self.deployment()

    @conditional()
    def get(self, request: Request, deployment: str, engine_name: str) -> Response:
        return Response(AdapterRuleSerializer(self.get_object()).data)

    @conditional()
    @extend_schema(request=AdapterPinInput, responses=AdapterRuleSerializer)
    def put(self, request: Request, deployment: str, engine_name: str) -> Response:
        """Pins the adapter: loads it on `copies` copies ahead of requests and keeps it there."""
        return Response(AdapterRuleSerializer(adapter_pin(**self._arguments(request, AdapterPinInput))).data)

    @conditional()
    @extend_schema(responses={204: None})
    def delete(self, request: Request, deployment: str, engine_name: str) -> Response:
        """Removes the adapter's rule: requests load it on demand again."""
        adapter_unpin(deployment=self.deployment(), engine_name=engine_name)
        return Response(status=status.HTTP_204_NO_CONTENT)


class AdapterEvictApi(_RuleApi):
    permission_classes = (Staff,)

    @idempotent()
    @extend_schema(request=AdapterEvictInput, responses={202: AdapterRuleSerializer})
    def post(self, request: Request, deployment: str, engine_name: str) -> Response:
        """Evicts the adapter from copies after its last request there; later requests load it again."""
        rule = adapter_evict(**self._arguments(request, AdapterEvictInput))
        return Response(AdapterRuleSerializer(rule).data, status.HTTP_202_ACCEPTED)


class AdapterMoveApi(_RuleApi):
    permission_classes = (Staff,)

    @idempotent()
    @extend_schema(request=AdapterMoveInput, responses={202: AdapterRuleSerializer})
    def post(self, request: Request, deployment: str, engine_name: str) -> Response:
        """Moves the adapter: loads it on `to_copy` and sends new requests there.

        Then `from_copy` drops it after its last request.
        """
        arguments = self._arguments(request, AdapterMoveInput)
        rule = adapter_move(source=arguments.pop("from_copy"), to=arguments.pop("to_copy"), **arguments)
        return Response(AdapterRuleSerializer(rule).data, status.HTTP_202_ACCEPTED)
