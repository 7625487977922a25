"""Where a version can be served, and what becomes of names when nothing can serve it."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from contracts.route_table import AdapterRoute
from controlplane.adapters.aliases import adapter_pin, alias_move, alias_rollback, alias_split
from controlplane.adapters.models import Adapter, AdapterVersion
from controlplane.adapters.services import adapter_check, adapter_publish, adapter_register
from controlplane.adapters.serving import ServingOption, serving_options, serving_problem
from controlplane.adapters.validation import version_validate
from controlplane.canaries.services import rollout_abort, rollout_start
from controlplane.catalog.models import BaseModel
from controlplane.deployments.capabilities import RunningEngine
from controlplane.deployments.copies.services import copy_register
from controlplane.deployments.models import Copy
from controlplane.errors import ConflictError, InvalidInputError
from controlplane.optimization.merging import adapter_to_merge
from controlplane.platform.audit.models import AuditRecord
from controlplane.routes.selectors import route_adapter
from controlplane.tenants.models import Tenant
from controlplane.tenants.services import api_key_create, user_create
from tests.controlplane.conftest import CONFIG, HIDDEN, KV, LAYERS, adapter_files, adapter_tensors, bf16

pytestmark = pytest.mark.django_db
VLLM = RunningEngine("vllm", "0.32.0", 16)
DORA: dict[str, Any] = {**CONFIG, "use_dora": True}


def dora_files() -> dict[str, bytes]:
    tensors = adapter_tensors()
    for layer in range(LAYERS):
        for module, out in (("q_proj", HIDDEN), ("v_proj", KV)):
            path = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            tensors[f"{path}.lora_magnitude_vector"] = bf16(out)
    return adapter_files(DORA, tensors)


def register(
    tenant: Tenant, base: BaseModel, *traits: str, name: str = "pirate", **more: Any
) -> AdapterVersion:
    """Register and validate a version; `dora` alone may be a trait, which its files then have."""
    streams = {key: BytesIO(data) for key, data in (dora_files() if traits else adapter_files()).items()}
    version = adapter_register(tenant=tenant, name=name, base_model=base, files=streams, **more)
    AdapterVersion.objects.filter(pk=version.pk).update(traits=sorted(traits))
    version_validate(version_id=version.pk)
    version.refresh_from_db()
    assert (version.status, version.reason) == ("ready", "")
    return version


def needing(version: AdapterVersion, *traits: str) -> AdapterVersion:
    """The version, as if it needed these traits."""
    version.traits = sorted(traits)
    version.save(update_fields=["traits"])
    adapter_publish(adapter=version.adapter)
    return version


def published(tenant: Tenant) -> AdapterRoute:
    found = route_adapter(tenant=tenant.pk, name="pirate")
    assert found is not None
    return found


def last_step(version: AdapterVersion) -> tuple[str, str]:
    step = next(step for step in version.steps if step["name"] == "publish")
    return step["status"], step["detail"]


def test_a_version_lists_engines_and_copies_with_reasons(
    tenant: Tenant, other_tenant: Tenant, base_model: BaseModel
) -> None:
    version = needing(register(tenant, base_model), "dora")
    worker = copy_register(base_model=base_model, kind="worker", url="http://w:1")
    vllm = copy_register(base_model=base_model, kind="openai_http", url="http://v:1", engine=VLLM)
    other = copy_register(base_model=base_model, kind="openai_http", url="http://o:1")
    theirs = copy_register(base_model=base_model, kind="worker", url="http://m:1")
    Copy.objects.filter(pk=theirs.pk).update(merged_adapter=f"t_{other_tenant.pk}.a_x.v1.0123456789ab")
    copy_register(base_model=base_model, kind="worker", url="http://w:1")
    options = serving_options(base_model=base_model, ref=version.ref())
    refused = "vLLM 0.32.0 does not serve DoRA"
    assert options[:2] == [
        ServingOption("engine", "the bundled worker", "yes"),
        ServingOption("engine", "vLLM 0.32.0", "no", refused),
    ]
    assert {(item.name, item.serves, item.reason) for item in options[2:]} == {
        (worker.pk, "yes", ""),
        (vllm.pk, "no", refused),
        (other.pk, "unknown", "its engine is not known: the adapter is tried there"),
    }
    assert serving_problem(base_model=base_model, ref=version.ref()) == ""


def test_what_no_engine_serves_is_ready_and_says_so(tenant: Tenant, base_model: BaseModel) -> None:
    version = register(tenant, base_model)
    assert last_step(version) == ("done", "callable within a second")
    problem = serving_problem(base_model=base_model, ref=needing(version, "dora", "experts").ref())
    assert problem == (
        "no backend can serve this yet: the bundled worker does not serve LoRA on single experts; "
        "vLLM 0.32.0 does not serve DoRA"
    )
    unknown = needing(version, "of-2027").ref()
    assert serving_problem(base_model=base_model, ref=unknown) == "", "a newer release knows more"
    assert {item.serves for item in serving_options(base_model=base_model, ref=unknown)} == {"unknown"}


def test_a_new_version_that_nothing_serves_does_not_take_the_bare_name(
    tenant: Tenant, base_model: BaseModel
) -> None:
    register(tenant, base_model)
    copy_register(base_model=base_model, kind="openai_http", url="http://v:1", engine=VLLM)
    second = register(tenant, base_model, "dora")
    assert last_step(second) == (
        "warned",
        "no backend can serve this yet: vLLM 0.32.0 does not serve DoRA; engines that do: the bundled worker"
        "; the bare name is pinned to version 1",
    )
    assert second.remarks[-1]["name"] == "publish"
    assert published(tenant).default == 1
    assert published(tenant).versions[2].traits == ("dora",)
    third = register(tenant, base_model, "dora", make_default=True)
    assert (published(tenant).default, third.number) == (1, 3)
    copy_register(base_model=base_model, kind="worker", url="http://w:1")
    register(tenant, base_model, "dora", make_default=True)
    assert published(tenant).default == 4


def test_the_next_version_that_something_serves_releases_the_automatic_pin(
    tenant: Tenant, base_model: BaseModel
) -> None:
    register(tenant, base_model)
    copy_register(base_model=base_model, kind="openai_http", url="http://v:1", engine=VLLM)
    register(tenant, base_model, "dora")
    [pin] = AuditRecord.objects.filter(action="adapter.pin")
    assert (pin.before, pin.after) == ({"pinned": None}, {"pinned": 1, "automatic": True})
    check = adapter_check(tenant=tenant, name="pirate", base_model=base_model)
    assert check == (1, True), "the next version that is served takes the name"
    register(tenant, base_model)
    adapter = Adapter.objects.get()
    assert (published(tenant).default, adapter.pinned) == (3, None)
    release = AuditRecord.objects.filter(action="adapter.pin").latest("pk")
    assert (release.before, release.after) == ({"pinned": 1}, {"pinned": None, "automatic": False})


@pytest.mark.parametrize("explicitly", [True, False])
def test_a_pin_that_somebody_asked_for_stays(tenant: Tenant, base_model: BaseModel, explicitly: bool) -> None:
    version = register(tenant, base_model)
    copy_register(base_model=base_model, kind="openai_http", url="http://v:1", engine=VLLM)
    register(tenant, base_model, "dora")
    if explicitly:
        adapter_pin(adapter=version.adapter, number=1)
        register(tenant, base_model)
    else:
        register(tenant, base_model, make_default=False)
    assert published(tenant).default == 1


def test_a_first_version_that_nothing_serves_has_the_bare_name(tenant: Tenant, base_model: BaseModel) -> None:
    copy_register(base_model=base_model, kind="openai_http", url="http://v:1", engine=VLLM)
    version = register(tenant, base_model, "dora")
    assert (last_step(version)[0], published(tenant).default) == ("warned", 1)


def test_no_name_moves_to_a_version_that_nothing_serves(tenant: Tenant, base_model: BaseModel) -> None:
    good, bad = register(tenant, base_model), register(tenant, base_model)
    adapter = good.adapter
    alias_move(adapter=adapter, name="prod", number=1)
    alias_move(adapter=adapter, name="old", number=2)
    copy_register(base_model=base_model, kind="openai_http", url="http://v:1", engine=VLLM)
    needing(bad, "dora")
    reason = r"version 2 of pirate cannot be named: no backend .* DoRA; engines that do: the bundled worker"
    with pytest.raises(ConflictError, match=reason):
        alias_move(adapter=adapter, name="prod", number=2)
    with pytest.raises(ConflictError, match=reason):
        alias_split(adapter=adapter, name="prod", arms=[(1, 90), (2, 10)])
    with pytest.raises(ConflictError, match=reason):
        rollout_start(adapter=adapter, alias="prod", version=2)
    adapter_pin(adapter=adapter, number=1)
    with pytest.raises(ConflictError, match=reason):
        adapter_pin(adapter=adapter, number=2)
    assert dict(published(tenant).aliases) == {"prod": 1, "old": 2}
    alias_move(adapter=adapter, name="old", number=1)
    with pytest.raises(ConflictError, match=reason):
        alias_rollback(adapter=adapter, name="old")


def test_a_running_canary_can_be_aborted_whatever_has_become_of_its_versions(
    tenant: Tenant, base_model: BaseModel
) -> None:
    stable, canary = register(tenant, base_model), register(tenant, base_model)
    alias_move(adapter=stable.adapter, name="prod", number=1)
    rollout = rollout_start(adapter=stable.adapter, alias="prod", version=2)
    copy_register(base_model=base_model, kind="openai_http", url="http://v:1", engine=VLLM)
    needing(stable, "dora")
    needing(canary, "dora")
    rollout_abort(rollout=rollout)
    assert published(tenant).aliases["prod"] == 1


def test_rest_shows_a_version_with_where_it_can_be_served(
    tenant: Tenant, base_model: BaseModel, client: Client
) -> None:
    needing(register(tenant, base_model), "dora")
    copy_register(base_model=base_model, kind="openai_http", url="http://v:1", engine=VLLM)
    key = api_key_create(tenant=tenant, name="k", scopes=["manage"])[1]
    path = "/api/v1/adapters/pirate/versions"
    shown = client.get(f"{path}/1", headers={"authorization": f"Bearer {key}"}).json()
    assert shown["traits"] == ["dora"]
    assert [(item["kind"], item["serves"]) for item in shown["serving"]] == [
        ("engine", "yes"),
        ("engine", "no"),
        ("copy", "no"),
    ]
    page = Client()
    page.force_login(user_create(email="dev@acme.test", password="correct-horse-battery", tenant=tenant))
    text = page.get(reverse("console:version", args=[tenant.pk, "pirate", 1])).content.decode()
    assert "Where it can be served" in text
    assert text.count('data-testid="serving-engine"') == 2
    assert "vLLM 0.32.0 does not serve DoRA" in text
    listed = client.get(path, headers={"authorization": f"Bearer {key}"}).json()["results"]
    assert "serving" not in listed[0]


def test_merging_refuses_what_the_worker_does_not_serve(tenant: Tenant, base_model: BaseModel) -> None:
    version = needing(register(tenant, base_model), "experts")
    with pytest.raises(InvalidInputError, match="the bundled worker does not serve LoRA on single experts"):
        adapter_to_merge(base_model=base_model, name="acme/pirate@v1")
    with pytest.raises(InvalidInputError, match="cannot be merged"):
        adapter_to_merge(base_model=base_model, name=version.engine_name)
    needing(version, "feature-extraction")
    with pytest.raises(
        InvalidInputError, match="an embedding adapter, which cannot be merged: serve it unmerged"
    ):
        adapter_to_merge(base_model=base_model, name="acme/pirate@v1")
    needing(version, "dora")
    assert adapter_to_merge(base_model=base_model, name="acme/pirate@v1").traits == ("dora",)


def test_merging_on_a_base_with_experts_names_their_rule(tenant: Tenant, base_model: BaseModel) -> None:
    needing(register(tenant, base_model), "experts")
    base_model.architecture = "Qwen3MoeForCausalLM"
    with pytest.raises(
        InvalidInputError, match=r"Qwen3MoeForCausalLM has experts, .* serve adapters unmerged"
    ):
        adapter_to_merge(base_model=base_model, name="acme/pirate@v1")


def test_a_base_model_says_which_engines_serve_it(base_model: BaseModel, admin_client: Client) -> None:
    path = f"/api/v1/base-models/{base_model.name}"
    assert admin_client.get(path).json()["engines"] == ["the bundled worker", "vLLM from 0.8.5 on"]
    page = reverse("console:staff-base-model", args=[base_model.name])
    assert "the bundled worker, vLLM from 0.8.5 on" in admin_client.get(page).content.decode()
    base_model.architecture = "UnheardForCausalLM"
    base_model.save()
    assert admin_client.get(path).json()["engines"] == []
    assert "No backend can serve this yet." in admin_client.get(page).content.decode()
