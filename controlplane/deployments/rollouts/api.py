"""REST endpoints for deployments' rollouts (staff only)."""

from __future__ import annotations

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import generics, status
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.deployments.models import DeploymentRollout
from controlplane.deployments.rollouts.selectors import deployment_rollout_get, deployment_rollout_list
from controlplane.deployments.rollouts.serializers import DeploymentRolloutInput, DeploymentRolloutSerializer
from controlplane.deployments.rollouts.services import (
    deployment_rollout_abort,
    deployment_rollout_pause,
    deployment_rollout_resume,
    deployment_rollout_start,
)
from controlplane.deployments.selectors import deployment_get
from controlplane.platform.http.object_api import ObjectApi, conditional
from controlplane.platform.idempotency.api import idempotent
from controlplane.tenants.permissions import Staff


class DeploymentRolloutsApi(generics.ListAPIView[DeploymentRollout]):
    permission_classes = (Staff,)
    serializer_class = DeploymentRolloutSerializer
    queryset = DeploymentRollout.objects.none()

    def get_queryset(self) -> QuerySet[DeploymentRollout]:
        return deployment_rollout_list(deployment=deployment_get(name=self.kwargs["deployment"]))

    @idempotent()
    @extend_schema(request=DeploymentRolloutInput, responses={201: DeploymentRolloutSerializer})
    def post(self, request: Request, deployment: str) -> Response:
        """Moves the copies to another state step by step; rolls back when an alarm goes off."""
        found = deployment_get(name=deployment)
        data = DeploymentRolloutInput(data=request.data)
        data.is_valid(raise_exception=True)
        rollout = deployment_rollout_start(deployment=found, **data.validated_data)
        return Response(DeploymentRolloutSerializer(rollout).data, status.HTTP_201_CREATED)


class _OneRollout(ObjectApi[DeploymentRollout]):
    serializer_class = DeploymentRolloutSerializer

    def get_object(self) -> DeploymentRollout:
        deployment = deployment_get(name=self.kwargs["deployment"])
        return deployment_rollout_get(deployment=deployment, number=self.kwargs["deployment_rollout"])

    def _response(self) -> Response:
        return Response(DeploymentRolloutSerializer(self.get_object()).data)


class DeploymentRolloutApi(_OneRollout):
    permission_classes = (Staff,)

    @conditional()
    def get(self, request: Request, deployment: str, deployment_rollout: int) -> Response:
        """Returns the rollout's state. Its steps are in the deployment's journal."""
        return self._response()


class DeploymentRolloutPauseApi(_OneRollout):
    permission_classes = (Staff,)

    @idempotent()
    @extend_schema(request=None, responses=DeploymentRolloutSerializer)
    def post(self, request: Request, deployment: str, deployment_rollout: int) -> Response:
        """Pauses the rollout. SageMaker cannot pause an update in progress (409)."""
        deployment_rollout_pause(rollout=self.get_object())
        return self._response()


class DeploymentRolloutResumeApi(_OneRollout):
    permission_classes = (Staff,)

    @idempotent()
    @extend_schema(request=None, responses=DeploymentRolloutSerializer)
    def post(self, request: Request, deployment: str, deployment_rollout: int) -> Response:
        """Resumes the rollout; only what happens from now on is judged."""
        deployment_rollout_resume(rollout=self.get_object())
        return self._response()


class DeploymentRolloutAbortApi(_OneRollout):
    permission_classes = (Staff,)

    @idempotent()
    @extend_schema(request=None, responses=DeploymentRolloutSerializer)
    def post(self, request: Request, deployment: str, deployment_rollout: int) -> Response:
        """Aborts the rollout and rolls back to the previous state."""
        deployment_rollout_abort(rollout=self.get_object())
        return self._response()
