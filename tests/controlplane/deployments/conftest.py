"""A target, a tiny model, and adapters of it in the real store and the routes."""

from __future__ import annotations

import dataclasses
import functools
import shutil
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from botocore.loaders import JSONFileLoader
from django.utils import timezone
from pytest_django import Settings
from safetensors import safe_open

from contracts.adapters.reference import ADAPTER_FILES
from controlplane.adapters.models import Adapter, AdapterVersion
from controlplane.adapters.services import adapter_publish
from controlplane.artifacts.store import artifact_store
from controlplane.catalog.digests import digest_run
from controlplane.catalog.models import BaseModel
from controlplane.catalog.services import base_model_register
from controlplane.deployments.models import Deployment
from controlplane.deployments.provisioners import provisioner_of
from controlplane.deployments.provisioners.local import processes
from controlplane.deployments.reconciler import Make, deployment_reconcile
from controlplane.tenants.models import Tenant
from tests.worker_engine.tiny_adapter import adapter_ref
from tests.worker_process import assert_forked

TOKEN = "fleet-secret"


@pytest.fixture(scope="session", autouse=True)
def aws_models_are_parsed_once() -> Iterator[None]:
    """Each round of the reconciler makes its clients anew, as each process does; a fifth of their tests'
    time went into the same files of botocore's. botocore too shares what it read, among a session's clients.
    """
    read = JSONFileLoader().load_file
    with pytest.MonkeyPatch.context() as patch:
        parsed = functools.cache(read)
        patch.setattr(JSONFileLoader, "load_file", lambda _, path: parsed(path))
        yield


@pytest.fixture(autouse=True)
def quick(settings: Settings, graftwork: Path) -> None:
    """Nothing that leaves the routes is waited for, unless a test says so."""
    settings.GRAFTWORK = dataclasses.replace(
        settings.GRAFTWORK, deployment_drain_seconds=0, fleet_token=TOKEN, openai_http_key=TOKEN
    )


@pytest.fixture
def tiny(db: None, tiny_model: Path) -> BaseModel:
    """The tiny checkpoint, registered from its folder, its digests taken."""
    base = base_model_register(name="tiny-base", source=tiny_model, served_name="tiny")
    digest_run(base_model_id=base.pk)
    base.refresh_from_db()
    return base


Register = Callable[..., AdapterVersion]


@pytest.fixture
def register(tiny: BaseModel, tenant: Tenant, tiny_adapters: dict[str, Path]) -> Register:
    """Puts a ready version of one of the tiny adapters into the store and the routes.

    Its arguments: which of them, the adapter's name, the version's number.
    """

    def put(which: str, name: str = "bot", number: int = 1) -> AdapterVersion:
        return version_put(tenant, tiny, tiny_adapters[which], name, number)

    return put


def version_put(tenant: Tenant, base: BaseModel, folder: Path, name: str, number: int = 1) -> AdapterVersion:
    """A ready version of an adapter's folder, in the store and in the routes."""
    ref = adapter_ref(folder)
    kept = f"adapters/{ref.sha256}"
    for file in ADAPTER_FILES:
        if artifact_store().size(f"{kept}/{file}") is None:
            with (folder / file).open("rb") as stream:
                artifact_store().put(f"{kept}/{file}", stream, limit=1 << 30)
    adapter, _ = Adapter.objects.get_or_create(tenant=tenant, name=name, defaults={"base_model": base})
    version = AdapterVersion.objects.create(
        adapter=adapter,
        number=number,
        status="ready",
        sha256=ref.sha256,
        rank=rank_in(folder),
        uri=artifact_store().uri(kept),
    )
    adapter_publish(adapter=adapter)
    return version


def rank_in(folder: Path) -> int:
    """The largest, by the weights themselves."""
    with safe_open(folder / "adapter_model.safetensors", framework="pt") as file:
        names = [name for name in file.keys() if "lora_A" in name]  # noqa: SIM118 - no mapping
        return max(int(file.get_slice(name).get_shape()[0]) for name in names)


def unregister(version: AdapterVersion) -> None:
    """Takes a version out of the routes, as its deletion does."""
    version.deleted_at = timezone.now()
    version.save()
    adapter_publish(adapter=version.adapter)


def drive(
    deployment: Deployment,
    until: Callable[[Deployment], bool],
    *,
    make: Make = provisioner_of,
    rounds: int = 400,
    pause: Callable[[], None] = lambda: None,
) -> Deployment:
    """Run the reconciler until `until` holds for the row; return the row."""
    for _ in range(rounds):
        deployment_reconcile(deployment_id=deployment.pk, make=make)
        deployment.refresh_from_db()
        if until(deployment):
            return deployment
        pause()
    raise AssertionError(
        f"still {deployment.status}: {deployment.reason}\n"
        + "\n".join(
            f"{step.action} {step.resource} {step.outcome} {step.cause}" for step in deployment.steps.all()
        )
    )


class StatusRecorder:
    """A pause in which a deployment's status and reason are noted."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment, self.observed = deployment, set[tuple[str, str]]()

    def __call__(self) -> None:
        row = Deployment.objects.get(pk=self.deployment.pk)
        self.observed.add((row.status, row.reason))
        time.sleep(0.2)  # The account changes meanwhile.

    def says_that_it_serves(self, reason: str) -> None:
        """The status was "serving" throughout, and no adapter woke the reconciler."""
        assert {status for status, _ in self.observed} == {"serving"}, self.observed
        assert reason in {reason for _, reason in self.observed}, self.observed
        assert not self.deployment.steps.filter(action="look").exists()


def serving(deployment: Deployment) -> bool:
    """The deployment serves, and no change is in progress, of an adapter either."""
    return deployment.status == Deployment.Status.SERVING and not deployment.reason


def removed(deployment: Deployment) -> bool:
    return deployment.removed_at is not None


def orphan(deployment: Deployment) -> None:
    """Leaves the row as a killed process does: the lease is another's, and has run out."""
    past = timezone.now() - timedelta(seconds=1)
    Deployment.objects.filter(pk=deployment.pk).update(lease_owner="dead", lease_until=past)


@pytest.fixture
def local_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forked_workers: None) -> Iterator[Path]:
    """The folder of local copies; at the end every process in it is stopped."""
    root = tmp_path / "var"
    monkeypatch.setattr("controlplane.deployments.provisioners.local.provisioner.VAR", root)
    yield root
    assert_forked(root)
    for process in processes.processes():
        if str(root) in process.option("--adapter-cache-dir"):
            processes.end(process.pid)
    shutil.rmtree(root, ignore_errors=True)


def port_of(url: str) -> int:
    return urlsplit(url).port or 0
