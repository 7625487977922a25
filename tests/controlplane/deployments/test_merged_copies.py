"""An adapter merged into a copy of its base, which real workers serve for that adapter alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from pytest_django import Settings

from contracts.base_routes import BaseRoute
from contracts.recipes.recipe import Recipe
from controlplane.catalog.models import BaseModel, Variant
from controlplane.catalog.services import variant_create, variant_remove
from controlplane.deployments.desired import desired_of
from controlplane.deployments.models import Deployment, Target
from controlplane.deployments.provisioners.base import ProvisioningError
from controlplane.deployments.scaling.selectors import hold_seconds
from controlplane.deployments.services import (
    deployment_create,
    deployment_remove,
    deployment_update,
    scaling_set,
)
from controlplane.deployments.targets.services import target_create
from controlplane.errors import ConflictError, InvalidInputError
from controlplane.optimization.attempt import work_run
from controlplane.optimization.merging import adapter_to_merge
from controlplane.optimization.models import OptimizationJob
from controlplane.optimization.services import job_create
from controlplane.routes.models import RouteEntryRow
from controlplane.routes.services import route_publish_now
from controlplane.tenants.models import Tenant
from controlplane.tenants.services import api_key_create, tenant_create
from tests.controlplane.deployments.conftest import TOKEN, Register, drive, removed, serving, version_put
from tests.controlplane.deployments.test_canaries import known_everywhere
from tests.controlplane.deployments.test_local import ENVIRONMENT, deploy, wait, workers
from tests.controlplane.deployments.test_placing import Load
from tests.gateway.conftest import ControlPlane, GatewayProcess, control_plane  # noqa: F401
from tests.waiting import eventually

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("forked_workers")]
FLOAT32 = ENVIRONMENT | {"GRAFTWORK_WORKER_FLAG_DTYPE": "float32"}


@pytest.fixture
def folder(settings: Settings, tmp_path: Path) -> None:
    settings.GRAFTWORK = dataclasses.replace(settings.GRAFTWORK, optimization_dir=tmp_path / "optimization")


@pytest.fixture
def gateway(tenant: Tenant, redis_url: str, tmp_path: Path) -> Iterator[Load]:
    """A gateway that starts with the routes so far."""
    _, key = api_key_create(tenant=tenant, name="k", scopes=["inference"])
    route_publish_now()
    environ = {"GRAFTWORK_FLEET_TOKEN": TOKEN}
    process = GatewayProcess(redis_url, tmp_path / "wal", tmp_path / "gateway.log", environ=environ)
    try:
        process.start()
        yield Load(process.url, key, "bot")
    finally:
        process.stop()


def merged(base: BaseModel, name: str) -> OptimizationJob:
    """A job that has merged the adapter version."""
    adapter = adapter_to_merge(base_model=base, name=name)
    job, _ = job_create(base_model=base, recipe=Recipe(), adapter=adapter)
    work_run(kind="job", pk=job.pk)
    job.refresh_from_db()
    assert job.variant is not None, (job.reason, job.log_tail)
    return job


def variant_of(base: BaseModel, engine_name: str) -> Variant:
    """A variant with a merged adapter; no worker serves it."""
    source = "/models/merged"
    return variant_create(
        base_model=base, name="hot", dtype="float32", source=source, merged_adapter=engine_name
    )


def route(base: BaseModel) -> BaseRoute:
    return BaseRoute.from_dict(RouteEntryRow.objects.get(path=f"bases/{base.name}").entry)


def answer(load: Load, model: str, key: str = "") -> httpx.Response:
    body = {
        "model": model,
        "prompt": "Once upon a time",
        "max_tokens": 16,
        "temperature": 0,
        "ignore_eos": True,
    }
    headers = {"authorization": f"Bearer {key or load.key}"}
    found = httpx.post(f"{load.url}/v1/completions", json=body, headers=headers, timeout=60)
    assert found.status_code == 200, found.text
    return found


def text(load: Load, model: str, key: str = "") -> str:
    return str(answer(load, model, key).json()["choices"][0]["text"])


@pytest.mark.costly("merges an adapter, and starts a gateway and two workers")
@pytest.mark.timeout(300)
def test_a_merged_copy_answers_for_its_adapter_and_for_nobody_else(
    tiny: BaseModel,
    tenant: Tenant,
    register: Register,
    tiny_adapters: dict[str, Path],
    local_root: Path,
    folder: None,
    gateway: Load,
    control_plane: ControlPlane,  # noqa: F811
) -> None:
    version = register("all", "bot")
    rival = tenant_create(slug="rival", name="Rival")
    version_put(rival, tiny, tiny_adapters["all"], "bot")
    _, rivals_key = api_key_create(tenant=rival, name="k", scopes=["inference"])
    base = drive(deploy(tiny, environment=FLOAT32), serving, pause=wait)
    known_everywhere(gateway)
    expected, plain = text(gateway, "bot"), text(gateway, "tiny-base")
    assert expected != plain

    job = merged(tiny, f"{tenant.pk}/bot@v1")
    assert job.variant is not None
    assert job.variant.merged_adapter == version.engine_name
    assert job.lineage["adapter"] == {
        "tenant": tenant.pk,
        "name": "bot",
        "version": 1,
        "engine_name": version.engine_name,
        "sha256": version.sha256,
        "rank": version.rank,
    }
    assert job.lineage["output"]["identity"]["adapter"] == version.sha256
    hot = deployment_create(
        name="hot",
        target=Target.objects.get(name="here"),
        base_model=tiny,
        hosting="fused",
        variant=job.variant.name,
        environment=FLOAT32,
    )
    drive(hot, serving, pause=wait)
    assert {item.option("--model") for item in workers(local_root)} == {tiny.source, job.variant.source}
    copy, shared = hot.copies.get(), base.copies.get()
    assert [item.id for item in route(tiny).merged_copies(version.engine_name)] == [copy.pk]
    assert [item.id for item in route(tiny).copies_for(None)] == [shared.pk]
    known_everywhere(gateway)

    answers = {
        "bot": answer(gateway, "bot"),
        "tiny-base": answer(gateway, "tiny-base"),
        "rival": answer(gateway, "bot", rivals_key),
    }
    texts = {name: found.json()["choices"][0]["text"] for name, found in answers.items()}
    assert texts == {"bot": expected, "tiny-base": plain, "rival": expected}
    assert answers["bot"].json()["model"] == "bot"
    ids = {found.headers["x-request-id"]: name for name, found in answers.items()}
    metered: dict[str, Any] = {}

    def arrived() -> bool:
        metered.update(
            {ids[event.request_id]: event for event in control_plane.events() if event.request_id in ids}
        )
        return len(metered) == len(ids)

    eventually(arrived)
    assert {name: (event.endpoint, event.tenant) for name, event in metered.items()} == {
        "bot": (copy.pk, tenant.pk),
        "tiny-base": (shared.pk, tenant.pk),
        "rival": (shared.pk, "rival"),
    }
    assert metered["bot"].adapter == version.engine_name, "billed to the adapter as before"
    assert metered["bot"].completion_tokens == 16

    deployment_remove(deployment=hot)
    drive(hot, removed, pause=wait)
    known_everywhere(gateway)
    assert text(gateway, "bot") == expected, "copies of the base take over"
    deployment_remove(deployment=base)
    drive(base, removed, pause=wait)


def test_a_merged_variant_is_hosted_fused_alone(
    tiny: BaseModel, register: Register, local_root: Path
) -> None:
    variant = variant_of(tiny, register("plain").engine_name)
    here = target_create(name="here", kind="local")
    with pytest.raises(InvalidInputError, match="serves that adapter alone: choose hosting fused") as caught:
        deployment_create(name="hot", target=here, base_model=tiny, variant=variant.name)
    assert caught.value.field == "hosting"
    with pytest.raises(InvalidInputError, match="min_copies must be at least 1 for a merged copy"):
        deployment_create(
            name="hot", target=here, base_model=tiny, hosting="fused", variant=variant.name, min_copies=0
        )
    with pytest.raises(InvalidInputError, match="hosting fused on a host requires a variant with a merged"):
        deployment_create(name="hot", target=here, base_model=tiny, hosting="fused")
    made = deployment_create(name="hot", target=here, base_model=tiny, hosting="fused", variant=variant.name)
    assert made.merged_adapter == variant.merged_adapter
    night = {"name": "night", "at": "22:00", "days": ["mon"], "min_copies": 0, "max_copies": 1}
    with pytest.raises(InvalidInputError, match="a merged copy does not scale to zero"):
        scaling_set(deployment=made, target=4, schedule=[night])
    assert hold_seconds(base_model_id=tiny.pk) == 0


def test_a_deployment_keeps_the_adapter_it_was_created_for(
    tiny: BaseModel, register: Register, local_root: Path
) -> None:
    variant = variant_of(tiny, register("plain").engine_name)
    here = target_create(name="here", kind="local")
    shared: Deployment = deployment_create(name="shared", target=here, base_model=tiny)
    with pytest.raises(InvalidInputError, match="serves the base model: create a deployment with hosting"):
        deployment_update(deployment=shared, variant=variant.name)
    hot = deployment_create(name="hot", target=here, base_model=tiny, hosting="fused", variant=variant.name)
    with pytest.raises(InvalidInputError, match="hot serves only t_"):
        deployment_update(deployment=hot, variant="")


def test_a_variant_of_the_same_name_never_replaces_another(
    tiny: BaseModel, register: Register, local_root: Path
) -> None:
    """A deployment knows its variant by name: a merged copy of that name must not serve all tenants."""
    here = target_create(name="here", kind="local")
    values: dict[str, Any] = {"base_model": tiny, "name": "fast", "dtype": "float32", "source": tiny.source}
    plain = variant_create(**values)
    shared = deployment_create(name="shared", target=here, base_model=tiny, variant=plain.name)
    assert desired_of(shared).checkpoint == plain.source
    with pytest.raises(ConflictError, match="variant fast is in use by shared"):
        variant_remove(variant=plain)
    plain.delete()
    variant_create(**values, merged_adapter=register("plain").engine_name)
    with pytest.raises(ProvisioningError, match="variant fast was replaced since this deployment was"):
        desired_of(shared)
