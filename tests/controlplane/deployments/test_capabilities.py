"""Copies by their engines: what gateways are told, what deployments refuse, and where adapters are placed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from django.test import Client

from contracts.base_routes import BaseRoute
from contracts.capabilities.worker import TRAITS
from controlplane.adapters.models import AdapterVersion
from controlplane.adapters.services import adapter_publish
from controlplane.catalog.models import BaseModel, Variant
from controlplane.deployments.capabilities import RunningEngine
from controlplane.deployments.containers.images import IMAGES, Image
from controlplane.deployments.copies.services import copy_register, copy_remove
from controlplane.deployments.models import AdapterRule, Copy, Deployment
from controlplane.deployments.placement.placements import unserved_adapters
from controlplane.deployments.placement.rules import adapter_move, adapter_pin
from controlplane.deployments.reconciler import deployment_reconcile
from controlplane.deployments.services import deployment_create, deployment_remove, deployment_update
from controlplane.deployments.sizing.deployment import requirements_of
from controlplane.deployments.sizing.devices import device_check
from controlplane.deployments.targets.services import target_create
from controlplane.errors import InvalidInputError
from controlplane.routes.selectors import route_base
from tests.controlplane.deployments.conftest import Register

pytestmark = pytest.mark.django_db
VLLM = RunningEngine("vllm", "0.32.0", 16)


def route(base: BaseModel) -> BaseRoute:
    found = route_base(base_model=base.name)
    assert found is not None
    return found


def with_traits(version: AdapterVersion, *traits: str, rank: int = 8) -> AdapterVersion:
    """A version that needs these traits, as its registration would have stored them."""
    version.traits, version.rank = sorted(traits), rank
    version.save(update_fields=["traits", "rank"])
    adapter_publish(adapter=version.adapter)
    return version


class FakeVllm:
    """A server that answers as vLLM does where the provisioner asks what it is."""

    def __init__(self, version: str) -> None:
        self.version, self.loaded = version, list[str]()
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                models = [{"id": name, "owned_by": "vllm"} for name in ("tiny", *fake.loaded)]
                self._answer({"data": models} if self.path == "/v1/models" else {"version": fake.version})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                fake.loaded.append(body["lora_name"])
                self._answer({})

            def _answer(self, value: Any) -> None:
                data = json.dumps(value).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def vllm() -> Iterator[FakeVllm]:
    server = FakeVllm("0.32.0+cu129")
    yield server
    server.close()


def test_a_copys_route_says_what_its_engine_serves(tiny: BaseModel) -> None:
    copy_register(base_model=tiny, kind="worker", url="http://worker:1")
    copy_register(base_model=tiny, kind="openai_http", url="http://vllm:1", engine=VLLM)
    copy_register(base_model=tiny, kind="openai_http", url="http://other:1")
    worker, vllm, other = sorted(route(tiny).copies, key=lambda copy: copy.url, reverse=True)
    worker, vllm = (vllm, worker) if "vllm" in worker.url else (worker, vllm)
    assert (worker.engine, worker.max_rank) == ("the bundled worker", None)
    assert set(worker.traits or ()) == TRAITS
    assert (vllm.engine, vllm.max_rank) == ("vLLM 0.32.0", 16)
    assert "dora" not in (vllm.traits or ())
    assert (other.engine, other.traits, other.max_rank) == ("", None, None)
    assert route(tiny).architecture == tiny.architecture
    assert (worker.images, vllm.images, other.images) == (False, True, None)


def test_an_architecture_that_a_running_server_serves_though_none_is_listed(tiny: BaseModel) -> None:
    tiny.architecture = "UnheardForCausalLM"
    tiny.save()
    copy_register(base_model=tiny, kind="openai_http", url="http://vllm:1", engine=VLLM)
    [copy] = route(tiny).copies
    assert (copy.traits, copy.max_rank) == (None, 16)


def test_an_architecture_without_adapters_gets_none(tiny: BaseModel) -> None:
    tiny.architecture = "MambaForCausalLM"
    tiny.save()
    copy_register(base_model=tiny, kind="openai_http", url="http://vllm:1", engine=VLLM)
    assert (route(tiny).copies[0].traits, route(tiny).copies[0].max_rank) == ((), 0)


@pytest.mark.parametrize(
    ("engine", "field"),
    [
        (RunningEngine("other"), "engine"),
        (RunningEngine("worker", "1.0"), "engine_version"),
        (RunningEngine("vllm", "latest"), "engine_version"),
        (RunningEngine("vllm", "0.32.0", 0), "max_rank"),
    ],
)
def test_an_engine_is_checked_by_field(tiny: BaseModel, engine: RunningEngine, field: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        copy_register(base_model=tiny, kind="openai_http", url="http://vllm:1", engine=engine)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("image", "engine"),
    [
        ("lmi-0.35.0", ("vllm", "0.11.1")),
        ("lmi-0.34.0", ("vllm", "0.10.2")),
        ("lmi-0.38.0", ("vllm", "")),
        ("tgi-3.3.6", ("tgi", "")),
        ("tensorrtllm-0.33.0", ("tensorrt-llm", "")),
        ("neuronx-0.30.0", ("neuron", "")),
        ("triton-26.05", ("", "")),
    ],
)
def test_an_image_names_its_engine(image: str, engine: tuple[str, str]) -> None:
    assert Image.from_name(image).engine_version == engine
    assert image in IMAGES


def test_a_rank_above_an_lmi_images_limit_is_not_served(tiny: BaseModel) -> None:
    target = target_create(
        name="aws",
        kind="sagemaker",
        region="eu-central-1",
        role_arn="arn:aws:iam::123456789012:role/x",
        store="s3://bucket/prefix",
    )
    rows = [
        Deployment(
            name="a", target=target, base_model=tiny, image="lmi-0.38.0", options={"max_lora_rank": 64}
        ),
        Deployment(name="b", target=target, base_model=tiny, image="lmi-0.35.0"),
        Deployment(name="c", target=target, base_model=tiny, image="tgi-3.3.6"),
    ]
    engines = [RunningEngine.of_deployment(row) for row in rows]
    assert [(item.name, item.max_rank) for item in engines] == [
        ("vLLM", 64),
        ("vLLM 0.11.1", 16),
        ("text-generation-inference", None),
    ]


def test_a_deployment_without_a_copy_is_absent_until_it_has_one_or_is_removed(tiny: BaseModel) -> None:
    target = target_create(name="here", kind="local")
    made = deployment_create(name="tiny", target=target, base_model=tiny, min_copies=0)
    [absent] = route(tiny).absent
    assert (absent.id, absent.engine) == ("tiny", "the bundled worker")
    assert set(absent.traits or ()) == TRAITS
    copy = copy_register(base_model=tiny, kind="worker", url="http://worker:1", deployment=made)
    assert route(tiny).absent == ()
    copy_remove(copy=copy, by_deployment=True)
    assert [item.id for item in route(tiny).absent] == ["tiny"]
    deployment_remove(deployment=made)
    assert route(tiny).absent == ()


@pytest.mark.costly("several rounds of the reconciler, each with clients of its own")
def test_a_running_vllm_tells_its_version_and_gets_only_what_it_serves(
    tiny: BaseModel, register: Register, vllm: FakeVllm
) -> None:
    plain, dora = register("plain", "one"), with_traits(register("all", "two"), "dora")
    big = with_traits(register("narrow", "three"), rank=64)
    target = target_create(name="servers", kind="openai_http", urls=[vllm.url])
    made = deployment_create(name="tiny", target=target, base_model=tiny, options={"max_lora_rank": 16})
    deployment_reconcile(deployment_id=made.pk)
    [copy] = made.copies.all()
    assert (copy.engine, copy.engine_version, copy.max_rank) == ("vllm", "0.32.0+cu129", 16)
    assert route(tiny).copies[0].engine == "vLLM 0.32.0+cu129"
    assert vllm.loaded == [plain.engine_name], "nothing was tried that it does not serve"
    assert [row.engine_name for row in made.placements.filter(leaves_at=None)] == [plain.engine_name]
    text = unserved_adapters(made)
    assert text.startswith("2 of 3 adapter versions are not served here; the first, "), text
    assert min(dora.engine_name, big.engine_name) in text
    vllm.version = "0.33.0"
    deployment_reconcile(deployment_id=made.pk)
    copy.refresh_from_db()
    assert copy.engine_version == "0.33.0"


def test_a_deployment_of_an_engine_that_serves_no_such_base_is_refused_with_what_would(
    tiny: BaseModel,
) -> None:
    tiny.architecture = "DeepseekV32ForCausalLM"
    tiny.save()
    local = target_create(name="here", kind="local")
    with pytest.raises(InvalidInputError) as refused:
        deployment_create(name="tiny", target=local, base_model=tiny)
    assert refused.value.field == "target"
    assert str(refused.value) == (
        "the bundled worker does not serve DeepseekV32ForCausalLM: engines that do: vLLM from 0.11.2 on"
    )
    tiny.architecture, tiny.quantization = "LlamaForCausalLM", "gptq"
    tiny.save()
    with pytest.raises(InvalidInputError, match="does not serve gptq weights: engines that do: vLLM"):
        deployment_create(name="tiny", target=local, base_model=tiny)
    tiny.architecture = "UnheardForCausalLM"
    tiny.save()
    with pytest.raises(InvalidInputError, match="no backend can serve this yet"):
        deployment_create(name="tiny", target=local, base_model=tiny)
    servers = target_create(name="servers", kind="openai_http", urls=["http://vllm:1"])
    assert deployment_create(name="tiny", target=servers, base_model=tiny).pk, "a running server knows best"


@pytest.mark.parametrize(
    ("fields", "at_fault"),
    [
        ({"instance_type": "ml.g5.xlarge"}, "instance_type"),
        (
            {"instance_type": "ml.c7i.8xlarge", "fallback_instance_types": ["ml.g6.xlarge"]},
            "fallback_instance_types",
        ),
    ],
)
def test_the_bundled_worker_with_experts_gets_no_accelerators(
    tiny: BaseModel, fields: dict[str, Any], at_fault: str
) -> None:
    target = target_create(
        name="aws",
        kind="sagemaker",
        region="eu-central-1",
        role_arn="arn:aws:iam::123456789012:role/x",
        store="s3://bucket/prefix",
    )
    image = "123456789012.dkr.ecr.eu-central-1.amazonaws.com/worker:1"
    made = Deployment(name="a", target=target, base_model=tiny, image=image, image_family="worker", **fields)
    device_check(made, engine=RunningEngine.of_deployment(made).engine)
    tiny.architecture = "Qwen3MoeForCausalLM"
    with pytest.raises(InvalidInputError, match="serves Qwen3MoeForCausalLM on the CPU only") as refused:
        device_check(made, engine=RunningEngine.of_deployment(made).engine)
    assert refused.value.field == at_fault
    made.instance_type, made.fallback_instance_types = "ml.c7i.8xlarge", []
    device_check(made, engine=RunningEngine.of_deployment(made).engine)
    made.instance_type, made.image, made.image_family = "ml.g5.xlarge", "lmi-0.38.0", "lmi"
    device_check(made, engine=RunningEngine.of_deployment(made).engine)


def test_the_bundled_worker_holds_mxfp4_in_twice_the_bytes_of_its_files(tiny: BaseModel) -> None:
    target = target_create(
        name="aws",
        kind="sagemaker",
        region="eu-central-1",
        role_arn="arn:aws:iam::123456789012:role/x",
        store="s3://bucket/prefix",
    )
    tiny.files.filter(name__endswith=".safetensors").update(size=8 << 30)
    image = "123456789012.dkr.ecr.eu-central-1.amazonaws.com/worker:1"
    made = Deployment(
        name="a",
        target=target,
        base_model=tiny,
        image=image,
        image_family="worker",
        instance_type="ml.c7i.8xlarge",
    )
    plain = requirements_of(made).memory_mb
    tiny.quantization = "mxfp4"
    assert requirements_of(made).memory_mb == plain + 8192


def test_a_deployment_notes_the_adapters_that_it_cannot_serve(
    tiny: BaseModel, register: Register, admin_client: Client
) -> None:
    version = with_traits(register("plain"), "experts")
    made = deployment_create(name="tiny", target=target_create(name="here", kind="local"), base_model=tiny)
    [step] = made.steps.filter(action="capability")
    assert version.engine_name in step.cause
    assert step.cause.endswith("the bundled worker does not serve LoRA on single experts")
    shown = admin_client.get("/api/v1/deployments/tiny").json()
    assert shown["warnings"] == [step.cause]
    with_traits(version)
    assert unserved_adapters(made) == ""
    deployment_update(deployment=made, max_copies=2)
    assert made.steps.filter(action="capability").count() == 1


def test_an_adapter_is_not_pinned_or_moved_to_a_copy_that_cannot_serve_it(
    tiny: BaseModel, register: Register
) -> None:
    version = with_traits(register("plain"), "dora")
    target = target_create(name="servers", kind="openai_http", urls=["http://a:1", "http://b:1"])
    made = deployment_create(name="tiny", target=target, base_model=tiny, hosting="on_demand")
    worker, vllm = (
        copy_register(base_model=tiny, kind="openai_http", url=url, deployment=made, engine=engine)
        for url, engine in (("http://a:1", RunningEngine("worker")), ("http://b:1", VLLM))
    )
    name = version.engine_name
    with pytest.raises(InvalidInputError, match=r"vLLM 0\.32\.0 does not serve DoRA"):
        adapter_pin(deployment=made, engine_name=name, on=[vllm.pk])
    with pytest.raises(InvalidInputError, match="DoRA"):
        adapter_move(deployment=made, engine_name=name, source=worker.pk, to=vllm.pk)
    assert not AdapterRule.objects.exists()
    assert adapter_pin(deployment=made, engine_name=name, on=[worker.pk]).on == [worker.pk]
    assert adapter_pin(deployment=made, engine_name=name, copies=1).copies == 1
    Copy.objects.filter(pk=worker.pk).update(engine="vllm", engine_version="0.32.0")
    with pytest.raises(InvalidInputError, match="cannot be served there"):
        adapter_pin(deployment=made, engine_name=name)


def test_three_bit_variants_are_for_the_bundled_worker_alone(tiny: BaseModel) -> None:
    Variant.objects.create(
        base_model=tiny, name="small", dtype="bf16", quantization="awq_int3_g128", source="/w"
    )
    local = target_create(name="here", kind="local")
    with pytest.raises(
        InvalidInputError, match="3-bit weights, which only the bundled worker serves"
    ) as told:
        deployment_create(name="v", target=local, base_model=tiny, variant="small", image_family="vllm")
    assert told.value.field == "variant"
    assert deployment_create(name="w", target=local, base_model=tiny, variant="small").pk
