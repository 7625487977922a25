"""Optimization jobs, comparisons and prompt sets as JSON."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from contracts.recipes.recipe import Preset
from controlplane.deployments.models import DeploymentRollout
from controlplane.optimization.instance_rates import rates_of
from controlplane.optimization.models import ComparisonRun, Machine, OptimizationJob, PromptSet, WorkEvent
from controlplane.platform.http.strict import StrictSerializer

PROGRESS = (
    "status",
    "reason",
    "error_code",
    "machine",
    "host",
    "phase",
    "percent",
    "eta_seconds",
    "log_tail",
    "progress_at",
    "attempts",
    "cancel_asked_at",
    "created_by",
    "created_at",
    "started_at",
    "ended_at",
)


class PromptSetSerializer(serializers.ModelSerializer[PromptSet]):
    bundled = serializers.SerializerMethodField(help_text="True if the set comes with Graftwork.")

    class Meta:
        model = PromptSet
        fields = ("sha256", "name", "lines", "size", "bundled", "created_by", "created_at")

    def get_bundled(self, prompts: PromptSet) -> bool:
        return prompts.bundled is not None


class PromptSetInput(StrictSerializer):
    """Lines of JSON, each an object with one of `text`, `prompt` and `messages`."""

    file = serializers.FileField()
    name = serializers.CharField(max_length=100, default="", allow_blank=True)


class OptimizationSerializer(serializers.ModelSerializer[OptimizationJob]):
    id = serializers.IntegerField(source="pk")
    base_model = serializers.CharField(source="base_model.name")
    recipe = serializers.DictField()
    prompts = serializers.CharField(source="prompts_id", allow_null=True)
    variant = serializers.CharField(
        source="variant.name",
        allow_null=True,
        default=None,
        help_text="Variant in the catalogue; null until registered.",
    )
    adapter = serializers.CharField(
        source="adapter.name",
        allow_null=True,
        default=None,
        help_text="Engine name of the adapter that is merged into the weights; null for none.",
    )
    artifact_sha256 = serializers.CharField(source="artifact_id", allow_null=True)
    artifact_uri = serializers.CharField(source="artifact.uri", allow_null=True, default=None)
    artifact_bytes = serializers.IntegerField(source="artifact.size", allow_null=True, default=None)
    lineage = serializers.DictField()
    target = serializers.CharField(source="target.name", allow_null=True, default=None)
    remote = serializers.DictField(
        help_text="sagemaker: `options` of the request, and `told`, the observed job."
    )

    class Meta:
        model = OptimizationJob
        fields = (
            "id",
            "base_model",
            "checkpoint_sha256",
            "recipe",
            "recipe_sha256",
            "engine",
            "prompts",
            "adapter",
            "variant_name",
            "variant",
            "artifact_sha256",
            "artifact_uri",
            "artifact_bytes",
            "lineage",
            "target",
            "remote",
            *PROGRESS,
        )


class RecipeTargetInput(StrictSerializer):
    """Target of a preset, with the fields of a recipe's `target`: docs/optimization.md."""

    engine = serializers.CharField(max_length=20, required=False)
    hardware = serializers.CharField(max_length=20, required=False)
    instance_type = serializers.CharField(max_length=60, required=False)


class RemoteOptionsInput(StrictSerializer):
    """Account and options with which SageMaker runs a recipe: docs/optimization.md."""

    target = serializers.CharField(max_length=40, help_text="Name of a target of kind sagemaker.")
    weights = serializers.CharField(
        max_length=1000,
        required=False,
        help_text="s3:// prefix of weights that replace the base's, such as JumpStart's.",
    )
    model = serializers.CharField(
        max_length=63, required=False, help_text="SageMaker model that replaces the weights."
    )
    accept_eula = serializers.BooleanField(required=False)
    image = serializers.CharField(max_length=255, required=False)
    environment = serializers.DictField(child=serializers.CharField(max_length=256), required=False)
    hours = serializers.IntegerField(required=False)


class OptimizationInput(StrictSerializer):
    """`recipe`, or `preset` with `target`; for a merged copy `adapter`, alone or with `recipe`."""

    base_model = serializers.CharField(max_length=63)
    recipe = serializers.DictField(required=False, help_text="See docs/optimization.md.")
    preset = serializers.ChoiceField(choices=[(name.value, name.value) for name in Preset], required=False)
    target = RecipeTargetInput(required=False)
    prompts = serializers.CharField(
        max_length=64,
        required=False,
        help_text="SHA-256 of a prompt set for calibration. Default: the bundled set.",
    )
    variant = serializers.CharField(
        max_length=63,
        default="",
        allow_blank=True,
        help_text="Name of the resulting variant; derived from recipe and adapter if empty.",
    )
    adapter = serializers.CharField(
        max_length=160,
        required=False,
        help_text="Adapter version to merge into the weights: tenant/adapter@v3, or its engine name.",
    )
    sagemaker = RemoteOptionsInput(required=False)


class RecipeCheckInput(StrictSerializer):
    """`recipe`, or `preset` with `target`."""

    base_model = serializers.CharField(max_length=63)
    recipe = serializers.DictField(required=False)
    preset = serializers.ChoiceField(choices=[(name.value, name.value) for name in Preset], required=False)
    target = RecipeTargetInput(required=False)
    situation = serializers.DictField(
        child=serializers.BooleanField(),
        required=False,
        help_text="merge_adapter, inference_components, custom_inference_script, local_testing,"
        " fine_tuned_outside_jumpstart",
    )


class ReasonSerializer(serializers.Serializer[Any]):
    code = serializers.CharField()
    text = serializers.CharField()


class RecipeCheckSerializer(serializers.Serializer[Any]):
    accepted = serializers.BooleanField()
    reasons = ReasonSerializer(many=True, help_text="All reasons against the recipe.")
    recipe = serializers.DictField(help_text="Complete recipe with defaults filled in.")
    recipe_sha256 = serializers.CharField()
    machine = serializers.ChoiceField(
        choices=Machine.choices, help_text="Kind of machine, which decides the queue."
    )


class PresetSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    recipe = serializers.DictField()
    recipe_sha256 = serializers.CharField()
    stored_runs = serializers.ListField(
        child=serializers.DictField(),
        help_text="Speed, size and perplexity of this recipe on the demo model, with machine and date;"
        " a run for each kind of processor, or none. See docs/optimization.md.",
    )


class JumpStartModelSerializer(serializers.Serializer[Any]):
    model_id = serializers.CharField(help_text="JumpStart's identifier.")
    name = serializers.CharField()
    quantization = serializers.ListField(
        child=serializers.CharField(), help_text="Formats, as AWS names them."
    )
    schemes = serializers.ListField(
        child=serializers.CharField(), help_text="The same as values of a recipe's `quantization`."
    )
    speculative_decoding = serializers.BooleanField()
    fast_model_loading = serializers.BooleanField(help_text="Whether weights can be sharded ahead of time.")
    compilation = serializers.ListField(
        child=serializers.CharField(), help_text="Compilers: neuron, tensorrt_llm."
    )


class JumpStartTableSerializer(serializers.Serializer[Any]):
    source = serializers.CharField(help_text="Where AWS publishes the table.")  # type: ignore[assignment]  # a field of ours, not DRF's attribute
    as_of = serializers.DateField(help_text="Day on which these rows were read there.")
    models = JumpStartModelSerializer(many=True)


class OptimizationResultSerializer(serializers.ModelSerializer[OptimizationJob]):
    result = serializers.DictField(allow_null=True, help_text="Result: digest, bytes, serve.")
    files = serializers.DictField(
        source="artifact.files",
        allow_null=True,
        default=None,
        help_text="SHA-256 by path within the artifact.",
    )

    class Meta:
        model = OptimizationJob
        fields = ("status", "result", "files")


class OptimizationDeployInput(StrictSerializer):
    deployment = serializers.CharField(max_length=36)
    strategy = serializers.ChoiceField(
        choices=DeploymentRollout.Strategy.choices,
        required=False,
        help_text="Rollout strategy. Default: canary; rolling on SageMaker.",
    )
    policy = serializers.DictField(required=False, help_text="Rollout policy; see docs/rollouts.md.")


class OptimizationTakeBackInput(StrictSerializer):
    deployment = serializers.CharField(max_length=36)


class WorkEventSerializer(serializers.ModelSerializer[WorkEvent]):
    class Meta:
        model = WorkEvent
        fields = ("at", "event", "detail", "actor")


class ComparedArmSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    variant = serializers.CharField(help_text="Variant; '' for the base's own checkpoint.")


class ComparisonSerializer(serializers.ModelSerializer[ComparisonRun]):
    id = serializers.IntegerField(source="pk")
    base_model = serializers.CharField(source="base_model.name")
    arms = ComparedArmSerializer(many=True)
    settings = serializers.DictField()
    prompts = serializers.CharField(source="prompts_id", allow_null=True)
    texts = serializers.CharField(source="texts_id", allow_null=True)

    class Meta:
        model = ComparisonRun
        fields = ("id", "name", "base_model", "arms", "settings", "prompts", "texts", *PROGRESS)


class ComparedRateSerializer(serializers.Serializer[Any]):
    """A row of the table of instance prices that the comparison's prices come from."""

    arm = serializers.CharField(help_text="Arm; '' for the common price.")
    instance_type = serializers.CharField()
    region = serializers.CharField()
    plan = serializers.CharField()
    hour = serializers.FloatField(help_text="In `currency`.")
    currency = serializers.CharField()
    source = serializers.CharField(help_text="Where the rate is published.")  # type: ignore[assignment]  # a field of ours, not DRF's attribute
    effective_from = serializers.DateField(help_text="UTC day.")


class ComparisonResultSerializer(serializers.ModelSerializer[ComparisonRun]):
    result = serializers.DictField(allow_null=True, help_text="See docs/optimization.md.")
    rates = serializers.SerializerMethodField()

    class Meta:
        model = ComparisonRun
        fields = ("status", "result", "rates")

    @extend_schema_field(ComparedRateSerializer(many=True))
    def get_rates(self, comparison: ComparisonRun) -> list[dict[str, Any]]:
        return rates_of(comparison.arms, comparison.settings)
