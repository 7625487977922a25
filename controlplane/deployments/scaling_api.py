"""REST endpoints for scaling policies (staff only)."""

from __future__ import annotations

from typing import Any

from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.deployments.models import Deployment
from controlplane.deployments.scaling.policy import DAYS, METRICS_SECONDS, Metric, Release, Routing
from controlplane.deployments.scaling.selectors import policy_get, scaling_of
from controlplane.deployments.selectors import deployment_get
from controlplane.deployments.services import scaling_clear, scaling_set
from controlplane.errors import NotFoundError
from controlplane.platform.http.object_api import ObjectApi, conditional
from controlplane.platform.http.strict import StrictSerializer
from controlplane.tenants.permissions import Staff

_COPIES: dict[str, Any] = {"min_value": 0, "max_value": 1000}


class ScheduledBoundsSerializer(StrictSerializer):
    """Bounds in force from a time of day on the given days, until the next entry takes effect."""

    name = serializers.CharField(max_length=40)
    at = serializers.CharField(max_length=5, help_text="Local time in `timezone`, as HH:MM.")
    days = serializers.ListField(child=serializers.ChoiceField(choices=DAYS), max_length=7)
    min_copies = serializers.IntegerField(**_COPIES)
    max_copies = serializers.IntegerField(min_value=1, max_value=1000)


class ScalingInput(StrictSerializer):
    """A complete policy: omitted fields get their defaults; omitted copy bounds keep their values."""

    min_copies = serializers.IntegerField(**_COPIES, required=False)
    max_copies = serializers.IntegerField(min_value=1, max_value=1000, required=False)
    metric = serializers.ChoiceField(
        choices=[item.value for item in Metric],
        required=False,
        help_text="Metric per copy. concurrency: concurrent requests; invocations: requests per minute.",
    )
    target = serializers.FloatField(
        min_value=0.01, max_value=1e6, help_text="Target value of the metric per copy."
    )
    from_zero = serializers.IntegerField(
        min_value=1,
        max_value=1000,
        required=False,
        help_text="Number of copies that the first request starts.",
    )
    out_after = serializers.IntegerField(
        min_value=0,
        max_value=3600,
        required=False,
        help_text="Seconds above the target before a scale-out; sagemaker: 30.",
    )
    in_after = serializers.IntegerField(
        min_value=0,
        max_value=86400,
        required=False,
        help_text="Seconds below nine tenths of the target before a scale-in; sagemaker: 900.",
    )
    out_cooldown = serializers.IntegerField(min_value=0, max_value=86400, required=False)
    in_cooldown = serializers.IntegerField(min_value=0, max_value=86400, required=False)
    protect = serializers.BooleanField(required=False, help_text="Disables scale-in by target tracking.")
    schedule = ScheduledBoundsSerializer(many=True, required=False)
    timezone = serializers.CharField(
        max_length=60, required=False, help_text="IANA time zone, such as Europe/Berlin. Default: UTC."
    )
    hold_seconds = serializers.IntegerField(
        min_value=0,
        max_value=600,
        required=False,
        help_text="Seconds that a request may wait for the first copy.",
    )
    routing = serializers.ChoiceField(
        choices=[item.value for item in Routing],
        required=False,
        help_text="sagemaker: routing strategy of the endpoint.",
    )
    release = serializers.ChoiceField(
        choices=[item.value for item in Release],
        required=False,
        allow_null=True,
        help_text="sagemaker: how instances are released.",
    )
    release_cooldown_minutes = serializers.IntegerField(min_value=5, max_value=1440, required=False)
    metrics_seconds = serializers.ChoiceField(
        choices=METRICS_SECONDS,
        required=False,
        help_text="sagemaker: seconds between the endpoint's enhanced and detailed metrics in CloudWatch; "
        "0 for AWS's standard metrics.",
    )
    basic_metrics = serializers.BooleanField(
        required=False,
        help_text="sagemaker: turns off the metrics of containers, GPUs, instances and placements, which AWS "
        "publishes for new endpoints and CloudWatch bills.",
    )


class ScalingReadingSerializer(serializers.Serializer[Any]):
    load = serializers.FloatField(help_text="Value of the metric, summed over all copies.")
    held = serializers.IntegerField(help_text="Requests held at gateways until a copy is available.")
    whole = serializers.BooleanField(help_text="Whether every copy responded.")


class ScalingSerializer(ScalingInput):
    """The policy and its current state."""

    min_copies = serializers.IntegerField()
    max_copies = serializers.IntegerField()
    min_now = serializers.IntegerField(help_text="Minimum number of copies now, by the schedule.")
    max_now = serializers.IntegerField(help_text="Maximum number of copies now, by the schedule.")
    copies = serializers.IntegerField(
        allow_null=True, help_text="local: desired number of copies; null where AWS decides."
    )
    seen = ScalingReadingSerializer(allow_null=True, help_text="local: last reading of the load.")
    evaluated_at = serializers.DateTimeField(allow_null=True)


class ScalingApi(ObjectApi[Deployment]):
    """Scaling policy: how a deployment's number of copies follows its load."""

    permission_classes = (Staff,)
    serializer_class = ScalingSerializer
    etag_ignores = frozenset({"seen", "evaluated_at", "copies", "min_now", "max_now"})

    def get_object(self) -> Any:
        return scaling_values(deployment_get(name=self.kwargs["deployment"]))

    def row_to_lock(self, found: Any) -> Deployment:
        return deployment_get(name=self.kwargs["deployment"])

    @conditional()
    def get(self, request: Request, deployment: str) -> Response:
        return Response(ScalingSerializer(self.get_object()).data)

    @conditional()
    @extend_schema(request=ScalingInput, responses=ScalingSerializer)
    def put(self, request: Request, deployment: str) -> Response:
        """Sets the scaling policy, replacing an existing one."""
        data = ScalingInput(data=request.data)
        data.is_valid(raise_exception=True)
        scaling_set(deployment=deployment_get(name=deployment), **data.validated_data)
        return Response(ScalingSerializer(self.get_object()).data)

    @conditional()
    @extend_schema(responses={204: None})
    def delete(self, request: Request, deployment: str) -> Response:
        """Deletes the policy: the deployment keeps `min_copies` copies without autoscaling."""
        scaling_clear(deployment=deployment_get(name=deployment))
        return Response(status=status.HTTP_204_NO_CONTENT)


def scaling_values(deployment: Deployment) -> dict[str, Any]:
    """Return the fields of ScalingSerializer. Raises NotFoundError."""
    row, policy = scaling_of(deployment), policy_get(deployment=deployment)
    if row is None:
        raise NotFoundError(f"deployment {deployment.name} has no scaling policy")
    least, most = policy.bounds(timezone.now())
    local = deployment.target.kind == deployment.target.Kind.LOCAL
    return policy.to_json() | {
        "min_copies": policy.min_copies,
        "max_copies": policy.max_copies,
        "min_now": least,
        "max_now": most,
        "copies": row.copies if local else None,
        "seen": row.seen or None,
        "evaluated_at": row.evaluated_at,
    }
