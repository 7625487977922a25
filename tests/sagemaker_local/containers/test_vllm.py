"""vLLM's container contract: what it starts with, and the reason where the real one would not start."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sagemaker_local.containers.contract import Container, ContractError
from sagemaker_local.containers.vllm import server, settings
from sagemaker_local.copies.family import family_of
from sagemaker_local.resources.drivers import driver_problem
from tests.sagemaker_local.stand import NEEDS, ROLE, SMALL, Stand, run_stand

REGISTRY = "763104351884.dkr.ecr.eu-central-1.amazonaws.com"
VLLM = f"{REGISTRY}/vllm:0.27.1-gpu-py312-cu130-ubuntu22.04-sagemaker"
SERVER = f"{REGISTRY}/vllm:server-sagemaker-cuda-v2.3"
LORA = "/opt/ml/additional-model-data-sources/lora"
AMI = "al2023-ami-sagemaker-inference-gpu-4-1"
RUNTIME_LORA = {"SM_VLLM_ENABLE_LORA": "true", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "true"}


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    with run_stand(tmp_path_factory.mktemp("stand")) as running:
        yield running


def container(model: Path, adapters: Path, *, image: str = VLLM, **environment: str) -> Container:
    values = {name: value for name, value in environment.items() if value}
    return Container(image, values, {"/opt/ml/model": model, LORA: adapters})


def test_its_variables_become_the_workers_settings(tiny_model: Path, tiny_adapters: dict[str, Path]) -> None:
    found = settings(
        container(
            tiny_model,
            tiny_adapters["plain"].parent,
            SM_VLLM_MODEL="/opt/ml/model",
            SM_VLLM_MAX_MODEL_LEN="128",
            SM_VLLM_MAX_NUM_SEQS="4",
            SM_VLLM_MAX_LORAS="3",
            SM_VLLM_DTYPE="bfloat16",
            SM_VLLM_TRUST_REMOTE_CODE="false",
            SM_VLLM_SPECULATIVE_CONFIG='{"method": "ngram", "num_speculative_tokens": 3}',
        )
    )
    assert (found.model, found.adapters) == (tiny_model, {})
    flags = dict(zip(found.flags[::2], found.flags[1::2], strict=True))
    assert flags == {
        "--max-model-len": "128",
        "--max-num-seqs": "4",
        "--max-adapters-per-batch": "3",
        "--dtype": "bfloat16",
        "--speculation": "ngram",
        "--speculation-tokens": "3",
    }


def test_a_model_is_found_without_a_variable(tiny_model: Path, tiny_adapters: dict[str, Path]) -> None:
    assert settings(container(tiny_model, tiny_adapters["plain"])).model == tiny_model


def test_adapters_need_a_flag_and_a_variable(tiny_model: Path, tiny_adapters: dict[str, Path]) -> None:
    folder = tiny_adapters["plain"].parent
    resolver = {"VLLM_PLUGINS": "lora_filesystem_resolver", "VLLM_LORA_RESOLVER_CACHE_DIR": LORA}
    found = server(container(tiny_model, folder, image=SERVER, **RUNTIME_LORA, **resolver))
    assert (found.loads, found.resolver, found.reads_routes, found.max_lora_rank) == (True, folder, True, 16)
    other = server(container(tiny_model, folder, SM_VLLM_ENABLE_LORA="true", **resolver))
    assert (other.loads, other.resolver, other.reads_routes) == (False, None, False)


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"SM_VLLM_MODEL": "s3://bucket/model/"}, "Repo id must be in the form .* as ModelDataSource"),
        ({"SM_VLLM_MODEL": "org/model"}, "downloads nothing"),
        ({"SM_VLLM_MODEL": LORA}, "has no config.json or no .safetensors"),
        ({"SM_VLLM_MAX_NUM_SEQS": "many"}, "argument --max-num-seqs: invalid int value: 'many'"),
        ({"SM_VLLM_DTYPE": "bf16"}, "argument --dtype: invalid choice: 'bf16'"),
        ({"SM_VLLM_MAX_LORA_RANK": "24"}, r"max_lora_rank \(24\) must be one of"),
        ({"SM_VLLM_MAX_LORAS": "8", "SM_VLLM_MAX_CPU_LORAS": "4"}, r"max_cpu_loras \(4\) must be >="),
        ({"SM_VLLM_SPECULATIVE_CONFIG": "ngram"}, "cannot be converted to JSON"),
        ({**RUNTIME_LORA, "VLLM_LORA_RESOLVER_CACHE_DIR": "/nowhere"}, "must be set to a valid directory"),
    ],
)
def test_it_does_not_start_where_the_real_one_would_not(
    tiny_model: Path, tiny_adapters: dict[str, Path], environment: dict[str, str], says: str
) -> None:
    with pytest.raises(ContractError, match=says):
        settings(container(tiny_model, tiny_adapters["plain"].parent, **environment))


def test_cuda_13_needs_a_newer_driver_than_the_default() -> None:
    gpu = "ml.g5.12xlarge"
    assert "NVIDIA driver" in driver_problem(VLLM, {}, gpu)
    assert "NVIDIA driver" in driver_problem(SERVER, {}, gpu)
    older = {"InferenceAmiVersion": "al2-ami-sagemaker-inference-gpu-3-1"}
    assert "NVIDIA driver" in driver_problem(VLLM, older, gpu)
    lmi = f"{REGISTRY}/djl-inference:0.38.0-lmi29.0.0-cu130"
    assert "NVIDIA driver" in driver_problem(lmi, {}, gpu)
    assert not driver_problem(lmi, {"InferenceAmiVersion": AMI}, gpu)
    assert not driver_problem(lmi, {}, "ml.c7i.xlarge")
    assert not driver_problem(VLLM, {"InferenceAmiVersion": AMI}, gpu)
    assert not driver_problem(VLLM.replace("cu130", "cu129"), {}, gpu)


def test_the_family_is_known_by_the_repository() -> None:
    assert family_of(VLLM) == "vllm"
    assert family_of(f"{REGISTRY}/huggingface-vllm:1") == ""


@pytest.mark.costly("a local SageMaker with real workers")
def test_components_choose_adapters_and_the_body_does_not(
    stand: Stand, tiny_model: Path, tiny_adapters: dict[str, Path]
) -> None:
    """/invocations overwrites `model` by the component's adapter, and by nothing where there is none."""
    stand.endpoint("vllm", InferenceAmiVersion=AMI)
    weights, archive = (
        stand.upload("model.tar.gz", tiny_model),
        stand.upload("a.tar.gz", tiny_adapters["plain"]),
    )
    environment = {**SMALL, **RUNTIME_LORA, "SM_VLLM_SERVED_MODEL_NAME": "tiny"}
    source = {"PrimaryContainer": {"Image": VLLM, "Environment": environment, "ModelDataUrl": weights}}
    stand.client("sagemaker").create_model(ModelName="vllm", ExecutionRoleArn=ROLE, **source)
    stand.base("vllm-base", "vllm", "vllm")
    assert stand.adapter("vllm-bot", "vllm", "vllm-base", archive)["InferenceComponentStatus"] == "InService"
    big = stand.adapter("vllm-again", "vllm", "vllm-base", archive)
    assert big["InferenceComponentStatus"] == "InService", "another name is another adapter"

    def ask(component: str, **more: Any) -> tuple[str, str]:
        body = {"messages": [{"role": "user", "content": "Hé"}], "max_tokens": 8, "temperature": 0, **more}
        answer = stand.client("sagemaker-runtime").invoke_endpoint(
            EndpointName="vllm",
            InferenceComponentName=component,
            Body=json.dumps(body),
            ContentType="application/json",
        )
        value = json.loads(answer["Body"].read())
        return value["model"], value["choices"][0]["message"]["content"]

    base, bot = ask("vllm-base"), ask("vllm-bot")
    assert (base[0], bot[0]) == ("tiny", "vllm-bot")
    assert base[1] != bot[1]
    assert ask("vllm-base", model="vllm-bot") == base, "the base answers, whatever the body names"
    for name in ("vllm-again", "vllm-bot", "vllm-base"):
        stand.delete_component(name)


@pytest.mark.costly("a local SageMaker")
def test_the_reason_is_the_components_failure_reason(stand: Stand) -> None:
    stand.endpoint("old-driver")
    source = {"PrimaryContainer": {"Image": VLLM, "Environment": {"SM_VLLM_MODEL": "org/model"}}}
    stand.client("sagemaker").create_model(ModelName="old", ExecutionRoleArn=ROLE, **source)
    stand.client("sagemaker").create_inference_component(
        InferenceComponentName="old",
        EndpointName="old-driver",
        VariantName="main",
        Specification={"ModelName": "old", "ComputeResourceRequirements": NEEDS},
        RuntimeConfig={"CopyCount": 1},
    )
    found = stand.settled("old")
    assert found["InferenceComponentStatus"] == "Failed"
    assert "Set InferenceAmiVersion" in found["FailureReason"]
    stand.delete_component("old")
