"""Two vLLM servers and our worker behind one gateway: adapters loaded, tokens metered, one server killed."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis import Redis

from contracts.base_routes import BaseRoute
from contracts.redis_names import USAGE_STREAM
from controlplane.catalog.digests import digest_run
from controlplane.catalog.models import BaseModel
from controlplane.catalog.services import base_model_register
from controlplane.deployments.models import Deployment, Target
from controlplane.deployments.provisioners.local.engines import VLLM
from controlplane.deployments.provisioners.local.processes import Process, processes
from controlplane.deployments.reconciler import deployment_reconcile
from controlplane.deployments.services import deployment_create, deployment_remove
from controlplane.deployments.targets.services import target_create
from controlplane.routes.models import RouteEntryRow
from controlplane.tenants.models import Tenant
from controlplane.tenants.services import api_key_create
from tests.controlplane.deployments.conftest import drive, removed, serving, version_put
from tests.gateway.conftest import GatewayProcess
from tests.vllm.checkpoints import CHECKPOINTS
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True), pytest.mark.timeout(1800)]
ENVIRONMENT = {
    "GRAFTWORK_VLLM_FLAG_ENFORCE_EAGER": "",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, sorted(os.sched_getaffinity(0)))),
}
OPTIONS = {"max_model_len": 512, "max_rolling_batch_size": 8, "max_loras": 2, "max_cpu_loras": 2}
PROMPT, TOKENS = "hello world", 6
ADAPTERS = 3


def servers(root: Path) -> list[Process]:
    found = [(process, VLLM.folder_of(process)) for process in processes()]
    return [process for process, folder in found if folder is not None and root in folder.parents]


def wait() -> None:
    time.sleep(1)  # vLLM starts or ends meanwhile.


def registered(name: str, folder: Path) -> BaseModel:
    base = base_model_register(name=name, source=CHECKPOINTS[name].write(folder / name), served_name=name)
    digest_run(base_model_id=base.pk)
    base.refresh_from_db()
    return base


def deploy(base: BaseModel, name: str, **values: Any) -> Deployment:
    target = Target.objects.filter(name="here").first() or target_create(name="here", kind="local")
    return deployment_create(name=name, target=target, base_model=base, max_copies=4, **values)


class Caller:
    """A tenant's calls through the gateway, with the status and usage of each answer."""

    def __init__(self, url: str, key: str) -> None:
        self.http = httpx.Client(
            base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=120, trust_env=False
        )

    def complete(self, model: str, **fields: Any) -> httpx.Response:
        body = {"model": model, "prompt": PROMPT, "max_tokens": TOKENS, "ignore_eos": True, "temperature": 0}
        return self.http.post("/v1/completions", json=body | fields)


@pytest.fixture
def caller(tenant: Tenant, redis_url: str, tmp_path: Path) -> Iterator[Caller]:
    _, key = api_key_create(tenant=tenant, name="k", scopes=["inference"])
    gateway = GatewayProcess(redis_url, tmp_path / "wal", tmp_path / "gateway.log")
    try:
        gateway.start()
        calls = Caller(gateway.url, key)
        with calls.http:
            yield calls
    finally:
        gateway.stop()


def usage_events(redis_url: str) -> list[dict[str, Any]]:
    with Redis.from_url(redis_url) as redis:
        return [json.loads(fields[b"event"]) for _, fields in redis.xrange(USAGE_STREAM)]


@contextmanager
def calling(caller: Caller, models: list[str]) -> Iterator[Counter[int]]:
    """Calls the models in turn until the end; yields the count of each status."""
    over, statuses = threading.Event(), Counter[int]()

    def work() -> None:
        while not over.is_set():
            for model in models:
                statuses[caller.complete(model).status_code] += 1

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield statuses
    finally:
        over.set()
        thread.join(120)


def test_two_servers_and_a_worker_serve_adapters_and_a_killed_server_heals(
    vllm_root: Path, tenant: Tenant, tmp_path: Path, caller: Caller, redis_url: str
) -> None:
    base = registered("llama", tmp_path)
    beside = deploy(base, "worker", environment={"GRAFTWORK_WORKER_FLAG_MEMORY_GIB": "0.02"})
    drive(beside, serving, pause=wait)
    vllm = deploy(base, "vllm", image_family="vllm", min_copies=2, options=OPTIONS, environment=ENVIRONMENT)
    drive(vllm, serving, pause=wait)
    folders = [
        CHECKPOINTS["llama"].write_adapter(Path(base.source), tmp_path / f"lora{number}", seed=number)
        for number in range(ADAPTERS)
    ]
    versions = [version_put(tenant, base, folder, f"bot{n}") for n, folder in enumerate(folders)]
    models = ["llama", *(f"bot{number}" for number in range(ADAPTERS))]
    eventually(lambda: caller.complete(models[-1]).status_code == 200)

    route = BaseRoute.from_dict(RouteEntryRow.objects.get(path="bases/llama").entry)
    assert Counter(copy.kind for copy in route.copies) == {"openai_http": 2, "worker": 1}
    urls = [copy.url for copy in route.copies if copy.kind == "openai_http"]
    for url in urls:
        assert httpx.get(f"{url}/v1/models", trust_env=False).status_code == 401
    tokens = {copy.credentials.token for copy in vllm.copies.all()}
    assert len(tokens) == 2
    shown = json.dumps(RouteEntryRow.objects.get(path="bases/llama").entry) + str(servers(vllm_root))
    assert not any(token in shown for token in tokens), "neither in the routes nor in a command line"

    before = len(usage_events(redis_url))
    for model in models * 4:
        answer = caller.complete(model)
        assert answer.status_code == 200, answer.text
        usage = answer.json()["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (len(PROMPT), TOKENS)
    eventually(lambda: len(usage_events(redis_url)) >= before + 4 * len(models))
    for event in usage_events(redis_url)[before:]:
        assert (event["prompt_tokens"], event["completion_tokens"]) == (len(PROMPT), TOKENS)
        assert not event["estimated"]

    def loaded() -> list[set[str]]:
        found = []
        for copy in vllm.copies.all():
            answer = httpx.get(f"{copy.url}/v1/models", headers=copy.request_headers, trust_env=False)
            found.append({item["id"] for item in answer.json()["data"]} - {"llama"})
        return found

    names = {version.engine_name for version in versions}
    assert set().union(*loaded()) <= names
    assert all(len(there) <= OPTIONS["max_cpu_loras"] for there in loaded()), "as many as its cache holds"

    with calling(caller, models) as statuses:
        (first, *_) = servers(vllm_root)
        os.kill(first.pid, signal.SIGKILL)

        def healed(row: Deployment) -> bool:
            return serving(row) and first.pid not in {item.pid for item in servers(vllm_root)}

        drive(vllm, healed, pause=wait)
        count = statuses.total()
        eventually(lambda: statuses.total() > count + 3 * len(models))
    assert set(statuses) == {200}, statuses
    assert len(servers(vllm_root)) == 2
    assert vllm.steps.filter(action="start_vllm").count() == 3

    for deployment in (vllm, beside):
        deployment_remove(deployment=deployment)
        drive(deployment, removed, pause=wait)
    assert servers(vllm_root) == []
    deployment_reconcile(deployment_id=vllm.pk)
