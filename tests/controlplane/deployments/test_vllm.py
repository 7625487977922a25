"""Deployments on real vLLM servers: adapters asked, placed, moved, evicted and removed under load.

GRAFTWORK_TEST_VLLM_URLS names two servers of the demo model as `smol`, with a space between, each started by

    VLLM_ALLOW_RUNTIME_LORA_UPDATING=True vllm serve var/models/smollm2-135m-instruct \
        --served-model-name smol --enable-lora --max-lora-rank 16 --max-loras 2 --max-cpu-loras 4
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from pytest_django import Settings

from contracts.base_routes import AdapterHomes, BaseRoute
from controlplane.adapters.models import AdapterVersion
from controlplane.adapters.smoke import smoke_test
from controlplane.catalog.digests import digest_run
from controlplane.catalog.models import BaseModel
from controlplane.catalog.services import base_model_register
from controlplane.deployments.models import Deployment
from controlplane.deployments.placement.rules import adapter_evict, adapter_move, adapter_pin, adapter_unpin
from controlplane.deployments.reconciler import deployment_reconcile
from controlplane.deployments.rollouts.services import deployment_rollout_start
from controlplane.deployments.services import deployment_create, deployment_remove
from controlplane.deployments.targets.services import target_create
from controlplane.routes.models import RouteEntryRow
from controlplane.tenants.models import Tenant
from controlplane.tenants.services import api_key_create
from tests.conftest import ROOT
from tests.controlplane.deployments.conftest import drive, removed, serving, unregister, version_put
from tests.controlplane.deployments.test_local import wait
from tests.controlplane.deployments.test_placing import Load, homes, no_rule, rule_is
from tests.controlplane.deployments.test_rollouts import AT_ONCE, ended
from tests.gateway.conftest import GatewayProcess
from tests.waiting import eventually

pytestmark = pytest.mark.django_db(transaction=True)
ADAPTERS = ROOT / "demo" / "adapters"


@pytest.fixture
def urls() -> list[str]:
    """Two servers that hold no adapter of ours."""
    found = os.environ.get("GRAFTWORK_TEST_VLLM_URLS", "").split()
    if len(found) < 2:
        pytest.skip("no vLLM: set GRAFTWORK_TEST_VLLM_URLS to two servers, as this file's head says")
    for url in found:
        for name in models(url) - {"smol"}:
            httpx.post(f"{url}/v1/unload_lora_adapter", json={"lora_name": name}, timeout=60)
        assert models(url) == {"smol"}
    return found[:2]


@pytest.fixture
def smol(urls: list[str], demo_model: Path, settings: Settings, tmp_path: Path) -> BaseModel:
    """The demo model; the artifact store in a folder that the servers see at the same place."""
    store = (tmp_path / "store").as_uri()
    settings.GRAFTWORK = dataclasses.replace(settings.GRAFTWORK, artifact_store=store)
    base = base_model_register(name="smol-base", source=demo_model, served_name="smol")
    digest_run(base_model_id=base.pk)
    base.refresh_from_db()
    return base


@pytest.fixture
def pirate(smol: BaseModel, tenant: Tenant) -> AdapterVersion:
    return version_put(tenant, smol, ADAPTERS / "pirate", "pirate")


def models(url: str) -> set[str]:
    answer = httpx.get(f"{url}/v1/models", timeout=60)
    return {item["id"] for item in answer.json()["data"]}


def deploy(base: BaseModel, urls: list[str], **values: str) -> Deployment:
    target = target_create(name="servers", kind="openai_http", urls=urls)
    made = deployment_create(name="smol", target=target, base_model=base, **values)
    return drive(made, serving, pause=wait)


def take_away(deployment: Deployment, urls: list[str]) -> None:
    deployment_remove(deployment=deployment)
    drive(deployment, removed, pause=wait)
    for url in urls:
        assert models(url) == {"smol"}


@pytest.fixture
def load(smol: BaseModel, tenant: Tenant, redis_url: str, tmp_path: Path) -> Iterator[Load]:
    """A gateway before the servers."""
    _, key = api_key_create(tenant=tenant, name="k", scopes=["inference"])
    gateway = GatewayProcess(redis_url, tmp_path / "wal", tmp_path / "gateway.log")
    try:
        gateway.start()
        yield Load(gateway.url, key, "pirate")
    finally:
        gateway.stop()


def test_an_adapter_is_asked_before_it_is_published_and_leaves_no_trace(
    urls: list[str], smol: BaseModel, pirate: AdapterVersion
) -> None:
    deployment = deploy(smol, urls[:1], hosting="on_demand")
    smoke, status, detail = smoke_test(base_model=smol, ref=pirate.ref(), progress=lambda: None)
    assert smoke is not None, detail
    assert status in ("done", "warned"), detail
    assert smoke.max_difference > 0.1 > smoke.noise
    assert smoke.adapter_text != smoke.base_text
    assert models(urls[0]) == {"smol"}
    take_away(deployment, urls)


def test_placed_moved_and_evicted_under_load_no_request_fails(
    urls: list[str], smol: BaseModel, pirate: AdapterVersion, load: Load
) -> None:
    name = pirate.engine_name
    deployment = deploy(smol, urls, hosting="on_demand")
    by_url = dict(deployment.copies.values_list("url", "pk"))
    first, second = by_url[urls[0]], by_url[urls[1]]
    adapter_pin(deployment=deployment, engine_name=name, on=[first])
    drive(deployment, rule_is(name, "ready"), pause=wait)
    assert [name in models(url) for url in urls] == [True, False], "loaded ahead of any request"
    assert homes(smol, name) == AdapterHomes((first,), ())

    with load.running():
        adapter_move(deployment=deployment, engine_name=name, source=first, to=second)
        drive(deployment, lambda _: homes(smol, name).at == (second,), pause=wait)
        drive(deployment, rule_is(name, "ready"), pause=wait)
        assert [name in models(url) for url in urls] == [False, True]
        eventually(lambda: load.count > 40, seconds=120)
        assert [name in models(url) for url in urls] == [False, True], "new requests go to the second alone"

        adapter_unpin(deployment=deployment, engine_name=name)
        drive(deployment, no_rule, pause=wait)
        assert name in models(urls[1]), "what it took back it does not drop"
        adapter_evict(deployment=deployment, engine_name=name, copies=[second], keep_away=True)
        drive(deployment, rule_is(name, "ready"), pause=wait)
        eventually(lambda: name in models(urls[0]), seconds=60)
        assert name not in models(urls[1]), "the gateway had it loaded where it may go"
        adapter_unpin(deployment=deployment, engine_name=name)
        drive(deployment, no_rule, pause=wait)
    assert set(load.answers) == {(200, True)}, load.answers
    take_away(deployment, urls)


def test_adapters_follow_the_routes_and_the_servers_a_canary(
    urls: list[str], smol: BaseModel, pirate: AdapterVersion, tenant: Tenant, load: Load
) -> None:
    """Hosting `api`: every version is brought before it is asked for, to new servers too."""
    deployment = deploy(smol, urls[:1])
    assert pirate.engine_name in models(urls[0])
    bard = version_put(tenant, smol, ADAPTERS / "strict-json", "bard")
    drive(deployment, lambda row: serving(row) and row.placements.count() == 2, pause=wait)
    assert {pirate.engine_name, bard.engine_name} < models(urls[0])
    unregister(bard)
    deployment_reconcile(deployment_id=deployment.pk)
    drive(deployment, lambda row: serving(row) and row.placements.count() == 1, pause=wait)
    assert models(urls[0]) == {"smol", pirate.engine_name}

    shares: list[tuple[list[str], int]] = []

    def meanwhile() -> None:
        route = BaseRoute.from_dict(RouteEntryRow.objects.get(path=f"bases/{smol.name}").entry)
        now = ([copy.url for copy in route.copies], 0 if route.canary is None else route.canary.percent)
        if now not in shares[-1:]:
            shares.append(now)
        wait()

    with load.running():
        rollout = deployment_rollout_start(
            deployment=deployment,
            change={"urls": urls[1:]},
            strategy="canary",
            policy=AT_ONCE | {"shares": [50], "wait_seconds": 3},
        )
        drive(deployment, ended(rollout, "completed"), pause=meanwhile)
    assert set(load.answers) == {(200, True)}, load.answers
    assert shares[:2] == [([urls[0]], 0), (urls, 50)]
    assert shares[-1] == ([urls[1]], 0)
    assert pirate.engine_name in models(urls[1])
    take_away(deployment, urls[1:])
