"""Deployments of AWS's vLLM images at the local SageMaker: adapters as components and by name, and chats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai
import pytest

from controlplane.catalog.models import BaseModel
from controlplane.deployments.containers.images import IMAGES, Image
from controlplane.deployments.containers.options import LmiOptions
from controlplane.deployments.models import Copy, Target
from controlplane.deployments.services import deployment_remove, deployment_update
from controlplane.deployments.targets.services import target_update
from controlplane.errors import ConflictError, InvalidInputError
from controlplane.tenants.models import Tenant
from controlplane.tenants.services import api_key_create
from tests.controlplane.deployments.account import NOTHING, deploy, resources
from tests.controlplane.deployments.conftest import Register, drive, removed, serving
from tests.controlplane.deployments.test_image_families import ask_both_ways
from tests.controlplane.deployments.test_sagemaker import credentials, gateway_of, pause, placed, stand  # noqa: F401
from tests.sagemaker_local.stand import Stand

pytestmark = pytest.mark.django_db
UBUNTU, SERVER = "vllm-0.27.1", "vllm-server-2.3"
OPTIONS: dict[str, Any] = {"max_rolling_batch_size": 4, "max_model_len": 128, "max_lora_rank": 16}


def test_an_image_tells_its_version_its_routes_and_its_driver() -> None:
    newest, server = IMAGES["vllm-0.28.0"], IMAGES[SERVER]
    assert newest.uri("us-west-2") == (
        "763104351884.dkr.ecr.us-west-2.amazonaws.com/vllm:0.28.0-gpu-py312-cu130-ubuntu24.04-sagemaker"
    )
    assert (newest.engine_version, newest.reads_routes) == (("vllm", "0.28.0"), False)
    assert (server.engine_version, server.reads_routes) == (("vllm", "0.27.0"), True)
    assert newest.ami_version == server.ami_version == "al2023-ami-sagemaker-inference-gpu-4-1"
    own = "1.dkr.ecr.eu-central-1.amazonaws.com/vllm:"
    copied = Image.from_name(f"{own}0.30.0-gpu-py312-cu130-ubuntu24.04-sagemaker", family="vllm")
    assert (copied.engine_version, copied.ami_version) == (("vllm", "0.30.0"), newest.ami_version)
    lmi = {name: IMAGES[name].ami_version for name in ("lmi-0.38.0", "lmi-0.35.0", "tgi-3.3.6")}
    assert lmi == {"lmi-0.38.0": newest.ami_version, "lmi-0.35.0": "", "tgi-3.3.6": ""}
    assert IMAGES["vllm-0.31.0"].engine_version == ("vllm", "0.31.0")
    assert IMAGES["vllm-server-2.6"].engine_version == ("vllm", "0.30.0")
    assert Image.from_name(f"{own}mine", family="vllm").engine_version == ("vllm", "")


@pytest.mark.parametrize(
    "name",
    [
        "SM_VLLM_MAX_LORAS",
        "SM_VLLM_REVISION",
        "SM_VLLM_SERVED_MODEL_NAM",
        "SM_VLLM_MIDDLEWARE",
        "SM_VLLM_ENABLE_PROMPT_TOKENS_DETAILS",
        "VLLM_API_KEY",
        "GRAFTWORK_VLLM_FLAG_ENFORCE_EAGER",
    ],
)
def test_variables_that_the_deployment_sets_are_refused(
    stand: Stand,  # noqa: F811
    tiny: BaseModel,
    name: str,
) -> None:
    with pytest.raises(InvalidInputError, match=name) as caught:
        deploy(stand, tiny, image=UBUNTU, environment={name: "1"}, options={})
    assert caught.value.field == "environment"


def test_adapters_without_a_name_for_them_are_refused(
    stand: Stand,  # noqa: F811
    tiny: BaseModel,
) -> None:
    with pytest.raises(InvalidInputError, match="choose hosting preloaded") as caught:
        deploy(stand, tiny, hosting="endpoint", image=UBUNTU, options={"enable_lora": True})
    assert caught.value.field == "options.enable_lora"
    with pytest.raises(InvalidInputError, match="rolling_batch"):
        LmiOptions.from_values({"rolling_batch": "vllm"}, IMAGES[UBUNTU])


def test_endpoints_of_another_host_image_are_not_shared(
    stand: Stand,  # noqa: F811
    tiny: BaseModel,
) -> None:
    deploy(stand, tiny, "one", endpoint="shared", image="lmi-0.35.0", options={})
    with pytest.raises(ConflictError, match="InferenceAmiVersion"):
        deploy(stand, tiny, "two", endpoint="shared", image=UBUNTU, options={})


@pytest.mark.costly("real workers behind the local SageMaker")
def test_adapters_are_components_loaded_at_run_time(
    stand: Stand,  # noqa: F811
    tiny: BaseModel,
    tenant: Tenant,
    register: Register,
    redis_url: str,
    tmp_path: Path,
) -> None:
    """A new adapter replaces no copy; the target's OpenAI path gets the base model's chats alone."""
    first = register("plain", "one")
    deployment = deploy(stand, tiny, image=UBUNTU, options=OPTIONS)
    drive(deployment, placed, pause=pause)
    client = stand.client("sagemaker")
    (name,) = resources(stand)["models"]
    environment = client.describe_model(ModelName=name)["PrimaryContainer"]["Environment"]
    assert (
        environment.items()
        >= {
            "SM_VLLM_MODEL": "/opt/ml/model",
            "SM_VLLM_SERVED_MODEL_NAME": tiny.served_name,
            "SM_VLLM_ENABLE_LORA": "true",
            "SM_VLLM_MAX_NUM_SEQS": "4",
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "true",
        }.items()
    )
    (config,) = resources(stand)["configs"]
    variant = client.describe_endpoint_config(EndpointConfigName=config)["ProductionVariants"][0]
    assert variant["InferenceAmiVersion"] == "al2023-ami-sagemaker-inference-gpu-4-1"
    copy = Copy.objects.get()
    assert (copy.container, copy.api, copy.adapter_naming) == ("vllm", "invocations", "components")
    assert (copy.engine, copy.engine_version) == ("vllm", "0.27.1")
    processes = stand.workers()
    register("all", "two")
    drive(deployment, lambda row: placed(row) and row.placements.count() == 2, pause=pause)
    assert stand.workers() == processes

    target_update(target=Target.objects.get(), openai_path=True)
    drive(deployment, serving, pause=pause)
    assert Copy.objects.get().api == "openai"
    _, key = api_key_create(tenant=tenant, name="k", scopes=["inference"])
    with gateway_of(redis_url, tmp_path) as gateway:
        client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=key, max_retries=0)
        answers = {model: ask_both_ways(client, model) for model in ("tiny-base", "one", "two")}
        assert len({text for text, _, _ in answers.values()}) == 3
        assert {(reason, counts[1]) for _, reason, counts in answers.values()} == {("length", 9)}
        paths = [
            item["headers"].get("x-amzn-sagemaker-inference-component") for item in stand.get("invocations")
        ]
        assert paths[:2] == [None, None], "the OpenAI path has the component in its URL"
        assert all(paths[2:])
        own = client.completions.create(model="one", prompt="hello", max_tokens=5, temperature=0)
        assert own.usage is not None
        assert (own.usage.prompt_tokens, own.usage.completion_tokens) == (5, 5)
    assert first.engine_name not in json.dumps(environment)
    with pytest.raises(InvalidInputError, match="speaks another form"):
        deployment_update(deployment=deployment, image="lmi-0.38.0", image_family="")
    deployment_remove(deployment=deployment)
    drive(deployment, removed, pause=pause)
    assert resources(stand) == NOTHING


@pytest.mark.costly("real workers behind the local SageMaker")
@pytest.mark.parametrize(("image", "api"), [(UBUNTU, "openai"), (SERVER, "routes")])
def test_preloaded_adapters_are_named_in_the_request(
    stand: Stand,  # noqa: F811
    tiny: BaseModel,
    tenant: Tenant,
    register: Register,
    redis_url: str,
    tmp_path: Path,
    image: str,
    api: str,
) -> None:
    """They need no component: the container's resolver loads each with the first request that names it."""
    first = register("plain", "one")
    register("all", "two")
    deployment = deploy(stand, tiny, hosting="preloaded", image=image, options=OPTIONS)
    drive(deployment, placed, pause=pause)
    assert resources(stand)["components"] == ["gw-tiny"]
    assert sum(first.engine_name in key for key in resources(stand)["files"]) == 2
    copy = Copy.objects.get()
    assert (copy.container, copy.api, copy.adapter_naming) == ("vllm", api, "name")
    _, key = api_key_create(tenant=tenant, name="k", scopes=["inference"])
    with gateway_of(redis_url, tmp_path) as gateway:
        client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=key, max_retries=0)
        answers = {model: ask_both_ways(client, model) for model in ("tiny-base", "one", "two")}
        assert len({text for text, _, _ in answers.values()}) == 3
        ask: dict[str, Any] = {"model": "one", "prompt": "hello", "max_tokens": 5, "temperature": 0}
        if api == "routes":
            usage = client.completions.create(**ask).usage
            assert usage is not None
            assert (usage.prompt_tokens, usage.completion_tokens) == (5, 5)
        else:
            with pytest.raises(openai.BadRequestError, match="Use /v1/chat/completions"):
                client.completions.create(**ask)
        assert client.completions.create(**{**ask, "model": "tiny-base"}).usage is not None
    deployment_remove(deployment=deployment)
    drive(deployment, removed, pause=pause)
    assert resources(stand) == NOTHING
