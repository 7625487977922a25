"""REST API of comparisons (staff)."""

from __future__ import annotations

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import generics, status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import BaseSerializer

from controlplane.catalog.selectors import base_model_get
from controlplane.optimization.api import LIVE
from controlplane.optimization.comparison_input import ComparisonInput
from controlplane.optimization.comparisons import comparison_create, comparison_remove
from controlplane.optimization.filters import WorkFilter
from controlplane.optimization.models import ComparisonRun, WorkEvent
from controlplane.optimization.selectors import comparison_get, comparison_list, event_list, prompts_get
from controlplane.optimization.serializers import (
    ComparisonResultSerializer,
    ComparisonSerializer,
    WorkEventSerializer,
)
from controlplane.optimization.services import work_cancel
from controlplane.platform.http.object_api import ObjectApi, conditional
from controlplane.platform.idempotency.api import idempotent
from controlplane.tenants.permissions import Staff

_SETTINGS = ("load", "quality", "price", "seed")


class ComparisonsApi(generics.ListAPIView[ComparisonRun]):
    permission_classes = (Staff,)
    serializer_class = ComparisonSerializer
    filterset_class = WorkFilter

    def get_queryset(self) -> QuerySet[ComparisonRun]:
        return comparison_list()

    @idempotent()
    @extend_schema(request=ComparisonInput, responses={201: ComparisonSerializer, 200: ComparisonSerializer})
    def post(self, request: Request) -> Response:
        """Creates a comparison. Returns 200 instead of 201 with the equal one that waits or runs already."""
        data = ComparisonInput(data=request.data)
        data.is_valid(raise_exception=True)
        values = data.validated_data
        sets = {name: prompts_get(sha256=values[name]) for name in ("prompts", "texts") if values.get(name)}
        comparison, made = comparison_create(
            base_model=base_model_get(name=values["base_model"]),
            arms=values["arms"],
            name=values["name"],
            adapters=values.get("adapters", ()),
            machine=values.get("machine", ""),
            settings={name: values[name] for name in _SETTINGS if name in values},
            **sets,
        )
        shown = ComparisonSerializer(comparison_get(pk=comparison.pk)).data
        return Response(shown, status.HTTP_201_CREATED if made else status.HTTP_200_OK)


class _OneComparison(ObjectApi[ComparisonRun]):
    serializer_class: type[BaseSerializer[ComparisonRun]] = ComparisonSerializer
    etag_ignores = LIVE

    def get_object(self) -> ComparisonRun:
        return comparison_get(pk=self.kwargs["comparison"])


class ComparisonApi(_OneComparison):
    permission_classes = (Staff,)

    @conditional()
    def get(self, request: Request, comparison: int) -> Response:
        """Returns the comparison and its progress. The ETag does not change with progress alone."""
        return Response(ComparisonSerializer(self.get_object()).data)

    @conditional()
    @extend_schema(responses={204: None})
    def delete(self, request: Request, comparison: int) -> Response:
        """Removes a comparison that has ended."""
        comparison_remove(comparison=self.get_object())
        return Response(status=status.HTTP_204_NO_CONTENT)


class ComparisonCancelApi(_OneComparison):
    permission_classes = (Staff,)

    @idempotent()
    @extend_schema(request=None, responses=ComparisonSerializer)
    def post(self, request: Request, comparison: int) -> Response:
        """Cancels the comparison."""
        work_cancel(work=self.get_object())
        return Response(ComparisonSerializer(self.get_object()).data)


class ComparisonResultApi(_OneComparison):
    permission_classes = (Staff,)
    serializer_class = ComparisonResultSerializer

    @conditional()
    def get(self, request: Request, comparison: int) -> Response:
        """Returns the measured figures."""
        return Response(ComparisonResultSerializer(self.get_object()).data)


class ComparisonEventsApi(generics.ListAPIView[WorkEvent]):
    permission_classes = (Staff,)
    serializer_class = WorkEventSerializer
    queryset = WorkEvent.objects.none()

    def get_queryset(self) -> QuerySet[WorkEvent]:
        return event_list(work=comparison_get(pk=self.kwargs["comparison"]))
