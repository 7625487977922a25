"""Deployments of tiny checkpoints on real vLLM servers, and a tenant's calls of them."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from redis import Redis

from contracts.redis_names import USAGE_STREAM
from controlplane.catalog.digests import digest_run
from controlplane.catalog.models import BaseModel
from controlplane.catalog.services import base_model_register
from controlplane.deployments.models import Deployment, Target
from controlplane.deployments.provisioners.local.engines import VLLM
from controlplane.deployments.provisioners.local.processes import Process, processes
from controlplane.deployments.services import deployment_create
from controlplane.deployments.targets.services import target_create
from tests.vllm.checkpoints import CHECKPOINTS

ENVIRONMENT = {
    "GRAFTWORK_VLLM_FLAG_ENFORCE_EAGER": "",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, sorted(os.sched_getaffinity(0)))),
}
OPTIONS = {"max_model_len": 512, "max_rolling_batch_size": 8, "max_loras": 2, "max_cpu_loras": 2}
PROMPT, TOKENS = "hello world", 6
ANSWER = {"max_tokens": TOKENS, "ignore_eos": True, "temperature": 0}


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
        return self.http.post("/v1/completions", json={"model": model, "prompt": PROMPT} | ANSWER | fields)

    def chat(self, model: str, content: Any, **fields: Any) -> httpx.Response:
        messages = [{"role": "user", "content": content}]
        body = {"model": model, "messages": messages} | ANSWER | fields
        return self.http.post("/v1/chat/completions", json=body)


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
