"""REST API of the usage of each side of a deployment's rollout (staff)."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.canaries.sides import rollout_sides
from controlplane.deployments.models import DeploymentRollout
from controlplane.deployments.rollouts.selectors import deployment_rollout_get
from controlplane.deployments.selectors import deployment_get
from controlplane.platform.http.object_api import ObjectApi, conditional
from controlplane.tenants.permissions import Staff


class RolloutSideSerializer(serializers.Serializer[Any]):
    """Attempts at copies of one side since the rollout began."""

    copies = serializers.ListField(
        child=serializers.CharField(), help_text="Ids of the copies, including removed ones."
    )
    requests = serializers.IntegerField()
    failed = serializers.IntegerField(help_text="Number of failed requests.")
    prompt_tokens = serializers.IntegerField()
    completion_tokens = serializers.IntegerField()
    p50_ms = serializers.FloatField(allow_null=True, help_text="Median time to first token, in milliseconds.")
    p95_ms = serializers.FloatField(allow_null=True)


class RolloutSidesSerializer(serializers.Serializer[Any]):
    new = RolloutSideSerializer()
    old = RolloutSideSerializer(help_text="The other copies; on SageMaker all copies.")


class DeploymentRolloutUsageApi(ObjectApi[DeploymentRollout]):
    permission_classes = (Staff,)
    serializer_class = RolloutSidesSerializer

    def get_object(self) -> Any:
        found = deployment_get(name=self.kwargs["deployment"])
        rollout = deployment_rollout_get(deployment=found, number=self.kwargs["deployment_rollout"])
        return {item.side: item for item in rollout_sides(rollout=rollout)}

    @conditional()
    def get(self, request: Request, deployment: str, deployment_rollout: int) -> Response:
        """Returns requests, failures, tokens and latencies of the new copies and of the other copies."""
        return Response(RolloutSidesSerializer(self.get_object()).data)
