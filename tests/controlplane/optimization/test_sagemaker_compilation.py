"""Compilation by SageMaker with TensorRT-LLM and Neuron, and deployments of the compiled variants."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from controlplane.catalog.models import BaseModel
from controlplane.deployments.containers.images import IMAGES
from controlplane.deployments.models import Deployment, DeploymentRollout, Target
from controlplane.deployments.services import deployment_create
from controlplane.errors import InvalidInputError
from controlplane.optimization.deploying import job_deploy, job_take_back
from controlplane.optimization.models import OptimizationJob
from controlplane.tenants.services import user_create
from tests.controlplane.deployments.conftest import aws_models_are_parsed_once  # noqa: F401
from tests.controlplane.optimization.sagemaker_jobs import AWQ, advance, create_job, until
from tests.sagemaker_local.stand import REGION, Stand

pytestmark = [pytest.mark.django_db, pytest.mark.costly("jobs at the local SageMaker")]
COMPILED: dict[str, Any] = {
    "compilation": {"ahead_of_time": True, "sequence_length": 16, "batch_size": 4},
    "tensor_parallel": {"degree": 2},
    "target": AWQ["target"],
}
NEURON: dict[str, Any] = COMPILED | {
    "target": {"engine": "sagemaker", "hardware": "neuron", "instance_type": "ml.inf2.48xlarge"}
}
TENSORRT_LLM = "tensorrtllm-0.33.0"


def done(stand: Stand, job: OptimizationJob) -> OptimizationJob:
    stand.advance(11)
    advance(job)
    stand.advance(200)
    return until(job, "done")


def deploy(target: Target, base: BaseModel, **values: Any) -> Deployment:
    wanted: dict[str, Any] = {"instance_type": "ml.g5.12xlarge", "hosting": "fused"} | values
    row = deployment_create(name="tiny", target=target, base_model=base, **wanted)
    Deployment.objects.filter(pk=row.pk).update(status=Deployment.Status.SERVING)
    return row


def configs(stand: Stand, job: OptimizationJob) -> list[dict[str, Any]]:
    """The job's OptimizationConfigs, as the account has them."""
    made = stand.client("sagemaker").describe_optimization_job(OptimizationJobName=job.remote["told"]["name"])
    found: list[dict[str, Any]] = made["OptimizationConfigs"]
    return found


def test_gpus_are_compiled_for_with_tensorrt_llm(stand: Stand, target: Target, tiny_base: BaseModel) -> None:
    job = advance(create_job(tiny_base, COMPILED))
    assert configs(stand, job) == [
        {
            "ModelCompilationConfig": {
                "Image": IMAGES[TENSORRT_LLM].uri(REGION),
                "OverrideEnvironment": {
                    "OPTION_TENSOR_PARALLEL_DEGREE": "2",
                    "OPTION_MAX_ROLLING_BATCH_SIZE": "4",
                    "OPTION_MAX_INPUT_LEN": "16",
                    "OPTION_MAX_OUTPUT_LEN": "16",
                    "OPTION_DTYPE": "bf16",
                },
            }
        }
    ]


def test_quantization_and_compilation_for_gpus_are_one_job_in_one_image(
    stand: Stand, target: Target, tiny_base: BaseModel
) -> None:
    job = advance(create_job(tiny_base, AWQ | COMPILED))
    quantized, compiled = configs(stand, job)
    assert quantized["ModelQuantizationConfig"]["OverrideEnvironment"]["OPTION_QUANTIZE"] == "awq"
    images = {settings["Image"] for config in (quantized, compiled) for settings in config.values()}
    assert images == {IMAGES[TENSORRT_LLM].uri(REGION)}


def test_the_compiled_variant_brings_its_image_and_shapes_and_takes_them_away(
    stand: Stand, target: Target, tiny_base: BaseModel
) -> None:
    deployment = deploy(target, tiny_base, options={"trust_remote_code": True})
    job = done(stand, advance(create_job(tiny_base, COMPILED)))
    rollout = job_deploy(job=job, deployment=deployment)
    assert (rollout.after["image"], rollout.after["image_family"]) == (TENSORRT_LLM, "lmi")
    assert rollout.after["options"] == {
        "trust_remote_code": True,
        "max_model_len": 16,
        "max_rolling_batch_size": 4,
        "dtype": "bf16",
        "tensor_parallel": 2,
    }
    assert rollout.after["compute"]["accelerators"] == 2
    DeploymentRollout.objects.update(status="completed")
    back = job_take_back(job=job, deployment=deployment)
    assert (back.after["image"], back.after["options"]) == ("lmi-0.38.0", {"trust_remote_code": True})


def test_a_compiled_variant_is_deployed_to_its_instances_and_without_adapters(
    stand: Stand, target: Target, tiny_base: BaseModel
) -> None:
    job = done(stand, advance(create_job(tiny_base, COMPILED)))
    deployment = deploy(target, tiny_base, instance_type="ml.g6.12xlarge")
    with pytest.raises(InvalidInputError, match=r"compiled for ml\.g5\.12xlarge, and tiny runs on ml\.g6"):
        job_deploy(job=job, deployment=deployment)
    Deployment.objects.update(instance_type="ml.g5.12xlarge", hosting="components")
    with pytest.raises(InvalidInputError, match="choose an lmi image, or hosting fused"):
        job_deploy(job=job, deployment=deployment)


def test_neuron_s_variant_brings_its_image_too(stand: Stand, target: Target, tiny_base: BaseModel) -> None:
    job = done(stand, advance(create_job(tiny_base, NEURON)))
    deployment = deploy(target, tiny_base, instance_type="ml.inf2.48xlarge")
    rollout = job_deploy(job=job, deployment=deployment)
    assert rollout.after["image"] == "neuronx-0.30.0"
    assert rollout.after["options"]["tensor_parallel"] == 2


@pytest.mark.parametrize(
    ("recipe", "says"),
    [
        (COMPILED | {"speculation": {"method": "ngram"}}, "compilation together with speculation"),
        (COMPILED | {"tensor_parallel": {"degree": 2, "presharded": True}}, "holds the shards"),
        (NEURON | {"quantization": "awq_int4_g128"}, "are for GPUs: leave quantization at none"),
        (NEURON | {"target": NEURON["target"] | {"instance_type": "ml.g5.12xlarge"}}, "does not have the"),
    ],
)
def test_combinations_that_the_service_refuses_are_refused_before(
    target: Target, tiny_base: BaseModel, recipe: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidInputError, match=says):
        create_job(tiny_base, recipe)


def test_llama_after_3_0_is_not_compiled_for_gpus(target: Target, tiny_base: BaseModel) -> None:
    BaseModel.objects.update(name="llama-3.1-8b")
    tiny_base.refresh_from_db()
    with pytest.raises(InvalidInputError, match=r"Llama models up to 3\.0 for GPUs, not llama-3\.1-8b"):
        create_job(tiny_base, COMPILED)


def test_the_form_compiles_for_gpus_on_several_devices(target: Target, tiny_base: BaseModel) -> None:
    client = Client()
    client.force_login(user_create(email="s@graft.test", password="long-enough-7", is_staff=True))
    form = {
        "base_model": tiny_base.name,
        "preset": "own",
        "hardware": "sm86",
        "account": "aws",
        "instance_type": "ml.g5.12xlarge",
        "degree": "4",
        "ahead_of_time": "1",
        "sequence_length": "16",
    }
    assert client.post("/staff/optimizations/new", form).status_code == 302
    job = OptimizationJob.objects.get()
    assert job.recipe["tensor_parallel"] == {"degree": 4, "presharded": False}
    assert job.recipe["compilation"]["ahead_of_time"]
