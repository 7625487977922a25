"""A real control plane, Celery worker, ingest and gateway, as processes that the client's tests share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from tests.conftest import ROOT, free_port, stop
from tests.controlplane.conftest import adapter_files, write_checkpoint
from tests.database_templates import sqlite_copy
from tests.gateway.conftest import FLEET_TOKEN, GatewayProcess
from tests.waiting import eventually

SEED = """
import django; django.setup()
from controlplane.billing.services import price_book_create, price_set
from controlplane.catalog.services import base_model_register
from controlplane.deployments.copies.services import copy_register
from controlplane.tenants.services import api_key_create, tenant_create
import datetime
base = base_model_register(name="tiny-base", source={source!r})
copy_register(base_model=base, kind="openai_http", url={upstream!r})
book = price_book_create(name="standard", is_default=True)
price_set(book=book, base_model="tiny-base", effective_from=datetime.date(2020, 1, 1), input_nano=100,
          cached_input_nano=50, output_nano=1000)
tenant = tenant_create(slug="acme", name="Acme")
print(api_key_create(tenant=tenant, name="all", scopes=["manage", "inference"])[1])
print(api_key_create(tenant=tenant, name="calls", scopes=["inference"])[1])
"""


@dataclass(frozen=True)
class Result:
    """Result of one run of the command line."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass
class Product:
    """Addresses and keys of the running product, and its command line."""

    url: str
    gateway_url: str
    key: str
    inference_key: str
    home: Path
    environ: dict[str, str] = field(default_factory=dict)

    def run(self, *arguments: str, stdin: str = "", **environ: str) -> Result:
        """Runs `graftwork <arguments>` as a process with a home of its own."""
        env = {name: value for name, value in os.environ.items() if not name.startswith("GRAFTWORK_")}
        env |= {
            "HOME": str(self.home),
            "XDG_CONFIG_HOME": str(self.home),
            "COLUMNS": "200",
            "TERM": "dumb",
            "PYTHONPATH": str(ROOT / "clients" / "python"),
            **self.environ,
            **environ,
        }
        done = subprocess.run(
            [sys.executable, "-m", "graftwork", *arguments],
            env=env,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
        )
        return Result(done.returncode, done.stdout, done.stderr)

    def ok(self, *arguments: str, **options: Any) -> Result:
        """Run a command that must succeed."""
        done = self.run(*arguments, **options)
        assert done.status == 0, done
        return done


@pytest.fixture(scope="module")
def product(redis_server: str, upstream: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    """A tenant with two keys, a base model, and everything that runs."""
    folder = tmp_path_factory.mktemp("product")
    # Other tests empty database 0; pooled gateways have the first ones after it.
    redis_url = redis_server.removesuffix("/0") + "/15"
    with redis.Redis.from_url(redis_url) as client:
        client.flushdb()
    port, gateway_port = free_port(), free_port()
    env = {name: value for name, value in os.environ.items() if not name.startswith("GRAFTWORK_")} | {
        "DJANGO_SETTINGS_MODULE": "controlplane.settings",
        "GRAFTWORK_DATABASE_URL": sqlite_copy(folder / "live.db"),
        "GRAFTWORK_REDIS_URL": redis_url,
        "GRAFTWORK_FLEET_TOKEN": FLEET_TOKEN,
        "GRAFTWORK_ARTIFACT_STORE": f"file://{folder / 'store'}",
        "GRAFTWORK_WEB_URL": f"http://127.0.0.1:{port}",
        "GRAFTWORK_GATEWAY_URL": f"http://127.0.0.1:{gateway_port}/v1",
        "PYTHONUNBUFFERED": "1",
    }

    def python(*arguments: str) -> str:
        return subprocess.run(
            [sys.executable, *arguments], env=env, cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout

    source = str(write_checkpoint(folder / "base"))
    key, inference_key = python("-c", SEED.format(source=source, upstream=upstream)).split()
    commands = [
        ["-m", "controlplane.web_server", "--port", str(port)],
        ["-m", "celery", "-A", "controlplane.celery", "worker", "--pool", "solo"],
        ["manage.py", "ingest_usage"],
    ]
    gateway = GatewayProcess(redis_url, folder / "wal", folder / "gateway.log", port=gateway_port)
    with (folder / "log").open("wb") as log:
        processes = [
            subprocess.Popen([sys.executable, *command], env=env, cwd=ROOT, stdout=log, stderr=log)
            for command in commands
        ]
    try:
        gateway.start()
        eventually(
            lambda: httpx.get(f"http://127.0.0.1:{port}/api/v1/me").status_code == 401,
            suppress=(httpx.TransportError,),
            message="the control plane answers",
        )
        url = f"http://127.0.0.1:{port}"
        yield Product(url, f"http://127.0.0.1:{gateway_port}/v1", key, inference_key, folder)
    finally:
        gateway.stop()
        for process in processes:
            stop(process)


@pytest.fixture
def cli(product: Product, tmp_path: Path) -> Product:
    """The command line, logged in by its environment, with an empty home."""
    environ = {"GRAFTWORK_API_URL": product.url, "GRAFTWORK_API_KEY": product.key}
    return Product(product.url, product.gateway_url, product.key, product.inference_key, tmp_path, environ)


@pytest.fixture
def adapter_folder(tmp_path: Path) -> Path:
    """An adapter of the small base model, as PEFT and a trainer write it."""
    folder = tmp_path / "adapter"
    folder.mkdir()
    for name, data in {**adapter_files(), "optimizer.pt": b"x", "training_args.bin": b"x"}.items():
        (folder / name).write_bytes(data)
    return folder
