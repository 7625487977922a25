"""Check a SageMaker job's options against its recipe: each has an effect, or is refused by name."""

from __future__ import annotations

from typing import Final

from contracts.recipes.recipe import Hardware, Recipe
from controlplane.deployments.containers.images import NEURON_IMAGE, TENSORRT_LLM_IMAGE
from controlplane.errors import InvalidInputError
from controlplane.optimization.sagemaker.options import RemoteOptions
from controlplane.optimization.sagemaker.request import configs

MOST_VARIABLES: Final = 25
"""SageMaker's limit of environment variables per container, including the recipe's own."""
_OF_RECIPE: Final = {
    "OPTION_QUANTIZE": "quantization",
    "OPTION_TENSOR_PARALLEL_DEGREE": "tensor_parallel.degree",
    "OPTION_N_POSITIONS": "compilation.sequence_length",
    "OPTION_MAX_INPUT_LEN": "compilation.sequence_length",
    "OPTION_MAX_OUTPUT_LEN": "compilation.sequence_length",
    "OPTION_MAX_ROLLING_BATCH_SIZE": "compilation.batch_size",
}
"""Fields of a recipe by the variables that they become."""


def remote_options_check(recipe: Recipe, options: RemoteOptions, *, region: str, max_model_len: int) -> None:
    """Check that every option has an effect on the recipe's job.

    Raises:
        InvalidInputError: an option would have no effect, replaces a value of the recipe, or exceeds
            SageMaker's limits; the message says what to do.
    """
    techniques = configs(
        recipe, RemoteOptions(options.target), region=region, max_model_len=max_model_len, training=""
    )
    if not techniques:
        _check_without_job(options)
    containers = {
        kind: config["OverrideEnvironment"]
        for technique in techniques
        for kind, config in technique.items()
        if "OverrideEnvironment" in config
    }
    if techniques and not containers:
        _check_without_container(options)
    for kind, variables in containers.items():
        _check_variables(kind, variables, options)
    _check_image(recipe, options)


def _check_without_job(options: RemoteOptions) -> None:
    """Refuse settings of a job if the recipe only changes how the model is served."""
    remedies = {
        "image": "set image in the deployment of the variant",
        "environment": "set environment in the deployment of the variant",
        "hours": "omit it",
        "accept_eula": "omit it, and accept the license where the weights are downloaded",
    }
    default = RemoteOptions("")
    for name, remedy in remedies.items():
        if getattr(options, name) != getattr(default, name):
            raise _wrong(name, f"has no effect, since this recipe needs no SageMaker job: {remedy}")


def _check_without_container(options: RemoteOptions) -> None:
    """Refuse settings of containers if the job only trains EAGLE heads."""
    for name in ("image", "environment"):
        if getattr(options, name):
            raise _wrong(
                name,
                "has no effect, since SageMaker trains EAGLE heads in a container of its own: omit it, or add"
                " quantization or sharding to the recipe",
            )


def _check_variables(kind: str, variables: dict[str, str], options: RemoteOptions) -> None:
    for name in options.environment:
        if name in variables:
            field = _OF_RECIPE.get(name, "")
            remedy = f"set {field} in the recipe" if field else f"the recipe sets {variables[name]}"
            raise _wrong("environment", f"must not set {name}: {remedy}, so that the variant is served alike")
    if (count := len({**variables, **options.environment})) > MOST_VARIABLES:
        raise _wrong(
            "environment",
            f"is too long: {kind} would have {count} variables with the recipe's own, and SageMaker takes"
            f" {MOST_VARIABLES}",
        )


def _check_image(recipe: Recipe, options: RemoteOptions) -> None:
    """Refuse an image of another engine than the recipe's."""
    image = options.image_of(recipe) if options.image else None
    if image is None:
        return
    neuron, tensorrt_llm = recipe.target.hardware is Hardware.NEURON, recipe.builds_tensorrt_engine
    if (image.neuron, image.tensorrt_llm) == (neuron, tensorrt_llm):
        return
    wanted = "one of LMI with vLLM, such as lmi-0.38.0"
    if neuron:
        wanted = f"one for Neuron, such as {NEURON_IMAGE}"
    elif tensorrt_llm:
        wanted = f"one with TensorRT-LLM, such as {TENSORRT_LLM_IMAGE}"
    raise _wrong("image", f"{options.image} does not carry out this recipe: omit it, or name {wanted}")


def _wrong(name: str, text: str) -> InvalidInputError:
    return InvalidInputError(f"sagemaker.{name} {text}", field=f"sagemaker.{name}")
