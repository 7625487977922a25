"""A recipe as the body of CreateOptimizationJob. Pure: the same job gives the same body."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from contracts.recipes.recipe import OWN_DRAFT, Drafting, Hardware, Quantization, Recipe
from controlplane.deployments.containers.channels import DRAFT_CHANNEL, channel_folder
from controlplane.deployments.containers.compiled_engines import sequence_variables
from controlplane.deployments.containers.speculation import speculative_config
from controlplane.deployments.models import Target
from controlplane.deployments.provisioners.sagemaker.names import MANAGED, OWNER
from controlplane.optimization.models import OptimizationJob
from controlplane.optimization.sagemaker.options import RemoteOptions
from controlplane.optimization.serving import COMPILED_DTYPE, speculation_options

_QUANTIZE: Final = {Quantization.AWQ_G128: "awq", Quantization.FP8: "fp8"}


def remote_name(job: OptimizationJob, target: Target) -> str:
    """Return the job's name in SageMaker; it holds the primary key, so that a repeated job differs."""
    return f"gw-{target.owner or 'x'}-optimization-{job.pk}"


def create_request(
    job: OptimizationJob, target: Target, options: RemoteOptions, *, weights: str, output: str, training: str
) -> dict[str, Any]:
    """Build the arguments of `create_optimization_job`.

    Args:
        weights: s3:// prefix of the checkpoint; "" where `options` names a SageMaker model.
        output: s3:// prefix that the result is written below.
        training: s3:// prefix of texts that EAGLE heads are trained with; "" for SageMaker's own.
    """
    recipe = Recipe.from_dict(job.recipe)
    source: dict[str, Any] = {"SageMakerModel": {"ModelName": options.model}}
    if not options.model:
        source = {"S3": {"S3Uri": weights}}
        if options.accept_eula:
            source["S3"]["ModelAccessConfig"] = {"AcceptEula": True}
    tags = {MANAGED: "graftwork", OWNER: target.owner, "graftwork:base-model": job.base_model.name}
    serving = serving_environment(recipe)
    return {
        "OptimizationJobName": remote_name(job, target),
        "RoleArn": target.role_arn,
        "ModelSource": source,
        "DeploymentInstanceType": recipe.target.instance_type,
        "OptimizationConfigs": configs(
            recipe,
            options,
            region=target.region,
            max_model_len=job.base_model.max_model_len,
            training=training,
        ),
        **({"OptimizationEnvironment": serving} if serving else {}),
        "OutputConfig": {"S3OutputLocation": output},
        "StoppingCondition": {"MaxRuntimeInSeconds": options.hours * 3600},
        "Tags": [{"Key": key, "Value": value} for key, value in tags.items() if value],
    }


def configs(
    recipe: Recipe, options: RemoteOptions, *, region: str, max_model_len: int, training: str
) -> list[dict[str, Any]]:
    """Return one entry of OptimizationConfigs for each technique, as `compatibility` counts them."""
    image = options.image_uri(recipe, region)
    degree = recipe.tensor_parallel.degree
    shared = {"OPTION_TENSOR_PARALLEL_DEGREE": str(degree)} if degree > 1 else {}

    def container(variables: Mapping[str, str]) -> dict[str, Any]:
        config = {"OverrideEnvironment": {**shared, **variables, **options.environment}}
        return {"Image": image, **config} if image else config

    found: list[dict[str, Any]] = []
    if recipe.quantization is not Quantization.NONE:
        found.append(
            {"ModelQuantizationConfig": container({"OPTION_QUANTIZE": _QUANTIZE[recipe.quantization]})}
        )
    if recipe.compilation.ahead_of_time:
        found.append({"ModelCompilationConfig": container(_compiled(recipe, max_model_len))})
    if recipe.tensor_parallel.presharded:
        found.append({"ModelShardingConfig": container({})})
    if recipe.speculation.method is Drafting.EAGLE:
        eagle: dict[str, Any] = {"Technique": "EAGLE"}
        if training:
            eagle["TrainingDataSource"] = {"S3Uri": training, "S3DataType": "S3Prefix"}
        found.append({"ModelSpeculativeDecodingConfig": eagle})
    return found


def serving_environment(recipe: Recipe) -> dict[str, str]:
    """Return the variables of the container that serves the result, as the job records them."""
    if recipe.speculation.draft_model == OWN_DRAFT:
        return {"OPTION_SPECULATIVE_DRAFT_MODEL": f"{channel_folder(DRAFT_CHANNEL)}/"}
    options = speculation_options(recipe)
    if not options:
        return {}
    config = speculative_config(
        options["speculation"], options["speculation_tokens"], options.get("draft_model", "")
    )
    return {"OPTION_SPECULATIVE_CONFIG": config}


def _compiled(recipe: Recipe, max_model_len: int) -> dict[str, str]:
    """Return the variables that fix the shapes of the compiled model."""
    tokens, sequences = recipe.compiled_shape(max_model_len)
    return {
        "OPTION_TENSOR_PARALLEL_DEGREE": str(recipe.tensor_parallel.degree),
        "OPTION_MAX_ROLLING_BATCH_SIZE": str(sequences),
        "OPTION_DTYPE": COMPILED_DTYPE,
        **sequence_variables(tokens, neuron=recipe.target.hardware is Hardware.NEURON),
    }
