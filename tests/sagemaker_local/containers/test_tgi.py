"""TGI's container contract: what it starts with, and the reason where the real one would not start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sagemaker_local.containers.contract import Container, ContractError
from sagemaker_local.containers.tgi import settings
from sagemaker_local.copies.family import family_of
from tests.sagemaker_local.stand import BUCKET, NEEDS, ROLE, SMALL, Stand, run_stand

TGI = (
    "763104351884.dkr.ecr.eu-central-1.amazonaws.com/huggingface-pytorch-tgi-inference:"
    "2.7.0-tgi3.3.6-gpu-py311-cu124-ubuntu22.04"
)
ADAPTERS = "/opt/ml/additional-model-data-sources/lora"


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    with run_stand(tmp_path_factory.mktemp("stand")) as running:
        yield running


def container(model: Path, adapters: Path, **environment: str) -> Container:
    given = {"HF_MODEL_ID": "/opt/ml/model", **environment}
    values = {name: value for name, value in given.items() if value}
    return Container(TGI, values, {"/opt/ml/model": model, ADAPTERS: adapters})


def test_its_variables_become_the_workers_settings(tiny_model: Path, tiny_adapters: dict[str, Path]) -> None:
    folder = tiny_adapters["plain"]
    found = settings(
        container(
            tiny_model,
            folder.parent,
            MAX_TOTAL_TOKENS="128",
            MAX_INPUT_TOKENS="127",
            MAX_BATCH_SIZE="4",
            DTYPE="bfloat16",
            SPECULATE="3",
            LORA_ADAPTERS=f"bot={ADAPTERS}/{folder.name}",
        )
    )
    assert found.model == tiny_model
    assert found.adapters == {"bot": folder}
    flags = dict(zip(found.flags[::2], found.flags[1::2], strict=True))
    assert flags == {
        "--max-model-len": "128",
        "--max-num-seqs": "4",
        "--dtype": "bfloat16",
        "--speculation": "ngram",
        "--speculation-tokens": "3",
    }


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"HF_MODEL_ID": ""}, "HF_MODEL_ID must be set"),
        ({"HF_MODEL_ID": "s3://bucket/model/"}, "Repo id must be in the form .* as ModelDataSource"),
        ({"HF_MODEL_ID": "org/model"}, "downloads nothing"),
        ({"HF_MODEL_ID": "/opt/ml/model/missing"}, "is no folder in the container"),
        ({"HF_MODEL_ID": ADAPTERS}, "has no config.json or no .safetensors"),
        ({"SM_NUM_GPUS": "all"}, "SM_NUM_GPUS must be an integer"),
        ({"MAX_TOTAL_TOKENS": "64", "MAX_INPUT_TOKENS": "64"}, r"must be < `max_total_tokens`\(64\)"),
        ({"MAX_INPUT_TOKENS": "64", "MAX_BATCH_PREFILL_TOKENS": "32"}, "must be >= `max_input_tokens`"),
        ({"DTYPE": "float32"}, "DTYPE must be one of float16, bfloat16"),
        ({"QUANTIZE": "int3"}, "QUANTIZE must be one of awq"),
        ({"CUDA_MEMORY_FRACTION": "most"}, "CUDA_MEMORY_FRACTION must be a number"),
        ({"LORA_ADAPTERS": f"a={ADAPTERS}/missing"}, "adapter a: .* has no adapter_config.json"),
        ({"LORA_ADAPTERS": "a=b=c"}, "Invalid LoRA adapter format: a=b=c"),
    ],
)
def test_it_does_not_start_where_the_real_one_would_not(
    tiny_model: Path, tiny_adapters: dict[str, Path], environment: dict[str, str], says: str
) -> None:
    with pytest.raises(ContractError, match=says):
        settings(container(tiny_model, tiny_adapters["plain"].parent, **environment))


def test_families_are_told_apart_by_their_repository() -> None:
    assert family_of(TGI) == "tgi"
    assert family_of("1.dkr.ecr.eu-central-1.amazonaws.com/own/text-generation-inference:3") == "tgi"
    assert family_of("763104351884.dkr.ecr.eu-central-1.amazonaws.com/djl-inference:0.36.0-lmi27") == ""


@pytest.mark.costly("a local SageMaker with its S3")
def test_the_reason_is_the_components_failure_reason(stand: Stand) -> None:
    """TGI reads no S3: a script that passes LMI's value learns what to do instead."""
    stand.endpoint("tgi")
    environment: dict[str, Any] = {**SMALL, "HF_MODEL_ID": f"s3://{BUCKET}/model/"}
    client = stand.client("sagemaker")
    client.create_model(
        ModelName="wrong", ExecutionRoleArn=ROLE, PrimaryContainer={"Image": TGI, "Environment": environment}
    )
    client.create_inference_component(
        InferenceComponentName="wrong",
        EndpointName="tgi",
        VariantName="main",
        Specification={"ModelName": "wrong", "ComputeResourceRequirements": NEEDS},
        RuntimeConfig={"CopyCount": 1},
    )
    found = stand.settled("wrong")
    assert found["InferenceComponentStatus"] == "Failed"
    assert "TGI reads no S3: give the prefix as ModelDataSource" in found["FailureReason"]
    stand.delete_component("wrong")
