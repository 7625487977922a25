"""Merged copies: requested by REST and by the form, refused, cancelled, and seen by their tenant alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from contracts.recipes.recipe import Recipe
from controlplane.catalog.models import BaseModel, Variant
from controlplane.catalog.services import base_model_register, variant_create
from controlplane.deployments.models import Copy
from controlplane.deployments.services import deployment_create
from controlplane.deployments.targets.services import target_create
from controlplane.optimization.admission import Needs
from controlplane.optimization.attempt import work_run
from controlplane.optimization.merging import adapter_to_merge
from controlplane.optimization.models import Artifact, OptimizationJob
from controlplane.optimization.services import job_create, job_remove
from controlplane.platform.audit.models import AuditRecord
from controlplane.tenants.models import Tenant
from controlplane.tenants.services import api_key_create
from tests.controlplane.conftest import write_checkpoint
from tests.controlplane.deployments.conftest import Register, register, tiny, unregister
from tests.controlplane.optimization.test_api import API, post, staff

__all__ = ["register", "staff", "tiny"]
pytestmark = pytest.mark.django_db


def ask(client: Client, base: BaseModel, **fields: Any) -> Any:
    return post(client, "optimizations", {"base_model": base.name, **fields})


def test_a_merged_copy_is_requested_once_by_either_name(
    staff: Client, tiny: BaseModel, register: Register
) -> None:
    version = register("plain")
    first = ask(staff, tiny, adapter="acme/bot@v1")
    assert first.status_code == 201, first.json()
    job = first.json()
    assert (job["adapter"], job["machine"], job["status"]) == (version.engine_name, "cpu", "queued")
    assert job["variant_name"] == f"acme-bot-v1-merged-{version.sha256[:6]}"
    again = ask(staff, tiny, adapter=version.engine_name, recipe={})
    assert (again.status_code, again.json()["id"]) == (200, job["id"])
    register("all", number=2)
    assert ask(staff, tiny, adapter="acme/bot@v2").status_code == 201, "another version is another copy"
    assert ask(staff, tiny, recipe={"speculation": {"method": "ngram"}}).json()["adapter"] is None
    record = AuditRecord.objects.get(action="optimization.create", target_id=str(job["id"]))
    assert record.after is not None
    assert record.after["adapter"]["name"] == version.engine_name


@pytest.mark.parametrize(
    ("fields", "status", "says"),
    [
        ({"adapter": "bot"}, 400, "adapter must be tenant/adapter@v3 or an engine name, got 'bot'"),
        ({"adapter": "acme/bot@v9"}, 404, "has no ready adapter version 'acme/bot@v9'"),
        ({"adapter": "other/bot@v1"}, 404, "has no ready adapter version 'other/bot@v1'"),
        ({"adapter": "t_acme.a_bot.v1.0123456789ab"}, 404, "has no ready adapter version"),
        ({"adapter": "acme/bot@v1", "recipe": {"quantization": "int8"}}, 400, "leave quantization at none"),
        ({"adapter": "acme/bot@v1", "preset": "lowest_cost"}, 400, "leave quantization at none"),
        (
            {
                "adapter": "acme/bot@v1",
                "recipe": {
                    "target": {"engine": "sagemaker", "hardware": "sm90", "instance_type": "ml.p5.48xlarge"}
                },
            },
            400,
            "merged copies are written on your own machines",
        ),
    ],
)
def test_what_cannot_be_merged_is_refused(
    staff: Client, tiny: BaseModel, register: Register, fields: dict[str, Any], status: int, says: str
) -> None:
    register("plain")
    answer = ask(staff, tiny, **fields)
    assert (answer.status_code, says in str(answer.json())) == (status, True), answer.json()
    assert OptimizationJob.objects.count() == 0


def test_an_adapter_of_another_base_is_refused(
    staff: Client, tiny: BaseModel, register: Register, tmp_path: Path
) -> None:
    register("plain")
    other = base_model_register(name="other", source=write_checkpoint(tmp_path / "other"))
    answer = ask(staff, other, adapter="acme/bot@v1")
    assert answer.status_code == 404
    assert "other has no ready adapter version" in str(answer.json())


def test_a_cancelled_job_leaves_no_variant_and_may_be_asked_again(
    staff: Client, tiny: BaseModel, register: Register
) -> None:
    register("plain")
    first = ask(staff, tiny, adapter="acme/bot@v1").json()["id"]
    assert post(staff, f"optimizations/{first}/cancel", {}).json()["status"] == "cancelled"
    work_run(kind="job", pk=first)
    assert OptimizationJob.objects.get(pk=first).status == "cancelled"
    assert Variant.objects.count() == 0
    assert ask(staff, tiny, adapter="acme/bot@v1").status_code == 201


def test_a_version_that_is_deleted_meanwhile_is_not_merged(tiny: BaseModel, register: Register) -> None:
    version = register("plain")
    adapter = adapter_to_merge(base_model=tiny, name="acme/bot@v1")
    job, _ = job_create(base_model=tiny, recipe=Recipe(), adapter=adapter)
    unregister(version)
    work_run(kind="job", pk=job.pk)
    job.refresh_from_db()
    assert (job.status, job.error_code) == ("failed", "source")
    assert "was deleted since the merged copy was requested: merge another version" in job.reason
    assert Variant.objects.count() == 0


def test_memory_for_a_large_base_is_bounded() -> None:
    large = Needs.to_merge("cpu", 140 << 30)
    assert large.memory < 16 << 30
    assert large.disk > 140 << 30
    assert Needs.to_merge("cpu", 1 << 20).memory < 2 << 30


def fetch(key: str, path: str) -> Any:
    return Client(headers={"authorization": f"Bearer {key}"}).get(f"{API}/{path}")


def test_a_merged_copy_is_listed_for_its_tenant_alone(
    staff: Client, tiny: BaseModel, register: Register, tenant: Tenant, other_tenant: Tenant
) -> None:
    name = register("plain").engine_name
    for variant, merged in (("hot", name), ("int8", "")):
        variant_create(
            base_model=tiny, name=variant, dtype="float32", source=f"/models/{variant}", merged_adapter=merged
        )
    target = target_create(name="here", kind="local")
    hot = deployment_create(name="hot", target=target, base_model=tiny, hosting="fused", variant="hot")
    for copy, merged in (("copy-hot", name), ("copy-shared", "")):
        Copy.objects.create(
            pk=copy,
            base_model=tiny,
            kind="worker",
            url=f"http://{copy}",
            merged_adapter=merged,
            deployment=hot,
        )
    own, others = (
        api_key_create(tenant=each, name="k", scopes=["manage"])[1] for each in (tenant, other_tenant)
    )
    seen = {key: fetch(key, f"base-models/{tiny.name}/variants").json()["results"] for key in (own, others)}
    assert [(item["name"], item["merged_adapter"]) for item in seen[own]] == [("hot", name), ("int8", "")]
    assert [item["name"] for item in seen[others]] == ["int8"]
    assert fetch(own, f"base-models/{tiny.name}/variants/hot").status_code == 200
    assert fetch(others, f"base-models/{tiny.name}/variants/hot").status_code == 404
    for path in (f"base-models/{tiny.name}", "base-models"):
        for key, names, copies in (
            (own, {"hot", "int8"}, {"copy-hot", "copy-shared"}),
            (others, {"int8"}, {"copy-shared"}),
        ):
            found = fetch(key, path).json()
            base = found["results"][0] if "results" in found else found
            assert {item["name"] for item in base["variants"]} == names
            assert {item["id"] for item in base["copies"]} == copies
            assert (name in str(found)) is (key == own)
    assert "hot" in str(staff.get(f"{API}/base-models/{tiny.name}/variants").json()), "staff see all"


def test_the_form_asks_for_an_adapter_and_its_page_leads_to_a_deployment(
    staff: Client, tiny: BaseModel, register: Register
) -> None:
    version = register("plain")
    pages = "/staff/optimizations"
    form = {"base_model": tiny.name, "preset": "merged"}
    assert "enter an adapter version" in staff.post(f"{pages}/new", form).content.decode()
    stray = staff.post(f"{pages}/new", form | {"preset": "balanced", "adapter": "acme/bot@v1"})
    assert "choose Merged copy" in stray.content.decode()
    checked = staff.get(f"{pages}/check", form | {"adapter": "acme/bot@v1"}).content.decode()
    assert "Compatible options." in checked
    made = staff.post(f"{pages}/new", form | {"adapter": "acme/bot@v1"})
    job = OptimizationJob.objects.get()
    assert made["Location"] == f"{pages}/{job.pk}/"
    variant = variant_create(
        base_model=tiny, name="hot", dtype="float32", source="/models/hot", merged_adapter=version.engine_name
    )
    artifact = Artifact.objects.create(
        pk="ab" * 32, state="stored", uri="file:///models/hot/", size=9, files={}
    )
    OptimizationJob.objects.filter(pk=job.pk).update(status="done", variant=variant, artifact=artifact)
    page = staff.get(made["Location"]).content.decode()
    link = f"/staff/deployments/new?base_model={tiny.name}&amp;variant=hot&amp;hosting=fused"
    assert link in page
    assert version.sha256 in page
    prefilled = staff.get(link.replace("&amp;", "&")).content.decode()
    assert 'name="variant" maxlength="63" value="hot"' in prefilled
    assert '<option value="fused" selected>' in prefilled
    assert version.engine_name in staff.get(f"/staff/base-models/{tiny.name}", follow=True).content.decode()
    job_remove(job=OptimizationJob.objects.get())
    assert Variant.objects.count() == 0
