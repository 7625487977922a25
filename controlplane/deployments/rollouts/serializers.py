"""Serializers of deployments' rollouts."""

from __future__ import annotations

from rest_framework import serializers

from controlplane.deployments.containers.images import Family
from controlplane.deployments.models import DeploymentRollout
from controlplane.deployments.rollouts.policy import MOST_ALARMS, MOST_SHARES, SHARES, RolloutPolicy
from controlplane.platform.http.strict import StrictSerializer

_DEFAULT = RolloutPolicy()


class CopiesStateInput(StrictSerializer):
    """Fields of the copies to change; omitted fields keep their values."""

    variant = serializers.CharField(
        max_length=63,
        required=False,
        allow_blank=True,
        help_text="Variant of the base model; '' for its own checkpoint.",
    )
    urls = serializers.ListField(
        child=serializers.CharField(max_length=500),
        required=False,
        max_length=64,
        help_text="openai_http: URLs of the new servers.",
    )
    image = serializers.CharField(max_length=400, required=False)
    image_family = serializers.ChoiceField(
        choices=[(item.value, item.value) for item in Family],
        required=False,
        help_text="Family of an image that is given by address.",
    )
    options = serializers.DictField(required=False, help_text="Complete set of LMI options.")
    environment = serializers.DictField(child=serializers.CharField(max_length=1024), required=False)
    compute = serializers.DictField(child=serializers.FloatField(), required=False)


class RolloutPolicySerializer(StrictSerializer):
    """Pace of the rollout, and the limits that roll it back."""

    batch_copies = serializers.IntegerField(
        default=_DEFAULT.batch_copies,
        min_value=1,
        max_value=1000,
        help_text="Number of copies replaced at a time; for a canary, number of its copies.",
    )
    shares = serializers.ListField(
        child=serializers.IntegerField(min_value=1, max_value=99),
        default=list,
        max_length=MOST_SHARES,
        help_text="canary: increasing percentages of callers for the new copies, one per step. Default: "
        f"{list(SHARES)}.",
    )
    rollback_batch_copies = serializers.IntegerField(
        default=None,
        allow_null=True,
        min_value=1,
        max_value=1000,
        help_text="sagemaker: number of copies replaced at a time in a rollback; null for all at once.",
    )
    wait_seconds = serializers.IntegerField(
        default=_DEFAULT.wait_seconds,
        min_value=0,
        max_value=3600,
        help_text="Seconds from a step's readiness to the next step, while alarms are watched.",
    )
    max_seconds = serializers.IntegerField(
        default=_DEFAULT.max_seconds,
        min_value=600,
        max_value=28_800,
        help_text="Maximum duration in seconds.",
    )
    max_error_increase = serializers.FloatField(
        default=_DEFAULT.max_error_increase,
        min_value=0.001,
        max_value=0.5,
        allow_null=True,
        help_text="Allowed increase in the share of failed requests; null disables the limit.",
    )
    max_latency_ratio = serializers.FloatField(
        default=None,
        min_value=1.1,
        max_value=100,
        allow_null=True,
        help_text="Allowed ratio of the 95th percentile of TTFT; null disables the limit.",
    )
    alarms = serializers.ListField(
        child=serializers.CharField(max_length=255),
        default=list,
        max_length=MOST_ALARMS,
        help_text="sagemaker: names of your CloudWatch alarms.",
    )
    max_model_errors = serializers.FloatField(
        default=None,
        min_value=1,
        max_value=1e9,
        allow_null=True,
        help_text="sagemaker: errors per minute (CloudWatch InvocationModelErrors).",
    )
    max_model_latency_ms = serializers.FloatField(
        default=None,
        min_value=1,
        max_value=1e7,
        allow_null=True,
        help_text="sagemaker: mean latency over a minute (CloudWatch ModelLatency).",
    )


class DeploymentRolloutInput(StrictSerializer):
    change = CopiesStateInput()
    strategy = serializers.ChoiceField(
        choices=DeploymentRollout.Strategy.choices, default=DeploymentRollout.Strategy.ROLLING
    )
    policy = RolloutPolicySerializer(required=False)


class DeploymentRolloutSerializer(serializers.ModelSerializer[DeploymentRollout]):
    before = serializers.DictField(help_text="State of the copies before the rollout.")
    after = serializers.DictField(help_text="Desired state of the copies.")
    policy = RolloutPolicySerializer()
    figures = serializers.DictField(allow_null=True, help_text="Metrics of the last verdict on usage.")
    copies = serializers.DictField(
        child=serializers.ListField(child=serializers.CharField()),
        help_text="Ids of copies that served: new, old.",
    )

    class Meta:
        model = DeploymentRollout
        fields = (
            "id",
            "strategy",
            "status",
            "reason",
            "step",
            "ready_at",
            "before",
            "after",
            "policy",
            "copies",
            "verdict",
            "judged_at",
            "figures",
            "created_by",
            "created_at",
            "turned_at",
            "ended_at",
        )
