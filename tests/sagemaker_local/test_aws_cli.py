"""The AWS CLI, unmodified, through AWS_ENDPOINT_URL: the one on the PATH, or GRAFTWORK_TEST_AWS."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.sagemaker_local.stand import IMAGE, KEY, NEEDS, REGION, ROLE, SMALL, Stand, run_stand
from tests.waiting import eventually

pytestmark = pytest.mark.costly("real workers behind the local SageMaker")

Cli = Callable[..., Any]


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    with run_stand(tmp_path_factory.mktemp("stand")) as running:
        yield running


@pytest.fixture
def aws(stand: Stand, tmp_path: Path) -> Cli:
    """Runs it; what it prints as JSON, None for nothing."""
    program = os.environ.get("GRAFTWORK_TEST_AWS") or shutil.which("aws")
    if not program:
        pytest.skip("no AWS CLI: put aws on the PATH, or set GRAFTWORK_TEST_AWS to it")
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "AWS_ENDPOINT_URL": stand.url,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_ACCESS_KEY_ID": KEY["access_key"],
        "AWS_SECRET_ACCESS_KEY": KEY["secret_key"],
        "AWS_PAGER": "",
    }

    def run(*arguments: str) -> Any:
        command = [program, *arguments, "--output", "json"]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout) if done.stdout.strip().startswith("{") else None

    return run


@pytest.mark.slow
def test_from_a_bucket_to_an_answer_and_back_to_nothing(
    aws: Cli, stand: Stand, tiny_model: Path, tmp_path: Path
) -> None:
    aws("s3", "mb", "s3://models")
    aws("s3", "cp", "--recursive", "--quiet", str(tiny_model), "s3://models/tiny/")
    source = {
        "S3DataSource": {"S3Uri": "s3://models/tiny/", "S3DataType": "S3Prefix", "CompressionType": "None"}
    }
    container = {"Image": IMAGE, "ModelDataSource": source, "Environment": SMALL}
    aws(
        "sagemaker",
        "create-model",
        "--model-name",
        "tiny",
        "--execution-role-arn",
        ROLE,
        "--primary-container",
        json.dumps(container),
    )
    variant = {"VariantName": "main", "InstanceType": "ml.g5.12xlarge", "InitialInstanceCount": 1}
    aws(
        "sagemaker",
        "create-endpoint-config",
        "--endpoint-config-name",
        "tiny",
        "--execution-role-arn",
        ROLE,
        "--production-variants",
        json.dumps([variant]),
    )
    named = ("--endpoint-name", "tiny")
    aws("sagemaker", "create-endpoint", *named, "--endpoint-config-name", "tiny")
    stand.client("sagemaker").get_waiter("endpoint_in_service").wait(
        EndpointName="tiny", WaiterConfig={"Delay": 0.1, "MaxAttempts": 300}
    )
    specification = {"ModelName": "tiny", "ComputeResourceRequirements": NEEDS}
    component = ("--inference-component-name", "base")
    aws(
        "sagemaker",
        "create-inference-component",
        *component,
        *named,
        "--variant-name",
        "main",
        "--specification",
        json.dumps(specification),
        "--runtime-config",
        "CopyCount=1",
    )
    assert stand.settled("base")["InferenceComponentStatus"] == "InService"
    told = aws("sagemaker", "describe-inference-component", *component)
    assert told["RuntimeConfig"]["CurrentCopyCount"] == 1
    body, answer = tmp_path / "body.json", tmp_path / "answer.json"
    body.write_text(json.dumps({"inputs": "hello", "parameters": {"max_new_tokens": 8, "do_sample": False}}))
    aws(
        "sagemaker-runtime",
        "invoke-endpoint",
        *named,
        *component,
        "--content-type",
        "application/json",
        "--body",
        f"fileb://{body}",
        str(answer),
    )
    assert json.loads(answer.read_text()) == stand.ask("tiny", "base")

    aws("sagemaker", "delete-inference-component", *component)
    stand_is_without(stand, "base")
    aws("sagemaker", "delete-endpoint", *named)
    aws("sagemaker", "wait", "endpoint-deleted", *named)
    aws("sagemaker", "delete-endpoint-config", "--endpoint-config-name", "tiny")
    aws("sagemaker", "delete-model", "--model-name", "tiny")
    assert aws("sagemaker", "list-models")["Models"] == []
    aws("s3", "rb", "--force", "s3://models")


def stand_is_without(stand: Stand, name: str) -> None:
    sagemaker = stand.client("sagemaker")
    eventually(lambda: not sagemaker.list_inference_components(NameContains=name)["InferenceComponents"])
