"""SageMaker's AI benchmarks and recommendations as JSON."""

from __future__ import annotations

from rest_framework import serializers

from controlplane.optimization.assessments import FRAMEWORKS, MOST_ADAPTERS, MOST_TYPES
from controlplane.optimization.models import Assessment
from controlplane.optimization.serializers import PROGRESS
from controlplane.platform.http.strict import StrictSerializer


class AssessmentSerializer(serializers.ModelSerializer[Assessment]):
    id = serializers.IntegerField(source="pk")
    base_model = serializers.CharField(source="base_model.name")
    target = serializers.CharField(source="target.name", allow_null=True, default=None)
    prompts = serializers.CharField(source="prompts_id", allow_null=True)
    remote = serializers.DictField(
        help_text="`options` of the request, and `told`, the observed SageMaker job."
    )
    result = serializers.DictField(allow_null=True, help_text="Recommendations, or output and its files.")

    class Meta:
        model = Assessment
        fields = ("id", "subject", "name", "base_model", "target", "prompts", "remote", "result", *PROGRESS)


class _AssessmentInput(StrictSerializer):
    workload = serializers.CharField(
        max_length=20_000, help_text="Load, as an inline AI workload configuration of SageMaker."
    )
    prompts = serializers.CharField(max_length=64, required=False, help_text="SHA-256 of a prompt set.")
    name = serializers.CharField(max_length=100, default="", allow_blank=True)


class BenchmarkInput(_AssessmentInput):
    """Of a deployment on SageMaker."""

    deployment = serializers.CharField(max_length=36)


class RecommendationInput(_AssessmentInput):
    """For a base whose weights lie in S3."""

    base_model = serializers.CharField(max_length=63)
    target = serializers.CharField(max_length=40, help_text="Name of a target of kind sagemaker.")
    best_by = serializers.ChoiceField(choices=Assessment.Metric.choices, source="metric")
    weights = serializers.CharField(max_length=1000, required=False)
    framework = serializers.ChoiceField(choices=[(item, item) for item in FRAMEWORKS], required=False)
    instance_types = serializers.ListField(
        child=serializers.CharField(max_length=40), required=False, max_length=MOST_TYPES
    )
    optimize = serializers.BooleanField(
        required=False, help_text="Whether SageMaker may also optimize the model."
    )
    adapters = serializers.ListField(
        child=serializers.CharField(max_length=300),
        required=False,
        max_length=MOST_ADAPTERS,
        help_text="Ready versions to deploy with the base model: tenant/adapter@v3, or engine names.",
    )
