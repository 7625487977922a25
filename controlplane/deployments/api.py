"""REST endpoints for targets and deployments (staff only)."""

from __future__ import annotations

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import generics, status
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.catalog.selectors import base_model_get
from controlplane.deployments.filters import DeploymentFilter, PlacementFilter, StepFilter
from controlplane.deployments.models import Deployment, DeploymentStep, Placement
from controlplane.deployments.selectors import (
    deployment_get,
    deployment_list,
    placement_list,
    step_list,
    target_get,
)
from controlplane.deployments.serializers import (
    DeploymentInput,
    DeploymentSerializer,
    DeploymentStepSerializer,
    DesiredInput,
    PlacementSerializer,
)
from controlplane.deployments.services import (
    deployment_create,
    deployment_remove,
    deployment_retry,
    deployment_update,
)
from controlplane.platform.http.object_api import ObjectApi, conditional
from controlplane.platform.idempotency.api import idempotent
from controlplane.tenants.permissions import Staff


class DeploymentsApi(generics.ListAPIView[Deployment]):
    permission_classes = (Staff,)
    serializer_class = DeploymentSerializer
    filterset_class = DeploymentFilter

    def get_queryset(self) -> QuerySet[Deployment]:
        return deployment_list()

    @idempotent()
    @extend_schema(request=DeploymentInput, responses={201: DeploymentSerializer})
    def post(self, request: Request) -> Response:
        """Records the desired state of a new deployment; a Celery worker creates its resources."""
        data = DeploymentInput(data=request.data)
        data.is_valid(raise_exception=True)
        values = data.validated_data
        target = target_get(name=values.pop("target"))
        base_model = base_model_get(name=values.pop("base_model"))
        deployment = deployment_create(target=target, base_model=base_model, **values)
        return Response(DeploymentSerializer(deployment).data, status.HTTP_201_CREATED)


class OneDeploymentApi(ObjectApi[Deployment]):
    serializer_class = DeploymentSerializer
    etag_ignores = frozenset({"observed_at", "next_at"})

    def get_object(self) -> Deployment:
        return deployment_get(name=self.kwargs["deployment"])

    def shown(self, code: int = status.HTTP_200_OK) -> Response:
        return Response(DeploymentSerializer(self.get_object()).data, code)


class DeploymentApi(OneDeploymentApi):
    permission_classes = (Staff,)

    @conditional()
    def get(self, request: Request, deployment: str) -> Response:
        """Returns the desired state and the last observed state."""
        return self.shown()

    @conditional()
    @extend_schema(request=DesiredInput, responses=DeploymentSerializer)
    def patch(self, request: Request, deployment: str) -> Response:
        """Changes the desired state; omitted fields keep their values."""
        found = self.get_object()
        data = DesiredInput(data=request.data)
        data.is_valid(raise_exception=True)
        deployment_update(deployment=found, **data.validated_data)
        return self.shown()

    @conditional()
    @extend_schema(responses={202: DeploymentSerializer})
    def delete(self, request: Request, deployment: str) -> Response:
        """Removes the deployment, routes first. Poll it until it returns 404."""
        deployment_remove(deployment=self.get_object())
        return self.shown(status.HTTP_202_ACCEPTED)


class DeploymentRetryApi(OneDeploymentApi):
    permission_classes = (Staff,)

    @idempotent()
    @extend_schema(request=None, responses=DeploymentSerializer)
    def post(self, request: Request, deployment: str) -> Response:
        """Reconciles the deployment now and recreates failed resources."""
        deployment_retry(deployment=self.get_object())
        return self.shown()


class PlacementsApi(generics.ListAPIView[Placement]):
    """Adapters that are placed on a deployment or being placed."""

    permission_classes = (Staff,)
    serializer_class = PlacementSerializer
    filterset_class = PlacementFilter
    queryset = Placement.objects.none()

    def get_queryset(self) -> QuerySet[Placement]:
        return placement_list(deployment=deployment_get(name=self.kwargs["deployment"]))


class StepsApi(generics.ListAPIView[DeploymentStep]):
    """Journal of a deployment: steps with actor and cause, newest first."""

    permission_classes = (Staff,)
    serializer_class = DeploymentStepSerializer
    filterset_class = StepFilter
    queryset = DeploymentStep.objects.none()

    def get_queryset(self) -> QuerySet[DeploymentStep]:
        return step_list(deployment=deployment_get(name=self.kwargs["deployment"]))
