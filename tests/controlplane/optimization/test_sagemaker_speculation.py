"""Speculation in SageMaker's jobs, in the variants that they make, and in deployments of those."""

from __future__ import annotations

import json
from typing import Any

import pytest

from contracts.recipes.recipe import Preset
from controlplane.catalog.models import BaseModel
from controlplane.deployments.desired import desired_of
from controlplane.deployments.models import Deployment, DeploymentRollout, Target
from controlplane.deployments.provisioners.sagemaker.archives import Store
from controlplane.deployments.provisioners.sagemaker.services import ServicesAccount
from controlplane.deployments.provisioners.sagemaker.specs import Specs
from controlplane.deployments.services import deployment_create
from controlplane.errors import InvalidInputError
from controlplane.optimization.deploying import job_deploy, job_take_back
from controlplane.optimization.models import OptimizationJob
from controlplane.optimization.recipes import recipe_of_preset
from controlplane.optimization.sagemaker.options import RemoteOptions
from controlplane.optimization.services import job_create
from tests.controlplane.deployments.conftest import aws_models_are_parsed_once  # noqa: F401
from tests.controlplane.optimization.sagemaker_jobs import AWQ, advance, create_job, keys, until
from tests.sagemaker_local.stand import BUCKET, IMAGE, ROLE, Stand

pytestmark = [pytest.mark.django_db, pytest.mark.costly("jobs at the local SageMaker")]
NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
DRAFT_FOLDER = "/opt/ml/additional-model-data-sources/draft_model"


def awq(**speculation: Any) -> dict[str, Any]:
    return {**AWQ, "speculation": speculation}


def done(stand: Stand, job: OptimizationJob) -> OptimizationJob:
    stand.advance(11)
    advance(job)
    stand.advance(200)
    return until(job, "done")


@pytest.fixture
def deployment(target: Target, tiny_base: BaseModel) -> Deployment:
    row = deployment_create(
        name="tiny",
        target=target,
        base_model=tiny_base,
        instance_type="ml.g5.12xlarge",
        options={"max_loras": 8},
    )
    Deployment.objects.filter(pk=row.pk).update(status=Deployment.Status.SERVING)
    return row


@pytest.mark.parametrize(
    ("speculation", "expected"),
    [
        ({"method": "ngram"}, NGRAM),
        (
            {"method": "draft", "draft_model": "s3://bucket/draft/", "tokens": 6},
            {"method": "draft_model", "model": DRAFT_FOLDER, "num_speculative_tokens": 6},
        ),
        (
            {"method": "draft", "draft_model": "hf://org/draft"},
            {"method": "draft_model", "model": "org/draft", "num_speculative_tokens": 4},
        ),
    ],
    ids=["ngram", "draft in S3", "draft of the hub"],
)
def test_a_job_records_how_its_result_speculates_and_a_deployment_does(
    stand: Stand,
    tiny_base: BaseModel,
    deployment: Deployment,
    speculation: dict[str, Any],
    expected: dict[str, Any],
) -> None:
    job = advance(create_job(tiny_base, awq(**speculation)))
    made = stand.client("sagemaker").describe_optimization_job(OptimizationJobName=job.remote["told"]["name"])
    assert list(made["OptimizationEnvironment"]) == ["OPTION_SPECULATIVE_CONFIG"]
    assert json.loads(made["OptimizationEnvironment"]["OPTION_SPECULATIVE_CONFIG"]) == expected
    (config,) = made["OptimizationConfigs"]
    assert config["ModelQuantizationConfig"]["OverrideEnvironment"] == {"OPTION_QUANTIZE": "awq"}
    done(stand, job)

    rollout = job_deploy(job=job, deployment=deployment)
    assert rollout.after["options"]["speculation"] == speculation["method"]
    assert rollout.after["options"]["max_loras"] == 8
    assert rollout.after["options"].get("draft_model") == speculation.get("draft_model")
    DeploymentRollout.objects.update(status="completed")
    back = job_take_back(job=job, deployment=deployment)
    assert (back.after["variant"], back.after["options"]) == ("", {"max_loras": 8})


def model(stand: Stand, name: str, *sources: dict[str, Any]) -> None:
    """A model as JumpStart makes it."""
    stand.client("s3").put_object(Bucket=BUCKET, Key="jumpstart/model.safetensors", Body=b"weights")
    data = {"S3Uri": f"s3://{BUCKET}/jumpstart/", "S3DataType": "S3Prefix", "CompressionType": "None"}
    container = {"Image": IMAGE, "ModelDataSource": {"S3DataSource": data}}
    stand.client("sagemaker").create_model(
        ModelName=name,
        ExecutionRoleArn=ROLE,
        PrimaryContainer=container | ({"AdditionalModelDataSources": list(sources)} if sources else {}),
    )


def draft_source(url: str) -> dict[str, Any]:
    data: dict[str, Any] = {"S3Uri": url, "S3DataType": "S3Prefix", "CompressionType": "None"}
    data["ModelAccessConfig"] = {"AcceptEula": True}
    return {"ChannelName": "draft_model", "S3DataSource": data}


def test_sagemakers_draft_model_is_that_of_jumpstarts_model(
    stand: Stand, tiny_base: BaseModel, deployment: Deployment
) -> None:
    provided = awq(method="draft", draft_model="sagemaker")
    with pytest.raises(InvalidInputError, match=r"sagemaker\.model is required for SageMaker's draft model"):
        create_job(tiny_base, provided)
    model(stand, "js-draft", draft_source("s3://jumpstart/draft/"))
    model(stand, "js-plain")
    without = advance(create_job(tiny_base, provided, model="js-plain"))
    assert (without.status, "has no draft model" in without.reason) == ("failed", True)
    missing = advance(create_job(tiny_base, provided, model="js-none"))
    assert (missing.status, "js-none does not exist" in missing.reason) == ("failed", True)

    job = advance(create_job(tiny_base, provided, model="js-draft"))
    request = job.remote["told"]["request"]
    assert request["ModelSource"] == {"SageMakerModel": {"ModelName": "js-draft"}}
    assert request["OptimizationEnvironment"] == {"OPTION_SPECULATIVE_DRAFT_MODEL": f"{DRAFT_FOLDER}/"}
    assert (done(stand, job).result or {})["draft_model"] == "s3://jumpstart/draft/"
    with pytest.raises(InvalidInputError, match="refused on inference components: take a deployment with"):
        job_deploy(job=job, deployment=deployment)
    Deployment.objects.update(hosting="endpoint", options={})
    served = job_deploy(job=job, deployment=deployment).after["options"]
    assert served == {"speculation": "sagemaker", "draft_model": "s3://jumpstart/draft/", "accept_eula": True}
    deployment.refresh_from_db()
    account = ServicesAccount.from_target(deployment.target)
    store = Store(account, deployment.target, heartbeat=lambda: None)
    specs = Specs.from_target(deployment.target, desired_of(deployment), store)
    account.close()
    container = specs.model["PrimaryContainer"]
    assert container["Environment"]["OPTION_SPECULATIVE_DRAFT_MODEL"] == f"{DRAFT_FOLDER}/"
    (source,) = container["AdditionalModelDataSources"]
    assert source["ChannelName"] == "draft_model"
    data = {"S3DataType": "S3Prefix", "CompressionType": "None", "ModelAccessConfig": {"AcceptEula": True}}
    assert source["S3DataSource"] == {"S3Uri": "s3://jumpstart/draft/", **data}
    assert job.variant is not None
    assert container["ModelDataSource"] == {"S3DataSource": {"S3Uri": job.variant.source, **data}}
    assert container["Environment"]["OPTION_MODEL_ID"] == "/opt/ml/model"


def test_speculation_alone_needs_no_job(stand: Stand, tiny_base: BaseModel, deployment: Deployment) -> None:
    """As document 004 says: there is no optimization involved, and no cost."""
    recipe = {"speculation": {"method": "ngram"}, "target": AWQ["target"]}
    before = keys(stand)
    job = advance(create_job(tiny_base, recipe))
    assert (job.status, job.artifact, job.attempts) == ("done", None, 0)
    assert "no job was needed" in job.reason
    assert job.variant is not None
    assert job.variant.source == tiny_base.source
    assert keys(stand) == before
    listed = stand.client("sagemaker").list_optimization_jobs(NameContains=f"optimization-{job.pk}")
    assert listed["OptimizationJobSummaries"] == []
    assert job_deploy(job=job, deployment=deployment).after["options"]["speculation"] == "ngram"


def test_presets_on_sagemaker_differ(stand: Stand, target: Target, tiny_base: BaseModel) -> None:
    requests = []
    for preset in Preset:
        job, _ = job_create(
            base_model=tiny_base,
            recipe=recipe_of_preset(preset, AWQ["target"]),
            sagemaker=RemoteOptions("aws"),
        )
        told = advance(job).remote.get("told", {}).get("request", {})
        requests.append((bool(told.get("OptimizationConfigs")), "OptimizationEnvironment" in told))
        assert job.status in ("running", "done"), job.reason
    assert requests == [(True, False), (True, True), (False, False)]
    assert OptimizationJob.objects.get(status="done").variant is not None


def test_a_draft_model_on_this_host_is_refused(target: Target, tiny_base: BaseModel) -> None:
    with pytest.raises(InvalidInputError, match="reads draft models from S3 or from the Hugging Face hub"):
        create_job(tiny_base, awq(method="draft", draft_model="/models/draft"))


NGRAM_ALONE = {"speculation": {"method": "ngram"}, "target": AWQ["target"]}
EAGLE = {"speculation": {"method": "eagle"}, "target": AWQ["target"]}


@pytest.mark.parametrize(
    ("recipe", "options", "says"),
    [
        (NGRAM_ALONE, {"image": "lmi-0.36.0"}, "set image in the deployment"),
        (NGRAM_ALONE, {"environment": {"OPTION_X": "1"}}, "set environment in the deployment"),
        (NGRAM_ALONE, {"hours": 2}, "needs no SageMaker job: omit it"),
        (NGRAM_ALONE, {"weights": "s3://bucket/x/", "accept_eula": True}, "accept the license where"),
        (EAGLE, {"image": "lmi-0.36.0"}, "in a container of its own: omit it"),
        (EAGLE, {"environment": {"OPTION_X": "1"}}, "in a container of its own: omit it"),
    ],
)
def test_settings_that_nothing_would_read_are_refused_by_name(
    target: Target, tiny_base: BaseModel, recipe: dict[str, Any], options: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidInputError, match=says) as caught:
        create_job(tiny_base, recipe, **options)
    assert caught.value.field == f"sagemaker.{list(options)[-1]}"


def test_shards_are_served_on_as_many_gpus(
    stand: Stand, tiny_base: BaseModel, deployment: Deployment
) -> None:
    job = advance(create_job(tiny_base, awq(method="ngram") | {"tensor_parallel": {"degree": 2}}))
    done(stand, job)
    assert job_deploy(job=job, deployment=deployment).after["options"]["tensor_parallel"] == 2
