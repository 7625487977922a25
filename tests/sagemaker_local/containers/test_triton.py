"""Triton's container contract, and its vLLM backend's own form without a chat model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from sagemaker_local.containers.contract import Container, ContractError
from sagemaker_local.containers.triton import repository, settings
from tests.sagemaker_local.stand import BUCKET, ROLE, SMALL, Stand, run_stand

IMAGE = "1.dkr.ecr.eu-central-1.amazonaws.com/tritonserver:26.05-vllm-python-py3"
PYTORCH = "763104351884.dkr.ecr.eu-central-1.amazonaws.com/pytorch-inference:2.6.0-gpu-py312"
WEIGHTS = "/opt/ml/additional-model-data-sources/weights"
ADAPTERS = "/opt/ml/additional-model-data-sources/lora"
ENGINE = {"model": WEIGHTS, "max_model_len": 128, "max_num_seqs": 4, "dtype": "float32"}
VLLM = 'backend: "vllm"\ninstance_group [ { count: 1 kind: KIND_MODEL } ]\n'


@pytest.fixture
def container(tmp_path: Path, tiny_model: Path, tiny_adapters: dict[str, Path]) -> Callable[..., Container]:
    """A container whose repository has the model `engine`; changes by path, None removes a file."""

    def make(files: dict[str, str | None] | None = None, image: str = IMAGE, **variables: str) -> Container:
        given = {"engine/config.pbtxt": VLLM, "engine/1/model.json": json.dumps(ENGINE), **(files or {})}
        for path, text in given.items():
            if text is not None:
                (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / path).write_text(text)
        environment = {"SAGEMAKER_TRITON_INFERENCE_TYPE": "generate_stream", **variables}
        folders = {"/opt/ml/model": tmp_path, WEIGHTS: tiny_model, ADAPTERS: tiny_adapters["plain"].parent}
        return Container(image, environment, folders)

    return make


def test_engine_arguments_become_the_workers_settings(
    container: Callable[..., Container], tiny_model: Path, tiny_adapters: dict[str, Path]
) -> None:
    folder = tiny_adapters["plain"]
    files = {
        "engine/1/model.json": json.dumps({**ENGINE, "enable_lora": "true"}),
        "engine/1/multi_lora.json": json.dumps({"bot": f"{ADAPTERS}/{folder.name}"}),
    }
    found = settings(container(files))
    assert found.model == tiny_model
    assert found.adapters == {"bot": folder}
    flags = dict(zip(found.flags[::2], found.flags[1::2], strict=True))
    assert flags == {"--max-model-len": "128", "--max-num-seqs": "4", "--dtype": "float32"}
    assert repository(container(files)).default == "engine", "the only model is the default"


@pytest.mark.parametrize(
    ("files", "variables", "says"),
    [
        ({"config.pbtxt": VLLM}, {}, "needs to contain the top level folder"),
        ({}, {"SAGEMAKER_TRITON_INFERENCE_TYPE": "chat"}, "Invalid SAGEMAKER_TRITON_INFERENCE_TYPE"),
        ({}, {"SAGEMAKER_TRITON_INFERENCE_TYPE": "infer"}, "decoupled model cannot be called by infer"),
        ({}, {"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "other"}, "other does not exist"),
        ({"chat/config.pbtxt": VLLM}, {}, "More than 1 model directory found"),
        (
            {"chat/config.pbtxt": 'backend: "python"'},
            {"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "chat"},
            "1/model.py does not exist",
        ),
        ({"engine/config.pbtxt": 'name: "engine"'}, {}, "must specify 'platform' or 'backend'"),
        ({"engine/config.pbtxt": None, "engine/1/x": ""}, {}, "no config.pbtxt"),
        ({"engine/1/model.json": None}, {}, "'model.json' containing vllm engine args"),
        ({"engine/1/model.json": "[]"}, {}, "is no object of vLLM's engine arguments"),
        ({"engine/1/model.json": json.dumps({"model": "/opt/ml/model"})}, {}, "has no config.json"),
        ({"engine/1/model.json": json.dumps({**ENGINE, "dtype": "int3"})}, {}, "dtype must be one of"),
        ({"engine/1/model.json": json.dumps({**ENGINE, "enable_lora": True})}, {}, "multi_lora.json"),
    ],
)
def test_it_does_not_start_where_the_real_one_would_not(
    container: Callable[..., Container], files: dict[str, str | None], variables: dict[str, str], says: str
) -> None:
    with pytest.raises(ContractError, match=says):
        settings(container(files, **variables))


@pytest.mark.parametrize(
    ("image", "says"),
    [
        (
            "763104351884.dkr.ecr.eu-central-1.amazonaws.com/sagemaker-tritonserver:26.05-py3",
            "backend 'vllm'",
        ),
        (IMAGE.replace("26.05", "25.01"), "from 25.03 on"),
    ],
)
def test_images_that_cannot_serve_it(container: Callable[..., Container], image: str, says: str) -> None:
    with pytest.raises(ContractError, match=says):
        settings(container(image=image))


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    with run_stand(tmp_path_factory.mktemp("stand")) as running:
        yield running


@pytest.mark.costly("a worker behind the local SageMaker")
def test_a_scripts_own_repository_answers_in_the_backends_form(
    stand: Stand, tiny_model: Path, tmp_path: Path
) -> None:
    """A repository with a model of backend vllm alone, called by `generate`."""
    engine = tmp_path / "repository" / "engine"
    (engine / "1").mkdir(parents=True)
    (engine / "config.pbtxt").write_text(VLLM)
    (engine / "1" / "model.json").write_text(json.dumps(ENGINE))
    url = stand.upload("repository.tar.gz", tmp_path / "repository")
    for path in tiny_model.iterdir():
        stand.client("s3").upload_file(str(path), BUCKET, f"weights/{path.name}")
    weights = {"S3Uri": f"s3://{BUCKET}/weights/", "S3DataType": "S3Prefix", "CompressionType": "None"}
    stand.client("sagemaker").create_model(
        ModelName="triton",
        ExecutionRoleArn=ROLE,
        PrimaryContainer={
            "Image": IMAGE,
            "Environment": {**SMALL, "SAGEMAKER_TRITON_INFERENCE_TYPE": "generate"},
            "ModelDataUrl": url,
            "AdditionalModelDataSources": [{"ChannelName": "weights", "S3DataSource": weights}],
        },
    )
    stand.endpoint("triton")
    stand.base("triton", "triton", "triton")

    def ask(**body: Any) -> Any:
        answer = stand.client("sagemaker-runtime").invoke_endpoint(
            EndpointName="triton", InferenceComponentName="triton", Body=json.dumps(body)
        )
        return json.loads(answer["Body"].read())

    found = ask(
        text_input="hello",
        parameters={"max_tokens": 5, "temperature": 0, "ignore_eos": True},
        return_num_input_tokens=True,
    )
    assert (found["model_name"], found["num_input_tokens"]) == ("engine", 5)
    assert found["text_output"].startswith("hello"), "the backend repeats the prompt unless it is told not to"
    for name, image, says in (
        ("layout", IMAGE, "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME other does not exist"),
        ("pytorch", PYTORCH, "has no code/inference.py"),
    ):
        stand.client("sagemaker").create_model(
            ModelName=name,
            ExecutionRoleArn=ROLE,
            PrimaryContainer={
                "Image": image,
                "Environment": {**SMALL, "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "other"},
                "ModelDataUrl": url,
            },
        )
        stand.base(name, "triton", name, settle=False)
        failed = stand.settled(name)
        assert failed["InferenceComponentStatus"] == "Failed"
        assert says in failed["FailureReason"]
        stand.delete_component(name)
    with pytest.raises(ClientError, match="LoRA nobody is not supported"):
        ask(text_input="hello", parameters={"lora_name": "nobody"})
    stand.delete_component("triton")
