"""Images of every family as components of the local SageMaker, called in their own form."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import openai
import pytest

from controlplane.catalog.models import BaseModel
from controlplane.deployments.models import Copy
from controlplane.deployments.services import deployment_remove, deployment_update
from controlplane.errors import InvalidInputError
from controlplane.routes.services import route_publish_now
from controlplane.tenants.models import Tenant
from controlplane.tenants.services import api_key_create
from tests.controlplane.deployments.account import NOTHING, deploy, resources
from tests.controlplane.deployments.conftest import Register, drive, removed, serving
from tests.controlplane.deployments.test_sagemaker import credentials, gateway_of, pause, placed, stand  # noqa: F401
from tests.sagemaker_local.stand import Stand
from tests.waiting import eventually

pytestmark = pytest.mark.django_db
OWN = "123456789012.dkr.ecr.eu-central-1.amazonaws.com/graftwork-worker:1"
TRITON = "123456789012.dkr.ecr.eu-central-1.amazonaws.com/tritonserver:26.05-vllm-python-py3"
MESSAGES: Any = [{"role": "user", "content": "Hé"}]


def ask_both_ways(client: openai.OpenAI, model: str, **more: Any) -> tuple[str, str, tuple[int, int]]:
    """Text, finish reason and usage of a chat: the same streamed and whole."""
    ask: Any = {"model": model, "messages": MESSAGES, "max_tokens": 9, "temperature": 0, **more}
    whole = client.chat.completions.create(**ask)
    chunks = list(client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    text = "".join(item.choices[0].delta.content or "" for item in chunks if item.choices)
    assert text == whole.choices[0].message.content
    reasons = [item.choices[0].finish_reason for item in chunks if item.choices]
    assert reasons[-1] == whole.choices[0].finish_reason
    assert {item.model for item in chunks} == {whole.model} == {model}
    streamed = chunks[-1].usage
    assert whole.usage is not None
    assert streamed is not None
    # Of the second request's prompt more tokens may come from the prefix cache.
    assert streamed.total_tokens == whole.usage.total_tokens
    assert streamed.completion_tokens == whole.usage.completion_tokens
    return text, reasons[-1] or "", (whole.usage.prompt_tokens, whole.usage.completion_tokens)


@pytest.mark.costly("real workers behind the local SageMaker")
def test_an_own_image_serves_as_a_component_and_goes(
    stand: Stand,  # noqa: F811
    tiny: BaseModel,
) -> None:
    deployment = deploy(stand, tiny, hosting="on_demand", image=OWN, image_family="worker", options={})
    drive(deployment, serving, pause=pause)
    (name,) = resources(stand)["models"]
    container = stand.client("sagemaker").describe_model(ModelName=name)["PrimaryContainer"]
    assert container["Image"] == OWN
    assert stand.ask("gw-tiny", "gw-tiny")
    assert deployment.copies.count() == 1
    deployment_remove(deployment=deployment)
    drive(deployment, removed, pause=pause)
    assert resources(stand) == NOTHING


@pytest.mark.costly("real workers behind the local SageMaker")
def test_tgi_is_called_in_its_own_form_and_counts_exactly(
    stand: Stand,  # noqa: F811
    tiny: BaseModel,
    tenant: Tenant,
    register: Register,
    redis_url: str,
    tmp_path: Path,
) -> None:
    """Chats and completions, streamed and whole, of the base model and of adapters; a new one is added."""
    first = register("plain", "one")
    options = {"max_rolling_batch_size": 4, "max_model_len": 128}
    deployment = deploy(stand, tiny, hosting="preloaded", image="tgi-3.3.6", options=options)
    drive(deployment, placed, pause=pause)
    (name,) = resources(stand)["models"]
    container = stand.client("sagemaker").describe_model(ModelName=name)["PrimaryContainer"]
    environment = container["Environment"]
    assert environment["HF_MODEL_ID"] == "/opt/ml/model"
    assert container["ModelDataSource"]["S3DataSource"]["CompressionType"] == "None"
    folder = "/opt/ml/additional-model-data-sources/lora/0"
    assert environment["LORA_ADAPTERS"] == f"{first.engine_name}={folder}"
    copy = Copy.objects.get()
    assert (copy.container, copy.loaded, copy.adapter_naming) == ("tgi", [first.engine_name], "name")

    _, key = api_key_create(tenant=tenant, name="k", scopes=["inference"])
    with gateway_of(redis_url, tmp_path) as gateway:
        client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=key, max_retries=0)

        chat = partial(ask_both_ways, client)
        answers = {model: chat(model) for model in ("tiny-base", "one")}
        assert answers["one"][0] != answers["tiny-base"][0]
        for _, reason, (prompt, completion) in answers.values():
            assert (reason, completion) == ("length", 9)
            assert prompt == answers["one"][2][0] > 0
        own = client.completions.create(model="one", prompt="hello", max_tokens=5, temperature=0).usage
        assert own is not None
        assert (own.prompt_tokens, own.completion_tokens) == (5, 5)

        # TGI's text contains the stop sequence, OpenAI's does not.
        base = answers["tiny-base"][0]
        stop = base[3:5]
        assert chat("tiny-base", stop=stop)[:2] == (base[: base.index(stop)], "stop")
        with pytest.raises(openai.BadRequestError, match="presence_penalty is not served"):
            chat("tiny-base", presence_penalty=1.0)
        with pytest.raises(openai.BadRequestError, match="maximum context length is 128 tokens") as caught:
            chat("tiny-base", max_tokens=4000)
        assert caught.value.code == "context_length_exceeded"

        # TGI would serve the base model for an adapter that it has not loaded.
        second = register("rslora", "two")
        route_publish_now()

        def status() -> int:
            try:
                chat("two")
            except openai.APIStatusError as error:
                return error.status_code
            return 200

        assert eventually(lambda: (code := status()) != 404 and code) == 503
        drive(deployment, lambda row: placed(row) and row.placements.count() == 2, pause=pause)
        assert Copy.objects.get().loaded == sorted([first.engine_name, second.engine_name])
        route_publish_now()
        eventually(lambda: status() == 200)
        texts = {model: chat(model)[0] for model in ("tiny-base", "one", "two")}
        assert len(set(texts.values())) == 3
        assert texts["one"] == answers["one"][0]

    with pytest.raises(InvalidInputError, match="speaks another form"):
        deployment_update(deployment=deployment, image="lmi-0.38.0", image_family="")
    deployment_remove(deployment=deployment)
    drive(deployment, removed, pause=pause)
    assert resources(stand) == NOTHING
    assert stand.workers() == []


@pytest.mark.costly("real workers behind the local SageMaker")
def test_triton_serves_chats_of_a_repository_that_the_deployment_writes(
    stand: Stand,  # noqa: F811
    tiny: BaseModel,
    tenant: Tenant,
    register: Register,
    redis_url: str,
    tmp_path: Path,
) -> None:
    """Its chat model runs as it was uploaded; adapters come with the repository."""
    register("plain", "one")
    options = {"max_rolling_batch_size": 4, "max_model_len": 128}
    deployment = deploy(
        stand, tiny, hosting="preloaded", image=TRITON, image_family="triton", options=options
    )
    drive(deployment, placed, pause=pause)
    copy = Copy.objects.get()
    assert (copy.container, copy.loaded, copy.adapter_naming) == ("triton", None, "name")
    _, key = api_key_create(tenant=tenant, name="k", scopes=["inference"])
    with gateway_of(redis_url, tmp_path) as gateway:
        client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=key, max_retries=0)
        chat = partial(ask_both_ways, client)
        answers = {model: chat(model, extra_body={"ignore_eos": True}) for model in ("tiny-base", "one")}
        assert answers["one"][0] != answers["tiny-base"][0]
        for _, reason, (prompt, completion) in answers.values():
            assert (reason, completion) == ("length", 9)
            assert prompt == answers["one"][2][0] > 0
        own = client.completions.create(model="one", prompt="hello", max_tokens=5, temperature=0).usage
        assert own is not None
        assert (own.prompt_tokens, own.completion_tokens) == (5, 5)
        # Without max_tokens a chat may use the rest of the context.
        whole = client.chat.completions.create(
            model="tiny-base", messages=MESSAGES, temperature=0, extra_body={"ignore_eos": True}
        )
        assert whole.usage is not None
        assert whole.usage.total_tokens == 128
        with pytest.raises(openai.BadRequestError, match="tools is not served"):
            chat("tiny-base", tools=[{"type": "function", "function": {"name": "f"}}])
        with pytest.raises(openai.BadRequestError, match="maximum context length is 128 tokens") as caught:
            chat("tiny-base", max_tokens=4000)
        assert caught.value.code == "context_length_exceeded"
        register("rslora", "two")
        route_publish_now()

        def status() -> int:
            try:
                chat("two")
            except openai.APIStatusError as error:
                return error.status_code
            return 200

        assert eventually(lambda: (code := status()) != 404 and code) == 503, "its containers lack it"
        drive(deployment, lambda row: placed(row) and row.placements.count() == 2, pause=pause)
        assert status() == 200

    deployment_remove(deployment=deployment)
    drive(deployment, removed, pause=pause)
    assert resources(stand) == NOTHING
    assert stand.workers() == []


@pytest.mark.costly("a handler with transformers and PEFT behind the local SageMaker")
def test_pytorch_serves_by_the_handler_that_the_deployment_writes(
    stand: Stand,  # noqa: F811
    tiny: BaseModel,
    tenant: Tenant,
    register: Register,
    redis_url: str,
    tmp_path: Path,
) -> None:
    """The handler runs as it was uploaded; adapters come with a new model."""
    first = register("plain", "one")
    options = {"max_model_len": 128, "dtype": "fp32"}
    deployment = deploy(stand, tiny, hosting="preloaded", image="pytorch-2.6.0", options=options)
    drive(deployment, placed, pause=pause)
    (name,) = resources(stand)["models"]
    container = stand.client("sagemaker").describe_model(ModelName=name)["PrimaryContainer"]
    assert container["Environment"]["SAGEMAKER_PROGRAM"] == "inference.py"
    assert {item["ChannelName"] for item in container["AdditionalModelDataSources"]} == {"weights", "lora"}
    copy = Copy.objects.get()
    assert (copy.container, copy.loaded, copy.adapter_naming) == ("pytorch", None, "name")
    assert first.engine_name
    _, key = api_key_create(tenant=tenant, name="k", scopes=["inference"])
    with gateway_of(redis_url, tmp_path) as gateway:
        client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=key, max_retries=0)
        chat = partial(ask_both_ways, client)
        answers = {model: chat(model, extra_body={"ignore_eos": True}) for model in ("tiny-base", "one")}
        assert answers["one"][0] != answers["tiny-base"][0]
        for _, reason, (prompt, completion) in answers.values():
            assert (reason, completion) == ("length", 9)
            assert prompt == answers["one"][2][0] > 0
        own = client.completions.create(model="one", prompt="hello", max_tokens=5, temperature=0).usage
        assert own is not None
        assert (own.prompt_tokens, own.completion_tokens) == (5, 5)
        with pytest.raises(openai.BadRequestError, match="tools is not served"):
            chat("tiny-base", tools=[{"type": "function", "function": {"name": "f"}}])
        with pytest.raises(openai.BadRequestError, match="maximum context length is 128 tokens") as caught:
            chat("tiny-base", max_tokens=4000)
        assert caught.value.code == "context_length_exceeded"
        register("rslora", "two")
        route_publish_now()

        def status() -> int:
            try:
                chat("two")
            except openai.APIStatusError as error:
                return error.status_code
            return 200

        assert eventually(lambda: (code := status()) != 404 and code) == 503, "its containers lack it"
        drive(deployment, lambda row: placed(row) and row.placements.count() == 2, pause=pause)
        assert status() == 200

    deployment_remove(deployment=deployment)
    drive(deployment, removed, pause=pause)
    assert resources(stand) == NOTHING
    assert stand.workers() == []


@pytest.mark.parametrize(
    ("image", "family", "says"),
    [
        ("triton-26.05", "", "it has no vLLM backend: copy NVIDIA's tritonserver"),
        (TRITON.replace("26.05", "25.01"), "triton", "no generate extension"),
        ("pytorch-2.5.1", "", "has a PyTorch older than 2.6, which transformers needs"),
    ],
)
def test_images_without_an_engine_for_language_models_are_refused_by_name(
    stand: Stand,  # noqa: F811
    tiny: BaseModel,
    image: str,
    family: str,
    says: str,
) -> None:
    with pytest.raises(InvalidInputError, match=says) as caught:
        deploy(stand, tiny, hosting="fused", image=image, image_family=family, options={})
    assert caught.value.field == "image"


@pytest.mark.parametrize(
    ("image", "values", "says"),
    [
        ("tgi-3.3.6", {"hosting": "components"}, "loads adapters only at its start"),
        ("tgi-3.3.6", {"hosting": "on_demand"}, "worker"),
        ("pytorch-2.6.0", {"hosting": "components", "options": {}}, "loads adapters only at its start"),
    ],
)
def test_images_that_load_adapters_at_their_start_refuse_other_ways(
    stand: Stand,  # noqa: F811
    tiny: BaseModel,
    image: str,
    values: dict[str, Any],
    says: str,
) -> None:
    with pytest.raises(InvalidInputError, match=says) as caught:
        deploy(stand, tiny, image=image, **values)
    assert caught.value.field == "hosting"


def test_more_adapters_than_tgi_can_be_told_are_refused_with_the_remedy(
    stand: Stand,  # noqa: F811
    tiny: BaseModel,
    register: Register,
) -> None:
    for number in range(1, 20):
        register("plain", "an-adapter-with-a-long-name", number)
    deployment = deploy(stand, tiny, hosting="preloaded", image="tgi-3.3.6")
    drive(deployment, lambda row: "do not fit into LORA_ADAPTERS" in row.reason)
    assert resources(stand) == NOTHING
    deployment_remove(deployment=deployment)
    drive(deployment, removed, pause=pause)
