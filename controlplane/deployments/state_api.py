"""REST endpoint for a deployment's desired and observed state, and its scale-up in progress (staff only)."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from controlplane.deployments.comparison import Comparison, Verdict, compare
from controlplane.deployments.phases.forecast import Forecast, forecast_of
from controlplane.deployments.selectors import deployment_get
from controlplane.tenants.permissions import Staff


class ComparedSerializer(serializers.Serializer[Comparison]):
    what = serializers.CharField(help_text="copies, base, image, instance_type, adapters or generation.")
    wanted = serializers.CharField()
    seen = serializers.CharField(allow_blank=True, help_text="At the latest look; '' where nothing was seen.")
    verdict = serializers.ChoiceField(choices=[verdict.value for verdict in Verdict])


class ForecastSerializer(serializers.Serializer[Forecast]):
    copies_before = serializers.IntegerField(source="row.copies_before")
    copies_after = serializers.IntegerField(source="row.copies_after")
    cause = serializers.CharField(source="row.cause", allow_blank=True)
    began_at = serializers.DateTimeField(source="row.began_at")
    elapsed_seconds = serializers.FloatField(source="elapsed")
    expected_seconds = serializers.FloatField(source="prediction.seconds")
    left_seconds = serializers.FloatField(source="left", help_text="0 once it is late.")
    late_seconds = serializers.FloatField(source="late")
    phases = serializers.DictField(
        source="prediction.phases", child=serializers.FloatField(), help_text="Expected seconds of each."
    )
    basis = serializers.CharField(source="prediction.basis", help_text="Where the figures are from.")


class DeploymentStateSerializer(serializers.Serializer[Any]):
    observed_at = serializers.DateTimeField(allow_null=True, help_text="Of the latest look.")
    compared = ComparedSerializer(many=True)
    scale_up = ForecastSerializer(
        allow_null=True, help_text="The growth that goes on, against what is expected of it; null for none."
    )


class DeploymentStateApi(APIView):
    permission_classes = (Staff,)

    @extend_schema(responses=DeploymentStateSerializer)
    def get(self, request: Request, deployment: str) -> Response:
        """Returns desired and observed values with their differences, and a scale-up's progress."""
        found = deployment_get(name=deployment)
        state = {
            "observed_at": found.observed_at, "compared": compare(found), "scale_up": forecast_of(found),
        }  # fmt: skip
        return Response(DeploymentStateSerializer(state).data)
