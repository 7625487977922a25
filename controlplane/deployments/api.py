"""REST endpoints for deployments (staff only)."""

from __future__ import annotations

from typing import Any

import django_filters as filters
from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import generics, serializers, status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from controlplane.catalog.selectors import base_model_get
from controlplane.deployments.comparison import Comparison, Verdict, compare
from controlplane.deployments.models import Deployment, DeploymentStep, Placement
from controlplane.deployments.phases.forecast import Forecast, forecast_of
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


class DeploymentFilter(filters.FilterSet):  # type: ignore[misc]
    base_model = filters.CharFilter("base_model__name")
    target = filters.CharFilter("target__name")
    status = filters.ChoiceFilter(choices=Deployment.Status.choices)


class PlacementFilter(filters.FilterSet):  # type: ignore[misc]
    status = filters.ChoiceFilter(choices=Placement.Status.choices)


class StepFilter(filters.FilterSet):  # type: ignore[misc]
    outcome = filters.ChoiceFilter(choices=DeploymentStep.Outcome.choices)


class DeploymentsApi(generics.ListAPIView[Deployment]):
    permission_classes = (Staff,)
    serializer_class = DeploymentSerializer
    filterset_class = DeploymentFilter

    def get_queryset(self) -> QuerySet[Deployment]:
        return deployment_list()

    @idempotent()
    @extend_schema(request=DeploymentInput, responses={201: DeploymentSerializer})
    def post(self, request: Request) -> Response:
        """Creates a deployment: records its desired state; a Celery worker creates its resources."""
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

    def _response(self, code: int = status.HTTP_200_OK) -> Response:
        return Response(DeploymentSerializer(self.get_object()).data, code)


class DeploymentApi(OneDeploymentApi):
    permission_classes = (Staff,)

    @conditional()
    def get(self, request: Request, deployment: str) -> Response:
        """Returns the desired state and the last observed state."""
        return self._response()

    @conditional()
    @extend_schema(request=DesiredInput, responses=DeploymentSerializer)
    def patch(self, request: Request, deployment: str) -> Response:
        """Changes the desired state; omitted fields keep their values."""
        found = self.get_object()
        data = DesiredInput(data=request.data)
        data.is_valid(raise_exception=True)
        deployment_update(deployment=found, **data.validated_data)
        return self._response()

    @conditional()
    @extend_schema(responses={202: DeploymentSerializer})
    def delete(self, request: Request, deployment: str) -> Response:
        """Removes the deployment, routes first. Poll it until it returns 404."""
        deployment_remove(deployment=self.get_object())
        return self._response(status.HTTP_202_ACCEPTED)


class DeploymentRetryApi(OneDeploymentApi):
    permission_classes = (Staff,)

    @idempotent()
    @extend_schema(request=None, responses=DeploymentSerializer)
    def post(self, request: Request, deployment: str) -> Response:
        """Reconciles the deployment now and recreates failed resources."""
        deployment_retry(deployment=self.get_object())
        return self._response()


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


class ComparedSerializer(serializers.Serializer[Comparison]):
    what = serializers.CharField(help_text="copies, base, image, instance_type, adapters or generation.")
    wanted = serializers.CharField()
    seen = serializers.CharField(
        allow_blank=True, help_text="Value at the last observation; empty if none was observed."
    )
    verdict = serializers.ChoiceField(choices=[verdict.value for verdict in Verdict])


class ForecastSerializer(serializers.Serializer[Forecast]):
    copies_before = serializers.IntegerField(source="row.copies_before")
    copies_after = serializers.IntegerField(source="row.copies_after")
    cause = serializers.CharField(source="row.cause", allow_blank=True)
    began_at = serializers.DateTimeField(source="row.began_at")
    elapsed_seconds = serializers.FloatField(source="elapsed")
    expected_seconds = serializers.FloatField(source="prediction.seconds")
    left_seconds = serializers.FloatField(
        source="left", help_text="Expected seconds until the copies serve; 0 once overdue."
    )
    late_seconds = serializers.FloatField(source="late")
    phases = serializers.DictField(
        source="prediction.phases", child=serializers.FloatField(), help_text="Expected seconds by phase."
    )
    basis = serializers.CharField(source="prediction.basis", help_text="Source of the estimates.")


class DeploymentStateSerializer(serializers.Serializer[Any]):
    observed_at = serializers.DateTimeField(allow_null=True, help_text="Time of the last observation.")
    compared = ComparedSerializer(many=True)
    scale_up = ForecastSerializer(
        allow_null=True,
        help_text="Progress of the current scale-up against its prediction; null without one.",
    )


class DeploymentStateApi(APIView):
    permission_classes = (Staff,)

    @extend_schema(responses=DeploymentStateSerializer)
    def get(self, request: Request, deployment: str) -> Response:
        """Returns desired and observed values with their differences, and a scale-up's progress."""
        found = deployment_get(name=deployment)
        state = {"observed_at": found.observed_at, "compared": compare(found), "scale_up": forecast_of(found)}
        return Response(DeploymentStateSerializer(state).data)
