"""Rollouts as JSON."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from controlplane.canaries.models import Rollout, RolloutDecision
from controlplane.canaries.services import DEFAULT_STEPS
from controlplane.platform.http.strict import StrictSerializer


class ArmFiguresSerializer(serializers.Serializer[Any]):
    """Figures of one arm since the step began; latencies are times to first token of answers."""

    version = serializers.IntegerField()
    requests = serializers.IntegerField(
        help_text="Completed and failed requests, without requests that clients canceled."
    )
    errors = serializers.IntegerField()  # type: ignore[assignment]  # a field of ours, not DRF's attribute
    answers = serializers.IntegerField()
    p50_ms = serializers.FloatField(allow_null=True)
    p95_ms = serializers.FloatField(allow_null=True)


class IntervalSerializer(serializers.Serializer[Any]):
    """Bounds of a share of requests: `at_least` by 3 standard errors, `at_most` by 1.645."""

    at_least = serializers.FloatField()
    at_most = serializers.FloatField()


class SlowSerializer(IntervalSerializer):
    """The canary's answers whose first token took longer than `limit_ms`."""

    limit_ms = serializers.FloatField()
    answers = serializers.IntegerField()


class BoundsSerializer(serializers.Serializer[Any]):
    min_requests = serializers.IntegerField()
    max_error_increase = serializers.FloatField()
    max_latency_ratio = serializers.FloatField(allow_null=True)


class FiguresSerializer(serializers.Serializer[Any]):
    """Figures and bounds of a comparison."""

    stable = ArmFiguresSerializer()
    canary = ArmFiguresSerializer()
    bounds = BoundsSerializer()
    error_increase = IntervalSerializer(
        required=False, help_text="The canary's share of errors minus the stable's."
    )
    slow = SlowSerializer(required=False)


class DecisionSerializer(serializers.ModelSerializer[RolloutDecision]):
    decision = serializers.ChoiceField(choices=RolloutDecision.Kind.choices, source="kind")
    figures = FiguresSerializer(allow_null=True)

    class Meta:
        model = RolloutDecision
        fields = ("decision", "percent", "figures", "reason", "by", "created_at")


class RolloutSerializer(serializers.ModelSerializer[Rollout]):
    stable = serializers.IntegerField(source="stable.number", help_text="Version before the rollout.")
    canary = serializers.IntegerField(source="canary.number")
    percent = serializers.IntegerField(help_text="The canary's share of callers while the rollout is active.")
    steps = serializers.ListField(child=serializers.IntegerField())
    figures = FiguresSerializer(allow_null=True, help_text="Latest metrics of both arms.")
    decisions = DecisionSerializer(many=True)

    class Meta:
        model = Rollout
        fields = (
            "id",
            "alias",
            "stable",
            "canary",
            "status",
            "steps",
            "percent",
            "hold_seconds",
            "min_requests",
            "max_error_increase",
            "max_latency_ratio",
            "step_started_at",
            "figures",
            "looked_at",
            "reason",
            "decisions",
            "created_by",
            "created_at",
            "ended_at",
        )


class RolloutInput(StrictSerializer):
    """The canary's version and the rollout's plan."""

    version = serializers.IntegerField(min_value=1)
    steps = serializers.ListField(
        child=serializers.IntegerField(min_value=1, max_value=100),
        default=list(DEFAULT_STEPS),
        min_length=1,
        max_length=21,
        help_text="Increasing percentages of callers; promotion follows the last.",
    )
    hold_seconds = serializers.IntegerField(default=600, min_value=10, max_value=30 * 86_400)
    min_requests = serializers.IntegerField(default=100, min_value=10, max_value=100_000)
    max_error_increase = serializers.FloatField(
        default=0.02,
        min_value=0.001,
        max_value=0.5,
        help_text="Allowed increase in the share of failed requests.",
    )
    max_latency_ratio = serializers.FloatField(
        default=1.5,
        min_value=1.1,
        max_value=100,
        allow_null=True,
        help_text="Allowed ratio to the stable's 95th percentile of latency; null disables the limit.",
    )
