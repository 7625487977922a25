"""The smoke test on a real worker: good adapters, adapters without effect, adapters that explode."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from django.test import Client
from pytest_django import Settings
from safetensors.torch import load_file, save_file

from contracts.base_routes import SageMakerTarget
from controlplane.adapters.models import AdapterVersion
from controlplane.adapters.services import adapter_register
from controlplane.adapters.smoke import Smoke, judge, smoke_test
from controlplane.adapters.smoke.openai_http import OpenAIHttpProber
from controlplane.adapters.validation import version_validate
from controlplane.catalog.models import BaseModel
from controlplane.catalog.services import base_model_register
from controlplane.deployments.copies.services import copy_register
from controlplane.deployments.models import Copy
from controlplane.errors import RefusedError
from controlplane.tenants.models import Tenant
from controlplane.tenants.services import user_create
from tests.conftest import free_port
from tests.worker_engine.tiny_adapter import make_adapter
from tests.worker_process import TOKEN, Worker, run_worker

pytestmark = pytest.mark.django_db
WEIGHTS = "adapter_model.safetensors"
Change = Callable[[dict[str, torch.Tensor]], None]


@pytest.fixture(scope="module")
def worker(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    with run_worker(tiny_model, tmp_path_factory.mktemp("worker"), "--memory-gib", "0.05") as worker:
        yield worker


@pytest.fixture
def base(tiny_model: Path, worker: Worker, settings: Settings, db: None) -> BaseModel:
    """The worker's model, deployed twice: first on a server that is away."""
    settings.GRAFTWORK = dataclasses.replace(settings.GRAFTWORK, fleet_token=TOKEN)
    base = base_model_register(name="tiny-llama", source=tiny_model, served_name="tiny")
    copy_register(base_model=base, kind="worker", url=f"http://127.0.0.1:{free_port()}")
    copy_register(base_model=base, kind="worker", url=f"http://127.0.0.1:{worker.port}")
    return base


@pytest.fixture(scope="module")
def adapter(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random adapter of the last layer's projection and the head."""
    folder = tmp_path_factory.mktemp("adapter")
    return make_adapter(
        tiny_model, folder, seed=3, r=4, lora_alpha=2, target_modules=["q_proj", "down_proj", "lm_head"]
    )


def validated(tenant: Tenant, base: BaseModel, folder: Path, change: Change) -> AdapterVersion:
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    changed = folder / "changed.safetensors"
    save_file(tensors, changed)
    with changed.open("rb") as weights, (folder / "adapter_config.json").open("rb") as config:
        version = adapter_register(
            tenant=tenant,
            name="bot",
            base_model=base,
            files={WEIGHTS: weights, "adapter_config.json": config},
        )
    version_validate(version_id=version.pk)
    version.refresh_from_db()
    return version


def steps(version: AdapterVersion) -> dict[str, tuple[str, str]]:
    return {step["name"]: (step["status"], step["detail"]) for step in version.steps}


def every(end: str, value: float) -> Change:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        for name in tensors:
            if name.endswith(end):
                tensors[name] = torch.full_like(tensors[name], value)

    return change


def test_a_good_adapter_is_ready_with_its_figures(
    tenant: Tenant, base: BaseModel, adapter: Path, worker: Worker
) -> None:
    version = validated(tenant, base, adapter, lambda tensors: None)
    assert version.status == "ready", version.reason
    status, detail = steps(version)["smoke"]
    assert status == "done"
    assert "log-probabilities differ by" in detail
    smoke = version.smoke
    assert smoke is not None
    assert smoke["max_difference"] > smoke["mean_difference"] > 0.01 > smoke["noise"]
    assert smoke["tokens"] > 100
    assert smoke["copy"] == base.copies.get(url__endswith=str(worker.port)).pk
    assert smoke["adapter_text"] != smoke["base_text"] != ""
    body = {"model": version.engine_name, "adapter": version.ref().to_dict()}
    assert worker.complete(**body)[0] == 200


def test_an_adapter_of_zeros_is_ready_with_two_warnings(
    tenant: Tenant, base: BaseModel, adapter: Path
) -> None:
    version = validated(tenant, base, adapter, every("lora_B.weight", 0.0))
    assert version.status == "ready"
    found = steps(version)
    assert found["values"] == ("warned", "every lora_B is zero, so the adapter changes nothing")
    assert found["smoke"][0] == "warned"
    assert (
        "the adapter changes nothing: no token's log-probability differs by more than 0" in found["smoke"][1]
    )


def test_an_adapter_of_one_module_is_not_called_unchanged(
    tenant: Tenant, base: BaseModel, adapter: Path
) -> None:
    """The worker computes the base to the bit each time, so 0.0001 nats are the adapter's."""

    def keep_one(tensors: dict[str, torch.Tensor]) -> None:
        for name, tensor in tensors.items():
            if "lora_B" in name:
                tensors[name] = tensor * (0.001 if "layers.1.self_attn.q_proj" in name else 0)

    version = validated(tenant, base, adapter, keep_one)
    smoke = version.smoke
    assert smoke is not None
    assert (steps(version)["smoke"][0], smoke["noise"]) == ("done", 0.0)
    assert 0 < smoke["max_difference"] < 0.001


def test_an_adapter_that_makes_infinities_is_refused(tenant: Tenant, base: BaseModel, adapter: Path) -> None:
    version = validated(tenant, base, adapter, every("down_proj.lora_B.weight", 3e38))
    assert version.status == "refused"
    assert "a worker cannot generate with the adapter" in version.reason
    assert "weights explode" in version.reason
    assert steps(version)["smoke"][0] == "failed"


def test_an_adapter_that_is_worse_than_guessing_is_refused(
    tenant: Tenant, base: BaseModel, adapter: Path
) -> None:
    def explode(tensors: dict[str, torch.Tensor]) -> None:
        for name, tensor in tensors.items():
            if "lm_head.lora" in name:
                tensors[name] = tensor * 30

    version = validated(tenant, base, adapter, explode)
    assert version.status == "refused"
    assert "and 5.55 for blind guessing: the adapter's weights or scaling" in version.reason


def test_where_no_worker_answers_it_is_not_checked(
    tenant: Tenant, base: BaseModel, adapter: Path, worker: Worker
) -> None:
    base.copies.filter(url__endswith=str(worker.port)).delete()
    version = validated(tenant, base, adapter, lambda tensors: None)
    assert version.status == "ready"
    status, detail = steps(version)["smoke"]
    assert status == "skipped"
    assert detail.startswith(f"not run, because {base.copies.get().pk}: it does not answer")
    base.copies.all().delete()
    version = validated(tenant, base, adapter, lambda tensors: None)
    assert steps(version)["smoke"] == ("skipped", "not run, because no copy serves tiny-llama")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that control plane and server see at the same place."""
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="module")
def loader(tiny_model: Path, shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """A server of vLLM's routes, which knows an adapter only once it has loaded it."""
    flags = ("--memory-gib", "0.05", "--adapters-dir", str(shared))
    with run_worker(tiny_model, tmp_path_factory.mktemp("loader"), *flags) as worker:
        yield worker


@pytest.fixture
def loading(tiny_model: Path, loader: Worker, shared: Path, settings: Settings, db: None) -> BaseModel:
    store = f"file://{shared / 'artifacts'}"
    settings.GRAFTWORK = dataclasses.replace(settings.GRAFTWORK, openai_http_key=TOKEN, artifact_store=store)
    base = base_model_register(name="tiny-llama", source=tiny_model, served_name="tiny")
    url = f"http://127.0.0.1:{loader.port}"
    copy_register(base_model=base, kind="openai_http", url=url, loads_adapters=True)
    return base


def served_names(worker: Worker) -> list[str]:
    return [model["id"] for model in worker.call("/v1/models")[1]["data"]]


def test_a_server_of_vllms_routes_is_asked_and_left_as_it_was(
    tenant: Tenant, loading: BaseModel, adapter: Path, loader: Worker
) -> None:
    version = validated(tenant, loading, adapter, lambda tensors: None)
    assert version.status == "ready", version.reason
    assert steps(version)["smoke"][0] == "done", steps(version)["smoke"]
    smoke = version.smoke
    assert smoke is not None
    assert smoke["max_difference"] > smoke["mean_difference"] > 0.01 > smoke["noise"]
    assert served_names(loader) == ["tiny"]
    # An earlier attempt died and left an adapter of the same name: the prober must not use it.
    left = {"lora_name": f"{version.engine_name}.check", "lora_path": version.uri}
    assert loader.call("/v1/load_lora_adapter", left)[0] == 200
    prober = OpenAIHttpProber(loading.copies.get(), loading, version.ref())
    with prober:
        assert prober.ask(adapted=True).logprobs != prober.ask(adapted=False).logprobs
    assert served_names(loader) == ["tiny"]


def test_an_adapter_that_explodes_there_is_refused_and_unloaded(
    tenant: Tenant, loading: BaseModel, adapter: Path, loader: Worker
) -> None:
    version = validated(tenant, loading, adapter, every("down_proj.lora_B.weight", 3e38))
    assert version.status == "refused"
    assert "weights explode" in version.reason
    assert served_names(loader) == ["tiny"]


def test_what_cannot_be_asked_says_why(tenant: Tenant, loading: BaseModel, adapter: Path) -> None:
    copy = loading.copies.get()
    copy_register(base_model=loading, kind="openai_http", url=copy.url, loads_adapters=False)
    told = {"components": "its inference component is created once", "name": "needs the adapter registered"}
    for naming in told:
        target = SageMakerTarget(region="eu-central-1", endpoint="llama", component=naming, adapters=naming)
        copy_register(base_model=loading, kind="sagemaker", url="", sagemaker=target)
    version = validated(tenant, loading, adapter, lambda tensors: None)
    status, detail = steps(version)["smoke"]
    assert (version.status, status) == ("ready", "skipped")
    assert detail.startswith(f"not run, because {copy.pk}: it does not load adapters at runtime")
    assert all(said in detail for said in told.values())
    page = Client()
    page.force_login(user_create(email="dev@acme.test", password="correct-horse-battery", tenant=tenant))
    assert "it does not load adapters at runtime" in page.get("/t/acme/adapters/bot/v1/").content.decode()


def test_a_copy_that_does_not_serve_the_adapter_is_not_asked(
    tenant: Tenant, loading: BaseModel, adapter: Path, loader: Worker
) -> None:
    version = validated(tenant, loading, adapter, lambda tensors: None)
    copy = loading.copies.get()
    Copy.objects.filter(pk=copy.pk).update(engine="vllm", engine_version="0.32.0")
    ref = dataclasses.replace(version.ref(), traits=("dora",))
    smoke, status, detail = smoke_test(base_model=loading, ref=ref, progress=lambda: None)
    assert (smoke, status) == (None, "skipped")
    assert detail == f"not run, because {copy.pk}: vLLM 0.32.0 does not serve DoRA"


def figures(base: float, adapter: float, difference: float = 0.5, noise: float = 0.0) -> Smoke:
    return Smoke("copy-1", 40, -base, -adapter, difference, difference, noise, "a", "b")


@pytest.mark.parametrize(
    ("smoke", "status", "said"),
    [
        (figures(3.0, 3.2), "done", "3.20 nats per token with the adapter, 3.00 without"),
        (figures(3.0, 6.5), "warned", "plain English is 6.50"),
        (figures(3.0, 10.2), "warned", "plain English is"),
        (figures(3.0, 3.0, difference=0.0), "warned", "changes nothing"),
        (figures(3.0, 3.0, difference=2e-5), "done", "differ by 2e-05"),
        (figures(3.0, 3.0, difference=2e-5, noise=1e-5), "warned", "which differs by 1e-05 between runs"),
        (figures(3.0, 3.0, difference=0.03, noise=0.01), "warned", "changes nothing"),
        (figures(3.0, 3.0, difference=0.05, noise=0.01), "done", "differ by 0.05 on"),
    ],
)
def test_what_figures_mean(smoke: Smoke, status: str, said: str) -> None:
    found, detail = judge(smoke, vocabulary=49_152)
    assert (found, said in detail) == (status, True), detail


def test_beyond_blind_guessing_is_broken() -> None:
    with pytest.raises(RefusedError, match=r"loss is 10\.80 nats per token with the adapter, 3\.00 without"):
        judge(figures(3.0, 10.8), vocabulary=49_152)
    assert judge(figures(11.5, 12.9), vocabulary=49_152)[0] == "done"
    assert judge(figures(3.0, 10.8), vocabulary=None)[0] == "warned"
