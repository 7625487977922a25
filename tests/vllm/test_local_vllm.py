"""Two vLLM servers and our worker behind one gateway: adapters loaded, tokens metered, one server killed."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from pathlib import Path

import httpx
import pytest

from contracts.base_routes import BaseRoute
from controlplane.deployments.models import Deployment
from controlplane.deployments.reconciler import deployment_reconcile
from controlplane.deployments.services import deployment_remove
from controlplane.routes.models import RouteEntryRow
from controlplane.tenants.models import Tenant
from tests.controlplane.deployments.conftest import drive, removed, serving, version_put
from tests.vllm.checkpoints import CHECKPOINTS
from tests.vllm.servers import (
    ENVIRONMENT,
    OPTIONS,
    PROMPT,
    TOKENS,
    Caller,
    calling,
    deploy,
    registered,
    servers,
    usage_events,
    wait,
)
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True), pytest.mark.timeout(1800)]
ADAPTERS = 3


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
