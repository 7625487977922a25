"""Serializers of deployments."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from controlplane.deployments.containers.images import Family
from controlplane.deployments.models import Deployment, DeploymentStep, Placement
from controlplane.deployments.phases.selectors import warnings_of
from controlplane.deployments.placement.placements import unserved_adapters
from controlplane.deployments.sizing.fallback_types import MOST_FALLBACKS
from controlplane.platform.http.strict import StrictSerializer


class ResourceSerializer(serializers.Serializer[Any]):
    kind = serializers.CharField()
    name = serializers.CharField()
    state = serializers.CharField(
        help_text="State of the resource: starting, ready, changing, failed or leaving."
    )
    reason = serializers.CharField(allow_blank=True)
    has = serializers.DictField(
        child=serializers.CharField(),
        default=dict,
        help_text="Observed properties: copies, base, image, instance_type.",
    )
    stale = serializers.BooleanField(
        default=False,
        help_text="Whether the resource differs from the desired state, such as during a rollout.",
    )


class DeploymentSerializer(serializers.ModelSerializer[Deployment]):
    target = serializers.CharField(source="target.name")
    base_model = serializers.CharField(source="base_model.name")
    resources = ResourceSerializer(many=True, help_text="Resources at the last observation.")
    copies: serializers.SlugRelatedField[Any] = serializers.SlugRelatedField(
        slug_field="id", many=True, read_only=True
    )
    fallback_instance_types = serializers.ListField(child=serializers.CharField())
    urls = serializers.ListField(
        child=serializers.CharField(), help_text="Server URLs; empty for the target's URLs."
    )
    options = serializers.DictField()
    environment = serializers.DictField(child=serializers.CharField())
    compute = serializers.DictField(help_text="Compute requirements of one copy, explained in `reasons`.")
    warnings = serializers.SerializerMethodField()

    @extend_schema_field(serializers.ListField(child=serializers.CharField()))
    def get_warnings(self, deployment: Deployment) -> list[str]:
        # One list of warnings may read all adapters of the base model, so a list of deployments has none.
        unserved = "" if getattr(self, "parent", None) is not None else unserved_adapters(deployment)
        return [*warnings_of(deployment), *([unserved] if unserved else [])]

    class Meta:
        model = Deployment
        fields = (
            "name",
            "target",
            "base_model",
            "hosting",
            "endpoint",
            "min_copies",
            "max_copies",
            "instance_type",
            "fallback_instance_types",
            "min_instances",
            "max_instances",
            "variant",
            "merged_adapter",
            "urls",
            "image",
            "image_family",
            "options",
            "environment",
            "compute",
            "adapter_scope",
            "generation",
            "status",
            "reason",
            "resources",
            "copies",
            "observed_generation",
            "observed_at",
            "next_at",
            "created_by",
            "created_at",
            "removal_asked_at",
            "warnings",
        )


class DesiredInput(StrictSerializer):
    """Fields of a deployment that can be changed later."""

    min_copies = serializers.IntegerField(min_value=0, max_value=1000, required=False)
    max_copies = serializers.IntegerField(
        min_value=1, max_value=1000, required=False, help_text="Upper bound for autoscaling."
    )
    instance_type = serializers.CharField(max_length=40, required=False)
    fallback_instance_types = serializers.ListField(
        child=serializers.CharField(max_length=40),
        required=False,
        max_length=MOST_FALLBACKS,
        help_text="sagemaker: types that are tried in this order while AWS has no instance_type to give.",
    )
    min_instances = serializers.IntegerField(min_value=0, max_value=1000, required=False)
    max_instances = serializers.IntegerField(min_value=1, max_value=1000, required=False)
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
        help_text="openai_http: server URLs that replace the target's.",
    )
    image = serializers.CharField(
        max_length=400,
        required=False,
        help_text="Container image: a name from the table in docs/deployments.md, or an address.",
    )
    image_family = serializers.ChoiceField(
        choices=[(item.value, item.value) for item in Family],
        required=False,
        help_text="Family of an image that is given by address.",
    )
    options = serializers.DictField(required=False, help_text="LMI options; see docs/deployments.md.")
    environment = serializers.DictField(child=serializers.CharField(max_length=1024), required=False)
    compute = serializers.DictField(
        child=serializers.FloatField(),
        required=False,
        help_text="Compute requirements of a copy: accelerators, cpus, memory_mb, max_memory_mb."
        " Default: computed from the checkpoint, with a KV cache for `concurrency` sequences of full length,"
        " which is max_rolling_batch_size unless stated.",
    )
    adapter_scope = serializers.ChoiceField(choices=Deployment.Scope.choices, required=False)


class DeploymentInput(DesiredInput):
    name = serializers.CharField(max_length=36)
    target = serializers.CharField(max_length=40)
    base_model = serializers.CharField(max_length=63)
    hosting = serializers.ChoiceField(
        choices=Deployment.Hosting.choices, required=False, help_text="How adapters reach the copies."
    )
    endpoint = serializers.CharField(
        max_length=54,
        required=False,
        help_text="sagemaker: name of an endpoint that several base models share.",
    )


class PlacementSerializer(serializers.ModelSerializer[Placement]):
    adapter = serializers.CharField(source="engine_name")

    class Meta:
        model = Placement
        fields = ("adapter", "rank", "resource", "status", "reason", "leaves_at", "created_at")


class DeploymentStepSerializer(serializers.ModelSerializer[DeploymentStep]):
    class Meta:
        model = DeploymentStep
        fields = ("at", "action", "resource", "outcome", "cause", "actor", "seconds")
