"""REST endpoints for scale-ups and their predictions (staff only)."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import generics, serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.deployments.models import Deployment, ScaleUp
from controlplane.deployments.phases.selectors import predictions_of, scale_up_list
from controlplane.deployments.selectors import deployment_get
from controlplane.errors import InvalidInputError
from controlplane.platform.http.object_api import ObjectApi, conditional
from controlplane.tenants.permissions import Staff

_MOST = 1000


class ScaleUpSerializer(serializers.ModelSerializer[ScaleUp]):
    phases = serializers.DictField(
        child=serializers.FloatField(),
        source="phases_in_order",
        help_text="Seconds by phase: detect, provision, image, weights, runtime, traffic; `copy` sums phases "
        "that cannot be separated, including the machine unless `provision` is present.",
    )

    class Meta:
        model = ScaleUp
        fields = (
            "event",
            "copies_before",
            "copies_after",
            "cause",
            "began_at",
            "decided_at",
            "ended_at",
            "phases",
            "outcome",
        )


class ScaleUpsApi(generics.ListAPIView[ScaleUp]):
    """Scale-ups of a deployment with the seconds of each phase, newest first."""

    permission_classes = (Staff,)
    serializer_class = ScaleUpSerializer
    queryset = ScaleUp.objects.none()
    filter_backends = ()

    def get_queryset(self) -> QuerySet[ScaleUp]:
        return scale_up_list(deployment=deployment_get(name=self.kwargs["deployment"]))


class PredictionSerializer(serializers.Serializer[Any]):
    copies = serializers.IntegerField()
    cached = serializers.BooleanField(help_text="Whether the image is cached on instances.")
    new_instances = serializers.IntegerField(
        help_text="Number of new instances required; 0 if running instances have room."
    )
    seconds = serializers.FloatField(help_text="Predicted seconds until all copies serve.")
    phases = serializers.DictField(child=serializers.FloatField())
    basis = serializers.CharField(help_text="Source of the estimates.")


class PredictionsSerializer(serializers.Serializer[Any]):
    predictions = PredictionSerializer(many=True, help_text="Predictions; empty without measurements.")


class PredictionApi(ObjectApi[Deployment]):
    """Predicted time until more copies serve."""

    permission_classes = (Staff,)
    serializer_class = PredictionsSerializer

    def get_object(self) -> Any:
        text = self.request.query_params.get("copies", "1")
        if not (text.isascii() and text.isdigit() and len(text) <= 4 and 1 <= int(text) <= _MOST):
            raise InvalidInputError(f"copies must be an integer from 1 to {_MOST}", field="copies")
        found = deployment_get(name=self.kwargs["deployment"])
        return {"predictions": predictions_of(found, copies=int(text))}

    @conditional()
    @extend_schema(
        parameters=[OpenApiParameter("copies", int, description="Number of additional copies. Default: 1.")]
    )
    def get(self, request: Request, deployment: str) -> Response:
        """Returns predictions with and without a cached image, on running and on new instances."""
        return Response(PredictionsSerializer(self.get_object()).data)
