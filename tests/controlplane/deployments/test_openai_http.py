"""Servers that speak OpenAI's API: adapters are loaded and unloaded on a real one, by Celery too."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from pytest_django import Settings

from controlplane.artifacts.store import artifact_store
from controlplane.catalog.models import BaseModel
from controlplane.deployments.copies.services import copy_register
from controlplane.deployments.leases import LEASE
from controlplane.deployments.models import Deployment, Placement, Target
from controlplane.deployments.provisioners import openai_http, provisioner_of
from controlplane.deployments.provisioners.base import Desired, Provisioner
from controlplane.deployments.reconciler import deployment_reconcile
from controlplane.deployments.scheduling import deployments_sweep
from controlplane.deployments.services import deployment_create, deployment_remove
from controlplane.deployments.targets.services import target_create
from tests.conftest import free_port
from tests.controlplane.conftest import Start
from tests.controlplane.deployments.conftest import TOKEN, Register, drive, removed, serving, unregister
from tests.controlplane.deployments.dying import killed_at_each_call
from tests.waiting import eventually
from tests.worker_process import Worker, run_worker

pytestmark = pytest.mark.django_db


@pytest.fixture(scope="module")
def server(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Worker, Path]]:
    """A worker, which has vLLM's routes, and the root folder of its adapters."""
    folder = tmp_path_factory.mktemp("server")
    root = folder / "store"
    root.mkdir()
    with run_worker(tiny_model, folder, "--memory-gib", "0.05", "--adapters-dir", str(root)) as worker:
        yield worker, root


@pytest.fixture
def worker(server: tuple[Worker, Path], settings: Settings) -> Iterator[Worker]:
    """The worker, with the artifact store in the folder that it reads."""
    found, root = server
    settings.GRAFTWORK = dataclasses.replace(settings.GRAFTWORK, artifact_store=root.as_uri())
    yield found
    shutil.rmtree(root / "adapters", ignore_errors=True)


def models(worker: Worker) -> set[str]:
    return {item["id"] for item in worker.call("/v1/models")[1]["data"]}


def deploy(base: BaseModel, *urls: str, **values: str) -> Deployment:
    target = target_create(name="servers", kind="openai_http", urls=urls)
    return deployment_create(name="tiny", target=target, base_model=base, **values)


def url(worker: Worker) -> str:
    return f"http://127.0.0.1:{worker.port}"


def test_adapters_follow_the_routes_through_a_death_at_each_call(
    worker: Worker, tiny: BaseModel, register: Register
) -> None:
    one, two = register("plain", "one"), register("all", "two")
    deployment = deploy(tiny, url(worker))
    calls = killed_at_each_call(deployment, serving)
    assert sorted(calls) == [
        f"load_lora_adapter {name}" for name in sorted([one.engine_name, two.engine_name])
    ]
    assert models(worker) == {"tiny", one.engine_name, two.engine_name}
    (copy,) = deployment.copies.all()
    assert (copy.kind, copy.url, copy.loads_adapters) == ("openai_http", url(worker), True)

    unregister(one)
    three = register("narrow", "three")
    drive(deployment, lambda row: row.placements.count() == 2 and serving(row))
    assert models(worker) == {"tiny", two.engine_name, three.engine_name}

    deployment_remove(deployment=deployment)
    assert len(killed_at_each_call(deployment, removed)) == 2
    assert models(worker) == {"tiny"}


@pytest.mark.parametrize("values", [{"hosting": "on_demand"}, {"adapter_scope": "named"}])
def test_what_a_gateway_has_loaded_is_left_alone_while_a_route_names_it(
    worker: Worker, tiny: BaseModel, register: Register, values: dict[str, str]
) -> None:
    asked, placed = register("plain", "one"), register("all", "one", 2)
    deployment = deploy(tiny, url(worker), **values)
    body = {"lora_name": asked.engine_name, "lora_path": urlsplit(asked.uri).path}
    assert worker.call("/v1/load_lora_adapter", body)[0] == 200
    drive(deployment, serving)
    there = {"tiny", asked.engine_name} | ({placed.engine_name} if "adapter_scope" in values else set())
    assert models(worker) == there
    unregister(asked)
    drive(deployment, serving)
    assert models(worker) == there - {asked.engine_name}, "what no route names goes"
    deployment_remove(deployment=deployment)
    drive(deployment, removed)
    assert models(worker) == {"tiny"}


def test_servers_that_accept_and_hang_end_a_look_before_its_lease(tiny: BaseModel) -> None:
    """Two of them: each is given up soon, and what they serve stays in the routes meanwhile."""
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        urls = [f"http://127.0.0.1:{server.getsockname()[1]}" for server in silent]
        deployment = deploy(tiny, *urls)
        served = copy_register(base_model=tiny, kind="openai_http", url=urls[0], deployment=deployment)
        heartbeats: list[None] = []

        def make(target: Target, desired: Desired, *, heartbeat: Callable[[], None]) -> Provisioner:
            return provisioner_of(target, desired, heartbeat=lambda: heartbeats.append(None))

        assert deployment_reconcile(deployment_id=deployment.pk, make=make)
    assert len(heartbeats) >= 2, "each server is followed by a heartbeat that renews the lease"
    assert (
        2 * sum(seconds or 0 for seconds in openai_http._LIST_TIMEOUT.as_dict().values())
        < LEASE.total_seconds()
    )
    deployment.refresh_from_db()
    assert "does not respond" in deployment.reason
    assert [copy.url for copy in deployment.copies.all()] == [served.url], "it is not gone"


def test_one_adapter_that_is_refused_holds_up_no_other(
    worker: Worker, tiny: BaseModel, register: Register
) -> None:
    bad, good = register("plain", "bad"), register("all", "good")
    artifact_store().remove(f"adapters/{bad.sha256}")
    deployment = drive(deploy(tiny, url(worker)), lambda row: row.status == "degraded")
    states = {row.engine_name: row.status for row in deployment.placements.all()}
    assert states == {bad.engine_name: Placement.Status.FAILED, good.engine_name: Placement.Status.READY}
    assert bad.engine_name in deployment.reason
    assert "needs the adapter's files" in deployment.reason
    assert deployment.copies.count() == 1, "the others are served"
    register("plain", "again")  # the same files come back
    drive(deployment, serving)
    deployment_remove(deployment=deployment)
    drive(deployment, removed)


def test_a_server_that_is_away_is_told_and_leaves_the_routes(worker: Worker, tiny: BaseModel) -> None:
    gone = f"http://127.0.0.1:{free_port()}"
    deployment = drive(deploy(tiny, url(worker), gone), lambda row: row.observed_at is not None)
    assert deployment.status in ("working", "degraded")
    assert f"{gone}: does not respond" in deployment.reason
    assert [copy.url for copy in deployment.copies.all()] == [url(worker)]


def test_a_server_of_another_model_or_token_is_told(
    worker: Worker, tiny: BaseModel, settings: Settings
) -> None:
    BaseModel.objects.filter(pk=tiny.pk).update(served_name="other")
    tiny.refresh_from_db()
    deployment = drive(deploy(tiny, url(worker)), lambda row: row.observed_at is not None)
    assert "serves tiny, not other: start it with that name" in deployment.reason
    settings.GRAFTWORK = dataclasses.replace(settings.GRAFTWORK, openai_http_key="wrong")
    deployment = drive(deployment, lambda row: "token" in row.reason)
    assert "GRAFTWORK_OPENAI_HTTP_KEY" in deployment.reason


@pytest.mark.costly("starts a Celery worker and a worker")
@pytest.mark.django_db(transaction=True)
def test_celery_does_it_by_itself(
    worker: Worker, tiny: BaseModel, register: Register, start: Start, settings: Settings
) -> None:
    """A Celery worker alone drives a new deployment, follows the routes, and removes it."""
    environ = {"GRAFTWORK_OPENAI_HTTP_KEY": TOKEN, "GRAFTWORK_DEPLOYMENT_DRAIN_SECONDS": "1"}
    environ["GRAFTWORK_ARTIFACT_STORE"] = settings.GRAFTWORK.artifact_store
    start("-m", "celery", "-A", "controlplane.celery", "worker", "--pool", "solo", **environ)
    deployment = deploy(tiny, url(worker))
    wait_for(deployment, serving)
    version = register("plain", "one")
    wait_for(deployment, lambda row: serving(row) and row.placements.filter(status="ready").count() == 1)
    assert version.engine_name in models(worker)
    step = deployment.steps.get(action="load_lora_adapter")
    assert (step.actor, step.outcome) == ("deployments.reconcile", "done")
    deployment_remove(deployment=deployment)
    wait_for(deployment, removed)
    assert models(worker) == {"tiny"}


def wait_for(deployment: Deployment, what: Callable[[Deployment], bool]) -> None:

    def is_reached() -> bool:
        deployment.refresh_from_db()
        if what(deployment):
            return True
        deployments_sweep()
        time.sleep(0.3)  # The Celery worker runs the task that each sweep sends.
        return False

    eventually(is_reached, message=lambda: f"still {deployment.status}: {deployment.reason}")
