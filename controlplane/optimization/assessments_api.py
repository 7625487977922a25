"""REST API of SageMaker's AI benchmarks and recommendations (staff)."""

from __future__ import annotations

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import generics, status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import BaseSerializer

from controlplane.catalog.selectors import base_model_get
from controlplane.deployments.selectors import deployment_get
from controlplane.optimization.api import LIVE
from controlplane.optimization.assessment_serializers import (
    AssessmentSerializer,
    BenchmarkInput,
    RecommendationInput,
)
from controlplane.optimization.assessments import assessment_remove, benchmark_create, recommendation_create
from controlplane.optimization.models import Assessment, PromptSet, WorkEvent
from controlplane.optimization.selectors import assessment_get, assessment_list, event_list, prompts_get
from controlplane.optimization.serializers import WorkEventSerializer
from controlplane.optimization.services import work_cancel
from controlplane.platform.http.object_api import ObjectApi, conditional
from controlplane.platform.idempotency.api import idempotent
from controlplane.tenants.permissions import Staff


def _prompts(values: dict[str, str]) -> PromptSet | None:
    return prompts_get(sha256=values["prompts"]) if values.get("prompts") else None


class AssessmentsApi(generics.ListAPIView[Assessment]):
    permission_classes = (Staff,)
    serializer_class = AssessmentSerializer

    def get_queryset(self) -> QuerySet[Assessment]:
        return assessment_list()


class BenchmarksApi(generics.GenericAPIView[Assessment]):
    permission_classes = (Staff,)
    serializer_class = AssessmentSerializer

    @idempotent()
    @extend_schema(request=BenchmarkInput, responses={201: AssessmentSerializer})
    def post(self, request: Request) -> Response:
        """Starts a SageMaker benchmark of a deployment's endpoint."""
        data = BenchmarkInput(data=request.data)
        data.is_valid(raise_exception=True)
        values = data.validated_data
        made = benchmark_create(
            deployment=deployment_get(name=values["deployment"]),
            workload=values["workload"],
            prompts=_prompts(values),
            name=values["name"],
        )
        return Response(AssessmentSerializer(assessment_get(pk=made.pk)).data, status.HTTP_201_CREATED)


class RecommendationsApi(generics.GenericAPIView[Assessment]):
    permission_classes = (Staff,)
    serializer_class = AssessmentSerializer

    @idempotent()
    @extend_schema(request=RecommendationInput, responses={201: AssessmentSerializer})
    def post(self, request: Request) -> Response:
        """Starts a SageMaker recommendation of instance types and settings for a base model."""
        data = RecommendationInput(data=request.data)
        data.is_valid(raise_exception=True)
        values = dict(data.validated_data)
        made = recommendation_create(
            base_model=base_model_get(name=values["base_model"]),
            workload=values["workload"],
            values=values,
            prompts=_prompts(values),
            name=values["name"],
        )
        return Response(AssessmentSerializer(assessment_get(pk=made.pk)).data, status.HTTP_201_CREATED)


class _OneAssessment(ObjectApi[Assessment]):
    serializer_class: type[BaseSerializer[Assessment]] = AssessmentSerializer
    etag_ignores = LIVE

    def get_object(self) -> Assessment:
        return assessment_get(pk=self.kwargs["assessment"])


class AssessmentApi(_OneAssessment):
    permission_classes = (Staff,)

    @conditional()
    def get(self, request: Request, assessment: int) -> Response:
        """Returns the progress and the results of the job. Progress alone does not change the ETag."""
        return Response(AssessmentSerializer(self.get_object()).data)

    @conditional()
    @extend_schema(responses={204: None})
    def delete(self, request: Request, assessment: int) -> Response:
        """Removes a job that has ended; SageMaker's output stays in the target's store."""
        assessment_remove(assessment=self.get_object())
        return Response(status=status.HTTP_204_NO_CONTENT)


class CancelApi(_OneAssessment):
    permission_classes = (Staff,)

    @idempotent()
    @extend_schema(request=None, responses=AssessmentSerializer)
    def post(self, request: Request, assessment: int) -> Response:
        """Stops the job in the AWS account."""
        work_cancel(work=self.get_object())
        return Response(AssessmentSerializer(self.get_object()).data)


class EventsApi(generics.ListAPIView[WorkEvent]):
    permission_classes = (Staff,)
    serializer_class = WorkEventSerializer
    queryset = WorkEvent.objects.none()

    def get_queryset(self) -> QuerySet[WorkEvent]:
        return event_list(work=assessment_get(pk=self.kwargs["assessment"]))
