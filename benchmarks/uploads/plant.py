"""The processes of an upload: the web process, Redis and the worker that validates."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from benchmarks.processes import ROOT, Killable, free_port, run_python, status_of, wait_until
from benchmarks.uploads.files import RANK
from demo.valkey import server_command

_SETUP: Final = """
import django, json, sys; django.setup()
from controlplane.catalog.services import base_model_register, base_model_update
from controlplane.tenants.services import api_key_create, tenant_create
for name, source in json.loads(sys.argv[1]).items():
    base = base_model_register(name=name, source=source)
    base_model_update(base_model=base, max_lora_rank=int(sys.argv[2]))
tenant = tenant_create(slug="bench", name="Bench")
print(api_key_create(tenant=tenant, name="bench", scopes=["manage"])[1])
"""


@dataclass(frozen=True)
class Plant:
    """The running processes, a tenant's key, and the command line's environment."""

    url: str
    key: str
    web: Killable
    worker: Killable
    store: Path
    environ: dict[str, str]
    log: Path

    def get(self, path: str) -> Any:
        """Return the REST API's answer."""
        headers = {"Authorization": f"Bearer {self.key}"}
        answer = httpx.get(f"{self.url}/api/v1{path}", headers=headers, timeout=60, trust_env=False)
        return answer.raise_for_status().json()

    def push(self, folder: Path, *, name: str, base_model: str) -> subprocess.Popen[bytes]:
        """Start the command line: it sends the folder and waits until it is ready. A second run resumes."""
        options = (str(folder), "--name", name, "--base-model", base_model)
        command = (sys.executable, "-m", "graftwork", "adapters", "push", *options)
        with self.log.open("ab") as log:
            return subprocess.Popen(command, cwd=ROOT, env=self.environ, stdout=log, stderr=log)

    def restart_web(self) -> None:
        """Kill the web process with SIGKILL, and start a new one at the same address."""
        self.web.kill(random.Random(1))
        self.web.start()
        wait_until(lambda: self.get("/me"), seconds=60, name="the web process", pause=0.2)


@contextlib.contextmanager
def running(folder: Path, database_url: str, *, bases: dict[str, Path]) -> Iterator[Plant]:
    """Start everything on a migrated database, with `bases` registered."""
    redis, web = free_port(), free_port()
    environ = {
        "DJANGO_SETTINGS_MODULE": "controlplane.settings",
        "GRAFTWORK_DATABASE_URL": database_url,
        "GRAFTWORK_REDIS_URL": f"redis://127.0.0.1:{redis}/0",
        "GRAFTWORK_SECRET_KEY": "bench",
        "GRAFTWORK_ARTIFACT_STORE": f"file://{folder / 'store'}",
        "TMPDIR": str(folder / "spool"),
    }
    (folder / "valkey").mkdir()
    (folder / "spool").mkdir()

    def process(name: str, *command: str) -> Killable:
        return Killable(name, command, environ, folder / f"{name}.log")

    python = sys.executable
    served = process("web", python, "-m", "controlplane.web_server", "--port", str(web))
    celery = "-m celery -A controlplane.celery worker -Q graftwork.long --concurrency 1"
    worker = process("worker", python, *celery.split())
    valkey = process("redis", *server_command(port=redis, folder=folder / "valkey"))
    processes = (valkey, served, worker)
    try:
        valkey.start()
        sources = json.dumps({name: str(path) for name, path in bases.items()})
        key = run_python(os.environ | environ, "-c", _SETUP, sources, str(RANK)).split()[-1]
        url = f"http://127.0.0.1:{web}"
        cli = {
            "GRAFTWORK_API_URL": url,
            "GRAFTWORK_API_KEY": key,
            "GRAFTWORK_CLI_CONFIG": str(folder / "cli" / "session.json"),
            "NO_PROXY": "127.0.0.1",
        }
        plant = Plant(
            url, key, served, worker, folder / "store", {**os.environ, **cli}, folder / "client.log"
        )
        served.start()
        worker.start()
        wait_until(lambda: status_of(f"{url}/api/v1/me") == 401, seconds=60, name="the web process")
        yield plant
    finally:
        for each in reversed(processes):
            each.stop()
