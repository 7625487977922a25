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
        max_length=63, required=False, allow_blank=True,
        help_text="Of the base model's variants; '' for its own checkpoint.",
    )  # fmt: skip
    urls = serializers.ListField(
        child=serializers.CharField(max_length=500), required=False, max_length=64,
        help_text="openai_http: the new servers.",
    )  # fmt: skip
    image = serializers.CharField(max_length=400, required=False)
    image_family = serializers.ChoiceField(
        choices=[(item.value, item.value) for item in Family], required=False, help_text="Of an address."
    )
    options = serializers.DictField(required=False, help_text="All of LMI's options that are set.")
    environment = serializers.DictField(child=serializers.CharField(max_length=1024), required=False)
    compute = serializers.DictField(child=serializers.FloatField(), required=False)


class RolloutPolicySerializer(StrictSerializer):
    """Pace of the rollout, and the limits that roll it back."""

    batch_copies = serializers.IntegerField(
        default=_DEFAULT.batch_copies, min_value=1, max_value=1000,
        help_text="Replaced at a time; of a canary, how many it is tried with.",
    )  # fmt: skip
    shares = serializers.ListField(
        child=serializers.IntegerField(min_value=1, max_value=99), default=list, max_length=MOST_SHARES,
        help_text="canary: percent of callers that the new copies get, step by step, growing; left out, "
        f"{list(SHARES)}.",
    )  # fmt: skip
    rollback_batch_copies = serializers.IntegerField(
        default=None, allow_null=True, min_value=1, max_value=1000,
        help_text="sagemaker: the same on the way back; null: all at once.",
    )  # fmt: skip
    wait_seconds = serializers.IntegerField(
        default=_DEFAULT.wait_seconds, min_value=0, max_value=3600,
        help_text="From when a step's copies answer until the next; alarms are watched.",
    )  # fmt: skip
    max_seconds = serializers.IntegerField(
        default=_DEFAULT.max_seconds, min_value=600, max_value=28_800, help_text="Longer it may not take."
    )
    max_error_increase = serializers.FloatField(
        default=_DEFAULT.max_error_increase, min_value=0.001, max_value=0.5, allow_null=True,
        help_text="0.02: two of a hundred more may fail than on the others; null: not judged.",
    )  # fmt: skip
    max_latency_ratio = serializers.FloatField(
        default=None, min_value=1.1, max_value=100, allow_null=True,
        help_text="Times the others' 95th percentile to the first token; null: not judged.",
    )  # fmt: skip
    alarms = serializers.ListField(
        child=serializers.CharField(max_length=255), default=list, max_length=MOST_ALARMS,
        help_text="sagemaker: names of CloudWatch alarms of yours.",
    )  # fmt: skip
    max_model_errors = serializers.FloatField(
        default=None, min_value=1, max_value=1e9, allow_null=True,
        help_text="sagemaker: a minute, by CloudWatch's InvocationModelErrors.",
    )  # fmt: skip
    max_model_latency_ms = serializers.FloatField(
        default=None, min_value=1, max_value=1e7, allow_null=True,
        help_text="sagemaker: mean of a minute, by CloudWatch's ModelLatency.",
    )  # fmt: skip


class DeploymentRolloutInput(StrictSerializer):
    change = CopiesStateInput()
    strategy = serializers.ChoiceField(
        choices=DeploymentRollout.Strategy.choices, default=DeploymentRollout.Strategy.ROLLING
    )
    policy = RolloutPolicySerializer(required=False)


class DeploymentRolloutSerializer(serializers.ModelSerializer[DeploymentRollout]):
    before = serializers.DictField(help_text="What the copies were.")
    after = serializers.DictField(help_text="What they are to become.")
    policy = RolloutPolicySerializer()
    figures = serializers.DictField(allow_null=True, help_text="What usage was judged by last.")
    copies = serializers.DictField(
        child=serializers.ListField(child=serializers.CharField()), help_text="Ids that served: new, old."
    )

    class Meta:
        model = DeploymentRollout
        fields = (
            "id", "strategy", "status", "reason", "step", "ready_at", "before", "after", "policy", "copies",
            "verdict", "judged_at", "figures", "created_by", "created_at", "turned_at", "ended_at",
        )  # fmt: skip
