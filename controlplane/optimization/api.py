"""REST API of optimization jobs (staff)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import generics, status
from rest_framework.parsers import MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import BaseSerializer
from rest_framework.views import APIView

from contracts.recipes.recipe import Preset, Recipe
from controlplane.catalog.selectors import base_model_get
from controlplane.deployments.rollouts.serializers import DeploymentRolloutSerializer
from controlplane.deployments.selectors import deployment_get
from controlplane.errors import InvalidInputError
from controlplane.optimization.deploying import job_deploy, job_take_back
from controlplane.optimization.filters import WorkFilter
from controlplane.optimization.merging import adapter_to_merge
from controlplane.optimization.models import OptimizationJob, PromptSet, WorkEvent
from controlplane.optimization.preset_runs import preset_runs
from controlplane.optimization.prompt_sets import prompts_create, prompts_remove
from controlplane.optimization.recipes import machine_of, recipe_of_preset, recipe_read, recipe_refusals
from controlplane.optimization.sagemaker.jumpstart import AS_OF, JUMPSTART_MODELS, SOURCE
from controlplane.optimization.sagemaker.options import RemoteOptions
from controlplane.optimization.selectors import event_list, job_get, job_list, prompts_get, prompts_list
from controlplane.optimization.serializers import (
    JumpStartTableSerializer,
    OptimizationDeployInput,
    OptimizationInput,
    OptimizationResultSerializer,
    OptimizationSerializer,
    OptimizationTakeBackInput,
    PresetSerializer,
    PromptSetInput,
    PromptSetSerializer,
    RecipeCheckInput,
    RecipeCheckSerializer,
    RecipeTargetInput,
    WorkEventSerializer,
)
from controlplane.optimization.services import job_create, job_remove, work_cancel
from controlplane.platform.http.object_api import ObjectApi, conditional
from controlplane.platform.idempotency.api import idempotent
from controlplane.tenants.permissions import Staff

LIVE: Final = frozenset({"percent", "eta_seconds", "log_tail", "progress_at", "phase"})
"""Fields that progress alone changes. The ETag leaves them out, so progress fails no `If-Match`."""


def recipe_of(values: Mapping[str, Any]) -> Recipe:
    """Read the recipe from a body with `recipe`, or with `preset` and `target`. Raises InvalidInputError."""
    if ("recipe" in values) == ("preset" in values):
        raise InvalidInputError("either recipe, or preset with target, is required", field="recipe")
    if "recipe" in values:
        if "target" in values:
            raise InvalidInputError(
                "target is valid only with preset; a recipe includes its target", field="target"
            )
        return recipe_read(values["recipe"])
    return recipe_of_preset(values["preset"], values.get("target", {}))


class PromptSetsApi(generics.ListAPIView[PromptSet]):
    permission_classes = (Staff,)
    serializer_class = PromptSetSerializer
    parser_classes = (MultiPartParser,)

    def get_queryset(self) -> QuerySet[PromptSet]:
        return prompts_list()

    @idempotent(atomic=False)
    @extend_schema(request={"multipart/form-data": PromptSetInput}, responses={201: PromptSetSerializer})
    def post(self, request: Request) -> Response:
        """Stores a JSONL file under the digest of its content; the same file again returns the same set."""
        data = PromptSetInput(data=request.data)
        data.is_valid(raise_exception=True)
        file = data.validated_data["file"]
        prompts = prompts_create(stream=file, name=data.validated_data["name"] or (file.name or ""))
        return Response(PromptSetSerializer(prompts).data, status.HTTP_201_CREATED)


class PromptSetApi(ObjectApi[PromptSet]):
    permission_classes = (Staff,)
    serializer_class = PromptSetSerializer

    def get_object(self) -> PromptSet:
        return prompts_get(sha256=self.kwargs["sha256"])

    @conditional()
    def get(self, request: Request, sha256: str) -> Response:
        return Response(PromptSetSerializer(self.get_object()).data)

    @conditional()
    @extend_schema(responses={204: None})
    def delete(self, request: Request, sha256: str) -> Response:
        """Removes the prompt set; refused (409) while a job or comparison refers to it."""
        prompts_remove(prompts=self.get_object())
        return Response(status=status.HTTP_204_NO_CONTENT)


class PresetsApi(APIView):
    permission_classes = (Staff,)

    @extend_schema(parameters=[RecipeTargetInput], responses=PresetSerializer(many=True))
    def get(self, request: Request) -> Response:
        """Lists the presets for a target, each with its stored runs on the demo model."""
        target = RecipeTargetInput(data=request.query_params.dict())
        target.is_valid(raise_exception=True)
        recipes = {preset: recipe_of_preset(preset.value, target.validated_data) for preset in Preset}
        rows = [
            {
                "name": name.value,
                "recipe": recipe.to_dict(),
                "recipe_sha256": recipe.digest,
                "stored_runs": preset_runs(name, recipe),
            }
            for name, recipe in recipes.items()
        ]
        return Response(PresetSerializer(rows, many=True).data)


class JumpStartModelsApi(APIView):
    permission_classes = (Staff,)

    @extend_schema(responses=JumpStartTableSerializer)
    def get(self, request: Request) -> Response:
        """Lists JumpStart models with SageMaker's optimizations for each, with date and source."""
        table = {"source": SOURCE, "as_of": AS_OF, "models": JUMPSTART_MODELS}
        return Response(JumpStartTableSerializer(table).data)


class RecipeCheckApi(APIView):
    permission_classes = (Staff,)

    @idempotent()
    @extend_schema(request=RecipeCheckInput, responses=RecipeCheckSerializer)
    def post(self, request: Request) -> Response:
        """Checks a recipe against a base model and returns every reason against it; starts nothing."""
        data = RecipeCheckInput(data=request.data)
        data.is_valid(raise_exception=True)
        values = data.validated_data
        recipe = recipe_of(values)
        base_model = base_model_get(name=values["base_model"])
        found = recipe_refusals(recipe, base_model, values.get("situation"))
        told = {
            "accepted": not found,
            "reasons": [{"code": reason.code, "text": reason.text} for reason in found],
            "recipe": recipe.to_dict(),
            "recipe_sha256": recipe.digest,
            "machine": machine_of(recipe),
        }
        return Response(RecipeCheckSerializer(told).data)


class OptimizationsApi(generics.ListAPIView[OptimizationJob]):
    permission_classes = (Staff,)
    serializer_class = OptimizationSerializer
    filterset_class = WorkFilter

    def get_queryset(self) -> QuerySet[OptimizationJob]:
        return job_list()

    @idempotent()
    @extend_schema(
        request=OptimizationInput, responses={201: OptimizationSerializer, 200: OptimizationSerializer}
    )
    def post(self, request: Request) -> Response:
        """Creates a job; with `adapter`, one that writes a merged copy, which serves that adapter alone.

        Returns 200 instead of 201 with the existing job of this recipe, checkpoint and adapter.
        """
        data = OptimizationInput(data=request.data)
        data.is_valid(raise_exception=True)
        values = data.validated_data
        base_model = base_model_get(name=values["base_model"])
        merged = values.get("adapter", "")
        plain = bool(merged) and not {"recipe", "preset", "target"} & set(values)
        job, made = job_create(
            base_model=base_model,
            adapter=adapter_to_merge(base_model=base_model, name=merged) if merged else None,
            recipe=Recipe() if plain else recipe_of(values),
            prompts=prompts_get(sha256=values["prompts"]) if values.get("prompts") else None,
            variant=values["variant"],
            sagemaker=RemoteOptions.read(values["sagemaker"]) if "sagemaker" in values else None,
        )
        shown = OptimizationSerializer(job_get(pk=job.pk)).data
        return Response(shown, status.HTTP_201_CREATED if made else status.HTTP_200_OK)


class _OneJob(ObjectApi[OptimizationJob]):
    serializer_class: type[BaseSerializer[OptimizationJob]] = OptimizationSerializer
    etag_ignores = LIVE

    def get_object(self) -> OptimizationJob:
        return job_get(pk=self.kwargs["optimization"])


class OptimizationApi(_OneJob):
    permission_classes = (Staff,)

    @conditional()
    def get(self, request: Request, optimization: int) -> Response:
        """Returns the job and its progress. The ETag does not change with progress alone."""
        return Response(OptimizationSerializer(self.get_object()).data)

    @conditional()
    @extend_schema(responses={204: None})
    def delete(self, request: Request, optimization: int) -> Response:
        """Removes a job that has ended, and its variant; its files are deleted when nothing needs them."""
        job_remove(job=self.get_object())
        return Response(status=status.HTTP_204_NO_CONTENT)


class OptimizationCancelApi(_OneJob):
    permission_classes = (Staff,)

    @idempotent()
    @extend_schema(request=None, responses=OptimizationSerializer)
    def post(self, request: Request, optimization: int) -> Response:
        """Cancels the job. Its finished steps are kept for a week, so that the same job can resume."""
        work_cancel(work=self.get_object())
        return Response(OptimizationSerializer(self.get_object()).data)


class OptimizationDeployApi(_OneJob):
    permission_classes = (Staff,)

    @idempotent()
    @extend_schema(request=OptimizationDeployInput, responses={201: DeploymentRolloutSerializer})
    def post(self, request: Request, optimization: int) -> Response:
        """Starts a rollout of the job's variant to a deployment of the same base model."""
        data = OptimizationDeployInput(data=request.data)
        data.is_valid(raise_exception=True)
        values = data.validated_data
        rollout = job_deploy(
            job=self.get_object(),
            deployment=deployment_get(name=values["deployment"]),
            strategy=values.get("strategy", ""),
            policy=values.get("policy"),
        )
        return Response(DeploymentRolloutSerializer(rollout).data, status.HTTP_201_CREATED)


class OptimizationTakeBackApi(_OneJob):
    permission_classes = (Staff,)

    @idempotent()
    @extend_schema(request=OptimizationTakeBackInput, responses={201: DeploymentRolloutSerializer})
    def post(self, request: Request, optimization: int) -> Response:
        """Reverts a deployment to what it served before: aborts the rollout, or starts a reverse one."""
        data = OptimizationTakeBackInput(data=request.data)
        data.is_valid(raise_exception=True)
        deployment = deployment_get(name=data.validated_data["deployment"])
        rollout = job_take_back(job=self.get_object(), deployment=deployment)
        return Response(DeploymentRolloutSerializer(rollout).data, status.HTTP_201_CREATED)


class OptimizationResultApi(_OneJob):
    permission_classes = (Staff,)
    serializer_class = OptimizationResultSerializer

    @conditional()
    def get(self, request: Request, optimization: int) -> Response:
        """Returns the job's result: digest, bytes, serving flags and files."""
        return Response(OptimizationResultSerializer(self.get_object()).data)


class OptimizationEventsApi(generics.ListAPIView[WorkEvent]):
    permission_classes = (Staff,)
    serializer_class = WorkEventSerializer
    queryset = WorkEvent.objects.none()

    def get_queryset(self) -> QuerySet[WorkEvent]:
        return event_list(work=job_get(pk=self.kwargs["optimization"]))
