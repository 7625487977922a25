"""A control plane on real Valkey, with two tenants and a small base model."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from kombu import pools
from pytest_django import Settings
from pytest_django.plugin import DjangoDbBlocker

from controlplane.catalog.models import BaseModel
from controlplane.catalog.services import base_model_register
from controlplane.platform.celery import app as celery
from controlplane.platform.row_security.grants import web_role_grant
from controlplane.platform.row_security.postgresql.base import DatabaseWrapper
from controlplane.platform.row_security.scope import current_scope
from controlplane.tenants.models import Tenant
from controlplane.tenants.services import tenant_create
from tests.conftest import ROOT, stop
from tests.database_templates import web_role_name

HIDDEN, KV, LAYERS = 8, 4, 2
CONFIG: dict[str, Any] = {
    "peft_type": "LORA",
    "task_type": "CAUSAL_LM",
    "r": 2,
    "lora_alpha": 4,
    "bias": "none",
    "target_modules": ["q_proj", "v_proj"],
}

Tensor = tuple[str, Sequence[int], bytes]
"""dtype, shape, bytes"""


def safetensors(tensors: Mapping[str, Tensor]) -> bytes:
    """A safetensors file, written from the format's description alone."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, (dtype, shape, raw) in tensors.items():
        offsets = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": offsets}
        data += raw
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def bf16(*shape: int, fill: int = 0x3F80) -> Tensor:
    """A bfloat16 tensor filled with one bit pattern (1.0 by default)."""
    count = 1
    for size in shape:
        count *= size
    return "BF16", shape, struct.pack("<H", fill) * count


def adapter_tensors(rank: int = 2) -> dict[str, Tensor]:
    """A whole adapter of the small base model: q_proj and v_proj of each layer."""
    tensors: dict[str, Tensor] = {}
    for layer in range(LAYERS):
        for module, out in (("q_proj", HIDDEN), ("v_proj", KV)):
            path = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            tensors[f"{path}.lora_A.weight"] = bf16(rank, HIDDEN)
            tensors[f"{path}.lora_B.weight"] = bf16(out, rank)
    return tensors


def adapter_files(
    config: Mapping[str, Any] = CONFIG, tensors: Mapping[str, Tensor] | None = None
) -> dict[str, bytes]:
    """The two files of an adapter."""
    weights = safetensors(adapter_tensors() if tensors is None else tensors)
    return {"adapter_config.json": json.dumps(config).encode(), "adapter_model.safetensors": weights}


def write_checkpoint(folder: Path) -> Path:
    """A Llama-shaped checkpoint of two tiny layers, in two shards."""
    folder.mkdir(parents=True)
    config = {"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 256, "dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(config))
    weight_map = {}
    for layer in range(LAYERS):
        path, name = f"model.layers.{layer}", f"model-{layer}.safetensors"
        tensors = {
            f"{path}.self_attn.q_proj.weight": bf16(HIDDEN, HIDDEN),
            f"{path}.self_attn.v_proj.weight": bf16(KV, HIDDEN),
            f"{path}.input_layernorm.weight": bf16(HIDDEN),
        }
        if layer == 0:
            tensors["model.embed_tokens.weight"] = bf16(16, HIDDEN)
        (folder / name).write_bytes(safetensors(tensors))
        weight_map.update(dict.fromkeys(tensors, name))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


@pytest.fixture(autouse=True)
def graftwork(settings: Settings, redis_url: str, tmp_path: Path) -> Path:
    """Points the settings at this test's Valkey and folders; returns the import root."""
    root = tmp_path / "import"
    root.mkdir()
    # The real hash is slow on purpose; no test is about it.
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    # Else each test client looks through all static files.
    settings.WHITENOISE_AUTOREFRESH = True
    settings.GRAFTWORK = dataclasses.replace(
        settings.GRAFTWORK,
        redis_url=redis_url,
        artifact_store=f"file://{tmp_path / 'artifacts'}",
        import_roots=(root,),
        import_buckets=("open-bucket/adapters",),
    )
    settings.CACHES = {"default": settings.CACHES["default"] | {"LOCATION": redis_url}}
    celery.conf.broker_url = redis_url
    return root


@pytest.fixture(scope="session")
def weasyprint() -> None:
    """Loads WeasyPrint before a test that renders a PDF: it starts many processes to find its libraries."""
    importlib.import_module("weasyprint")


@pytest.fixture(autouse=True)
def looks_at_rollouts_are_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn off the cache of a rollout's totals: on a busy machine any query may be slow and be cached."""
    monkeypatch.setattr("controlplane.canaries.sides._CHEAP_S", float("inf"))


@pytest.fixture(scope="session", autouse=True)
def web_role(request: pytest.FixtureRequest, django_db_blocker: DjangoDbBlocker) -> Iterator[str]:
    """On PostgreSQL a role as the web process has it, made outside of any test's transaction; else ''."""
    if connection.vendor != "postgresql":
        yield ""
        return
    request.getfixturevalue("django_db_setup")
    name = web_role_name(connection.settings_dict["NAME"])
    with django_db_blocker.unblock():
        web_role_grant(name=name)
    yield name
    with django_db_blocker.unblock(), connection.cursor() as cursor:
        cursor.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


@pytest.fixture(autouse=True)
def requests_as_the_web_role(
    request: pytest.FixtureRequest,
    web_role: str,
    monkeypatch: pytest.MonkeyPatch,
    django_db_blocker: DjangoDbBlocker,
) -> None:
    """On PostgreSQL every request that a test makes meets the row policies, as the web process does; the
    test's own statements are the owner's. Not in modules that have a ROLE of their own."""
    if not web_role:
        return
    if connection.connection is not None:
        # Both roles share this session; a temporary table that one left is denied to the other.
        with django_db_blocker.unblock(), connection.cursor() as cursor:
            cursor.execute("DISCARD TEMP")
    if hasattr(request.module, "ROLE"):
        return
    state = DatabaseWrapper.state_scope

    def state_and_switch(database: DatabaseWrapper) -> None:
        state(database)
        if database.connection is not None and not database.needs_rollback:
            name = "NONE" if current_scope() is None else web_role
            database.connection.execute(f"SET LOCAL ROLE {name}")

    monkeypatch.setattr(DatabaseWrapper, "state_scope", state_and_switch)


@pytest.fixture
def base_model(db: None, tmp_path: Path) -> BaseModel:
    """The small base model, registered."""
    return base_model_register(name="tiny-base", source=write_checkpoint(tmp_path / "checkpoint"))


@pytest.fixture
def tenant(db: None) -> Tenant:
    """A tenant."""
    return tenant_create(slug="acme", name="Acme")


@pytest.fixture
def other_tenant(db: None) -> Tenant:
    """Another one."""
    return tenant_create(slug="globex", name="Globex")


Start = Callable[..., "subprocess.Popen[bytes]"]


def _database_url() -> str:
    """URL of this test's own database, for other processes."""
    database = connection.settings_dict
    if connection.vendor == "sqlite":
        return f"sqlite:///{database['NAME']}"
    return (
        f"postgresql://{database['USER']}:{database['PASSWORD']}@{database['HOST']}"
        f":{database['PORT'] or 5432}/{database['NAME']}"
    )


@pytest.fixture
def start(transactional_db: None, redis_url: str, tmp_path: Path) -> Iterator[Start]:
    """Starts `python <arguments>` as a process on this test's database; its log is `<tmp_path>/log`."""
    processes: list[subprocess.Popen[bytes]] = []
    # An emptied broker has lost the queues that this process remembers to have made.
    pools.reset()  # type: ignore[no-untyped-call]
    celery._pool = celery.amqp._producer_pool = None

    def run(*arguments: str, redis: str = redis_url, **more: str) -> subprocess.Popen[bytes]:
        env = {name: value for name, value in os.environ.items() if not name.startswith("GRAFTWORK_")} | {
            "GRAFTWORK_DATABASE_URL": _database_url(),
            "GRAFTWORK_REDIS_URL": redis,
            "GRAFTWORK_ARTIFACT_STORE": f"file://{tmp_path / 'artifacts'}",
            "PYTHONUNBUFFERED": "1",
            **more,
        }
        with (tmp_path / "log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, *arguments], env=env, cwd=ROOT, stdout=log, stderr=log
            )
        processes.append(process)
        return process

    yield run
    for process in processes:
        stop(process)
