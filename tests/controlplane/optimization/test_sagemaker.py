"""Recipes that the local SageMaker carries out, by boto3: asked for, seen, stopped, failed, registered."""

from __future__ import annotations

import hashlib
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from controlplane.catalog.models import BaseModel
from controlplane.deployments.models import Target
from controlplane.deployments.targets.services import target_remove
from controlplane.errors import ConflictError, InvalidInputError
from controlplane.metering.hosting.present import hosted_now
from controlplane.optimization.artifacts import UNNEEDED_AFTER, artifacts_collect
from controlplane.optimization.claims import LEASE, Claim
from controlplane.optimization.models import Artifact, Attempt, OptimizationJob, PromptSet
from controlplane.optimization.queueing import TASKS, works_sweep
from controlplane.optimization.recipes import recipe_read
from controlplane.optimization.sagemaker.job_poll import GIVE_UP
from controlplane.optimization.sagemaker.options import RemoteOptions
from controlplane.optimization.sagemaker.request import configs
from controlplane.optimization.services import job_remove, work_cancel
from controlplane.platform.task_queues import ROUTES
from controlplane.tenants.services import user_create
from tests.controlplane.deployments.conftest import aws_models_are_parsed_once  # noqa: F401
from tests.controlplane.optimization.sagemaker_jobs import AWQ, advance, create_job, keys, until
from tests.sagemaker_local.stand import BUCKET, IMAGE, REGION, ROLE, Stand

pytestmark = [pytest.mark.django_db, pytest.mark.costly("jobs at the local SageMaker")]


def test_a_recipe_becomes_a_variant_whose_files_lie_where_sagemaker_left_them(
    stand: Stand, target: Target, tiny_base: BaseModel
) -> None:
    job = advance(create_job(tiny_base))
    assert (job.machine, job.status, job.phase) == ("aws", "running", "starting")
    name = job.remote["told"]["name"]
    made = stand.client("sagemaker").describe_optimization_job(OptimizationJobName=name)
    (config,) = made["OptimizationConfigs"]
    assert config["ModelQuantizationConfig"]["OverrideEnvironment"] == {"OPTION_QUANTIZE": "awq"}
    assert "lmi" in config["ModelQuantizationConfig"]["Image"]
    assert made["RoleArn"] == ROLE
    sent = made["ModelSource"]["S3"]["S3Uri"].removeprefix(f"s3://{BUCKET}/")
    assert {key.removeprefix(sent) for key in keys(stand)} == {item.name for item in tiny_base.files.all()}
    stand.advance(11)
    assert (advance(job).phase, job.percent) == ("inprogress", 10.0)
    stand.advance(200)
    until(job, "done")
    assert job.variant is not None
    assert (job.variant.source, job.variant.quantization) == (
        f"s3://{BUCKET}/graft/{target.owner}/optimized/{name}/",
        "awq_int4_g128",
    )
    assert job.artifact is not None
    assert job.artifact.files == {item.name: item.sha256 for item in tiny_base.files.all()}
    assert job.lineage["checkpoint_sha256"] == tiny_base.checkpoint_sha256
    assert job.lineage["output"]["job"].endswith(f":optimization-job/{name.lower()}")
    assert not [key for key in keys(stand) if key.startswith(sent)], "what was put there for it is gone"
    attempt = Attempt.objects.get(subject=f"job-{job.pk}.1")
    assert attempt.ended_at is not None
    assert 90 < (attempt.ended_at - attempt.started_at).total_seconds() <= 210
    assert [item.instance_type for item in hosted_now() if item.kind == "optimization"] == ["ml.g5.12xlarge"]
    with pytest.raises(ConflictError, match="results of optimization jobs"):
        target_remove(target=target)
    job_remove(job=job)
    Artifact.objects.update(needed_at=timezone.now() - UNNEEDED_AFTER - timedelta(minutes=1))
    assert artifacts_collect() == 1
    assert keys(stand) == []
    target_remove(target=target)


def test_sagemakers_model_is_optimized_in_its_place(
    stand: Stand, target: Target, tiny_base: BaseModel, tmp_path: Path
) -> None:
    """As with JumpStart: by the name of the model that it made, or by its prefix and its licence."""
    stand.client("s3").put_object(Bucket=BUCKET, Key="jumpstart/model.safetensors", Body=b"weights")
    data = {
        "S3DataSource": {
            "S3Uri": f"s3://{BUCKET}/jumpstart/",
            "S3DataType": "S3Prefix",
            "CompressionType": "None",
        }
    }
    stand.client("sagemaker").create_model(
        ModelName="js", ExecutionRoleArn=ROLE, PrimaryContainer={"Image": IMAGE, "ModelDataSource": data}
    )
    by_name = advance(create_job(tiny_base, model="js"))
    by_prefix = advance(create_job(tiny_base, weights=f"s3://{BUCKET}/jumpstart/", accept_eula=True))
    source = by_prefix.remote["told"]["request"]["ModelSource"]
    assert source == {"S3": {"S3Uri": f"s3://{BUCKET}/jumpstart/", "ModelAccessConfig": {"AcceptEula": True}}}
    stand.advance(11)
    stand.advance(200)
    digest = hashlib.sha256(b"weights").hexdigest()
    for job in (by_name, by_prefix):
        artifact = until(job, "done").artifact
        assert artifact is not None
        assert artifact.files == {"model.safetensors": digest}
    assert by_name.artifact == by_prefix.artifact
    assert by_name.variant != by_prefix.variant
    outputs = [key for key in keys(stand) if "/optimized/" in key]
    assert len(outputs) == 1, "the same files are kept once"


def test_what_fails_says_why_and_leaves_nothing(stand: Stand, target: Target, tiny_base: BaseModel) -> None:
    job = advance(create_job(tiny_base, weights=f"s3://{BUCKET}/nowhere/"))
    stand.advance(11)
    stand.advance(200)
    until(job, "failed")
    assert "nothing lies there" in job.reason
    assert (job.error_code, job.variant) == ("sagemaker", None)
    again = create_job(tiny_base, weights=f"s3://{BUCKET}/nowhere/")
    assert again.pk != job.pk, "it may be asked for anew"


def test_one_that_is_refused_is_told_at_once(stand: Stand, target: Target, tiny_base: BaseModel) -> None:
    stand.put(
        "faults",
        [
            {
                "kind": "refusal",
                "operation": "CreateOptimizationJob",
                "count": 1,
                "code": "AccessDeniedException",
                "message": "not authorized to perform: sagemaker:CreateOptimizationJob",
                "status": 400,
            }
        ],
    )
    job = advance(create_job(tiny_base, weights=f"s3://{BUCKET}/x/"))
    assert (job.status, job.error_code) == ("failed", "sagemaker")
    assert "CreateOptimizationJob" in job.reason


def test_a_throttled_call_is_made_again(stand: Stand, target: Target, tiny_base: BaseModel) -> None:
    job = advance(create_job(tiny_base, weights=f"s3://{BUCKET}/x/"))
    fault = {"kind": "unavailable", "operation": "DescribeOptimizationJob", "count": 1}
    stand.put("faults", [fault])
    assert advance(job).status == "running"
    assert job.reason
    assert (advance(job).reason, job.lease_owner) == ("", "")
    OptimizationJob.objects.update(next_at=timezone.now() - timedelta(seconds=1))
    assert works_sweep() == 1, "the next look is due by itself"


def test_a_cancel_stops_it_in_the_account(stand: Stand, target: Target, tiny_base: BaseModel) -> None:
    job = advance(create_job(tiny_base, weights=f"s3://{BUCKET}/x/"))
    name = job.remote["told"]["name"]
    work_cancel(work=job)
    assert advance(job).status == "cancelling"
    until(job, "cancelled")
    seen = stand.client("sagemaker").describe_optimization_job(OptimizationJobName=name)
    assert seen["OptimizationJobStatus"] == "STOPPED"
    unsent = create_job(tiny_base, weights=f"s3://{BUCKET}/y/")
    assert work_cancel(work=unsent).status == "cancelled"


def test_one_that_cannot_be_stopped_is_given_up(stand: Stand, target: Target, tiny_base: BaseModel) -> None:
    job = advance(create_job(tiny_base, weights=f"s3://{BUCKET}/x/"))
    work_cancel(work=job)
    Target.objects.update(endpoint_url="http://127.0.0.1:9")
    assert advance(job).status == "cancelling"
    OptimizationJob.objects.update(cancel_asked_at=timezone.now() - GIVE_UP - timedelta(seconds=1))
    assert advance(job).status == "cancelled"
    assert "may run on in the account" in job.reason


def test_who_died_between_the_row_and_the_call_is_followed_by_one_that_calls(
    stand: Stand, target: Target, tiny_base: BaseModel
) -> None:
    job = advance(create_job(tiny_base, weights=f"s3://{BUCKET}/x/"))
    sagemaker, name = stand.client("sagemaker"), job.remote["told"]["name"]
    work_cancel(work=job)
    until(job, "cancelled")
    sagemaker.delete_optimization_job(OptimizationJobName=name)
    told = {key: job.remote["told"][key] for key in ("name", "request")}
    OptimizationJob.objects.update(status="cancelling", remote={**job.remote, "told": told})
    assert advance(job).status == "cancelling", "who is late may be about to make it"
    OptimizationJob.objects.update(cancel_asked_at=timezone.now() - LEASE - timedelta(seconds=1))
    assert advance(job).status == "cancelled", "what is to be stopped is not made first"
    OptimizationJob.objects.update(status="running", cancel_asked_at=None)
    advance(job)
    assert (
        sagemaker.describe_optimization_job(OptimizationJobName=name)["OptimizationJobStatus"] == "STARTING"
    )
    claim = Claim.take(kind="job", pk=job.pk)
    assert claim is not None
    before = job.progress_at
    assert advance(job).progress_at == before, "another process is at it"


def test_each_technique_is_a_configuration_of_its_own() -> None:
    neuron = {"engine": "sagemaker", "hardware": "neuron", "instance_type": "ml.inf2.24xlarge"}
    recipe = recipe_read(
        {"compilation": {"ahead_of_time": True}, "tensor_parallel": {"degree": 4}, "target": neuron}
    )
    options = RemoteOptions.read({"target": "aws", "environment": {"OPTION_LOAD_FORMAT": "auto"}})
    (compiled,) = configs(recipe, options, region=REGION, max_model_len=131072, training="")
    assert compiled == {
        "ModelCompilationConfig": {
            "OverrideEnvironment": {
                "OPTION_TENSOR_PARALLEL_DEGREE": "4",
                "OPTION_N_POSITIONS": "8192",
                "OPTION_MAX_ROLLING_BATCH_SIZE": "8",
                "OPTION_DTYPE": "bf16",
                "OPTION_LOAD_FORMAT": "auto",
            }
        }
    }
    sharding = recipe_read({**AWQ, "tensor_parallel": {"degree": 4, "presharded": True}})
    quantized, sharded = configs(sharding, options, region=REGION, max_model_len=64, training="")
    assert list(quantized) == ["ModelQuantizationConfig"]
    assert sharded["ModelShardingConfig"]["OverrideEnvironment"]["OPTION_TENSOR_PARALLEL_DEGREE"] == "4"
    eagle = recipe_read({"speculation": {"method": "eagle"}, "target": AWQ["target"]})
    told = configs(eagle, options, region=REGION, max_model_len=64, training="s3://b/texts/")
    source = {"S3Uri": "s3://b/texts/", "S3DataType": "S3Prefix"}
    speculative = {"Technique": "EAGLE", "TrainingDataSource": source}
    assert told == [{"ModelSpeculativeDecodingConfig": speculative}]
    fp8 = recipe_read({**AWQ, "quantization": "fp8", "target": {**AWQ["target"], "hardware": "sm89"}})
    (config,) = configs(fp8, RemoteOptions("aws"), region=REGION, max_model_len=64, training="")
    assert config["ModelQuantizationConfig"]["OverrideEnvironment"] == {"OPTION_QUANTIZE": "fp8"}


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({}, "sagemaker.target is required"),
        ({"sagemaker": {"target": "elsewhere"}}, "target 'elsewhere' of kind sagemaker does not exist"),
        ({"sagemaker": {"target": "aws", "weights": "http://x"}}, "weights must be s3://"),
        ({"sagemaker": {"target": "aws", "weights": "s3://buck/x", "model": "m"}}, "exclude each other"),
        ({"sagemaker": {"target": "aws", "hours": 0}}, "hours must be 1 to 240"),
        ({"sagemaker": {"target": "aws", "environment": {"a b": "c"}}}, "must be upper-case"),
        ({"sagemaker": {"target": "aws", "environment": {"HF_TOKEN": "c"}}}, "HF_TOKEN looks like a secret"),
        (
            {"sagemaker": {"target": "aws", "environment": {f"OPTION_{n}": "1" for n in range(25)}}},
            "would have 26 variables",
        ),
        (
            {"sagemaker": {"target": "aws", "environment": {"OPTION_QUANTIZE": "fp8"}}},
            "must not set OPTION_QUANTIZE: set quantization in the recipe",
        ),
        ({"sagemaker": {"target": "aws", "image": "tgi-3.3.6"}}, "must be an LMI image"),
        (
            {"sagemaker": {"target": "aws", "image": "tensorrtllm-0.33.0"}},
            "does not carry out this recipe: omit it, or name one of LMI with vLLM",
        ),
        ({"sagemaker": {"target": "aws", "image": f"x/{'y' * 300}:1"}}, "255 characters"),
        ({"sagemaker": {"target": "aws", "place": "x"}}, "'place' is none of"),
        ({"recipe": {"quantization": "int8"}, "sagemaker": {"target": "aws"}}, "target.engine is sagemaker"),
        ({"prompts": "set", "sagemaker": {"target": "aws"}}, "its own texts"),
    ],
)
def test_what_is_malformed_is_refused_by_rest(
    body: dict[str, Any], says: str, target: Target, tiny_base: BaseModel, prompts: PromptSet
) -> None:
    client = Client()
    client.force_login(user_create(email="s@graft.test", password="long-enough-7", is_staff=True))
    if "prompts" in body:
        body = {**body, "prompts": prompts.pk}
    sent = json.dumps({"base_model": tiny_base.name, "recipe": AWQ, **body})
    answer = client.post("/api/v1/optimizations", sent, content_type="application/json")
    assert (answer.status_code, says in answer.content.decode()) == (400, True), answer.content
    assert not OptimizationJob.objects.exists()


def test_rest_tells_where_it_is_done(target: Target, tiny_base: BaseModel) -> None:
    client = Client()
    client.force_login(user_create(email="s@graft.test", password="long-enough-7", is_staff=True))
    sent = json.dumps({"base_model": tiny_base.name, "recipe": AWQ, "sagemaker": {"target": "aws"}})
    answer = client.post("/api/v1/optimizations", sent, content_type="application/json")
    assert answer.status_code == 201, answer.content
    job = answer.json()
    assert (job["target"], job["machine"], job["remote"]["options"]["hours"]) == ("aws", "aws", 24)
    assert ROUTES[TASKS[OptimizationJob.objects.get().machine]] == {"queue": "graftwork.deployments"}  # type: ignore[index]


def test_a_base_that_has_gone_is_no_job(tiny_base: BaseModel) -> None:
    with pytest.raises(InvalidInputError, match="of kind sagemaker does not exist"):
        create_job(tiny_base)


def test_the_form_offers_an_account_and_its_page_tells_the_job(target: Target, tiny_base: BaseModel) -> None:
    client = Client()
    client.force_login(user_create(email="s@graft.test", password="long-enough-7", is_staff=True))
    page = client.get("/staff/optimizations/new").content.decode()
    assert "SageMaker: aws" in page
    form = {
        "base_model": tiny_base.name,
        "preset": "own",
        "hardware": "sm86",
        "quantization": "awq_int4_g128",
        "account": "aws",
        "instance_type": "ml.g5.12xlarge",
        "degree": "4",
    }
    refused = client.post("/staff/optimizations/new", form | {"instance_type": ""})
    assert refused.status_code == 422
    assert "name it in target.instance_type" in refused.content.decode()
    assert client.post("/staff/optimizations/new", form).status_code == 302
    job = OptimizationJob.objects.get()
    assert job.recipe["tensor_parallel"] == {"degree": 4, "presharded": True}
    assert job.target == target
    neuron = form | {
        "quantization": "",
        "hardware": "neuron",
        "instance_type": "ml.inf2.48xlarge",
        "degree": "",
        "ahead_of_time": "1",
        "sequence_length": "16",
        "batch_size": "4",
        "model": "js",
    }
    assert client.post("/staff/optimizations/new", neuron).status_code == 302
    compiled = OptimizationJob.objects.exclude(pk=job.pk).get()
    assert [compiled.recipe["compilation"][name] for name in ("sequence_length", "batch_size")] == [16, 4]
    assert compiled.remote["options"]["model"] == "js"
    wrong = client.post("/staff/optimizations/new", neuron | {"batch_size": "many"})
    assert (wrong.status_code, "batch_size must be a whole number" in wrong.text) == (422, True)
    OptimizationJob.objects.update(created_at=timezone.now() - timedelta(hours=1))
    told = client.get(f"/staff/optimizations/{job.pk}/").content.decode()
    assert "the queue graftwork.deployments" in told
