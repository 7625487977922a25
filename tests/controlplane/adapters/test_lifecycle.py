"""Deleting, restoring and purging; whose files go and whose stay; labels, lineage and filters."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import timedelta
from io import BytesIO
from pathlib import Path

import pytest
from django.test import Client
from django.utils import timezone
from pytest_django import Settings

from controlplane.adapters.aliases import adapter_pin, alias_move, alias_split
from controlplane.adapters.lifecycle import (
    adapter_delete,
    adapter_purge,
    adapter_restore,
    adapter_update,
    purge_expired,
    version_delete,
    version_restore,
    version_update,
)
from controlplane.adapters.models import Adapter, AdapterVersion, ArtifactRemoval
from controlplane.adapters.selectors import adapter_list, version_get
from controlplane.adapters.services import adapter_register
from controlplane.adapters.validation import version_validate
from controlplane.artifacts.store.local import LocalStore
from controlplane.catalog.models import BaseModel
from controlplane.catalog.services import base_model_register
from controlplane.errors import ConflictError, InvalidInputError, NotFoundError
from controlplane.routes.selectors import route_table
from controlplane.tenants.models import Tenant
from controlplane.tenants.services import api_key_create
from tests.controlplane.conftest import adapter_files, adapter_tensors, bf16

pytestmark = pytest.mark.django_db
Q = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


def register(tenant: Tenant, base_model: BaseModel, name: str, fill: int = 0x3F80) -> AdapterVersion:
    """A ready version; the same `fill`, the same content."""
    content = adapter_files(tensors=adapter_tensors() | {Q: bf16(2, 8, fill=fill)})
    files = {file: BytesIO(data) for file, data in content.items()}
    version = adapter_register(tenant=tenant, name=name, base_model=base_model, files=files)
    version_validate(version_id=version.pk)
    version.refresh_from_db()
    assert version.status == "ready"
    return version


def stored(tmp_path: Path) -> set[str]:
    """Digests of the stored adapters."""
    return {path.parent.name for path in (tmp_path / "artifacts" / "adapters").glob("*/*") if path.is_file()}


def routed(tenant: str = "acme") -> set[str]:
    return set(route_table().adapters.get(tenant, {}))


def expire() -> None:
    old = timezone.now() - timedelta(days=7, seconds=1)
    Adapter.objects.exclude(deleted_at=None).update(deleted_at=old)
    AdapterVersion.objects.exclude(deleted_at=None).update(deleted_at=old)


def test_a_deleted_adapter_is_gone_and_comes_back_whole(
    tenant: Tenant, base_model: BaseModel, tmp_path: Path
) -> None:
    version = register(tenant, base_model, "pirate")
    alias_move(adapter=version.adapter, name="prod", number=1)
    before = route_table().adapters["acme"]["pirate"]
    adapter_delete(adapter=version.adapter)
    assert (routed(), list(adapter_list(tenant=tenant))) == (set(), [])
    assert [item.name for item in adapter_list(tenant=tenant, deleted=True)] == ["pirate"]
    assert purge_expired() == 0
    with pytest.raises(ConflictError, match="restore it, or purge it"):
        register(tenant, base_model, "pirate")
    with pytest.raises(NotFoundError, match="was deleted"):
        alias_move(adapter=version.adapter, name="prod", number=1)
    adapter_restore(adapter=version.adapter)
    assert route_table().adapters["acme"]["pirate"] == before
    with pytest.raises(NotFoundError, match="restored or purged"):
        adapter_purge(adapter=version.adapter)
    assert stored(tmp_path) == {version.sha256}


def test_what_is_purged_leaves_no_files_that_nobody_else_names(
    tenant: Tenant, other_tenant: Tenant, base_model: BaseModel, tmp_path: Path
) -> None:
    shared = register(tenant, base_model, "pirate")
    own = register(tenant, base_model, "pirate", fill=0x4000)
    theirs = register(other_tenant, base_model, "hive")
    assert shared.sha256 == theirs.sha256
    adapter_delete(adapter=shared.adapter)
    expire()
    assert purge_expired() == 1
    assert not Adapter.objects.filter(tenant=tenant).exists()
    assert stored(tmp_path) == {theirs.sha256} != {own.sha256}
    assert routed("globex") == {"hive"}
    register(tenant, base_model, "pirate", fill=0x4000)
    assert stored(tmp_path) == {theirs.sha256, own.sha256}


def test_a_version_that_a_name_means_stays(tenant: Tenant, base_model: BaseModel, tmp_path: Path) -> None:
    adapter = register(tenant, base_model, "pirate").adapter
    for fill in (0x4000, 0x4080):
        register(tenant, base_model, "pirate", fill)
    alias_split(adapter=adapter, name="prod", arms=[(1, 90), (2, 10)])
    adapter_pin(adapter=adapter, number=3)
    versions = {number: version_get(adapter=adapter, number=number) for number in (1, 2, 3)}
    for number, held in ((1, "pirate@prod"), (2, "pirate@prod"), (3, "pinned")):
        with pytest.raises(ConflictError, match=held):
            version_delete(version=versions[number])
    adapter_pin(adapter=adapter, number=None)
    version_delete(version=versions[3])
    entry = route_table().adapters["acme"]["pirate"]
    assert (entry.default, set(entry.versions)) == (2, {1, 2})
    version_restore(adapter=adapter, number=3)
    assert route_table().adapters["acme"]["pirate"].default == 3
    version_delete(version=versions[3])
    expire()
    assert purge_expired() == 1
    assert stored(tmp_path) == {versions[1].sha256, versions[2].sha256}
    assert register(tenant, base_model, "pirate").number == 4


def test_the_grace_time_is_a_setting(tenant: Tenant, base_model: BaseModel, settings: Settings) -> None:
    adapter_delete(adapter=register(tenant, base_model, "pirate").adapter)
    settings.GRAFTWORK = dataclasses.replace(settings.GRAFTWORK, adapter_grace_days=0)
    assert purge_expired() == 1


def test_a_name_that_a_base_model_took_does_not_come_back(tenant: Tenant, base_model: BaseModel) -> None:
    adapter = register(tenant, base_model, "pirate").adapter
    adapter_delete(adapter=adapter)
    base_model_register(name="pirate", source=base_model.source)
    with pytest.raises(ConflictError, match="a base model is now called"):
        adapter_restore(adapter=adapter)


def test_files_being_removed_are_not_named_again_and_a_dead_remover_is_made_good(
    tenant: Tenant, base_model: BaseModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = register(tenant, base_model, "pirate")
    adapter_delete(adapter=version.adapter)

    def die(self: LocalStore, folder: str) -> None:
        raise MemoryError("killed here")

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "remove", die)
        with pytest.raises(MemoryError):
            adapter_purge(adapter=version.adapter)
    assert [row.pk for row in ArtifactRemoval.objects.all()] == [version.sha256]
    again = register_pending(tenant, base_model)
    version_validate(version_id=again.pk)
    again.refresh_from_db()
    assert (again.status, "are being removed" in str(again.steps)) == ("pending", True)
    assert purge_expired() == 0
    assert (stored(tmp_path), ArtifactRemoval.objects.count()) == (set(), 0)
    version_validate(version_id=again.pk)
    again.refresh_from_db()
    assert again.status == "ready"
    assert stored(tmp_path) == {again.sha256}


def register_pending(tenant: Tenant, base_model: BaseModel) -> AdapterVersion:
    content = adapter_files(tensors=adapter_tensors() | {Q: bf16(2, 8)})
    files = {file: BytesIO(data) for file, data in content.items()}
    return adapter_register(tenant=tenant, name="parrot", base_model=base_model, files=files)


@pytest.mark.django_db(transaction=True)
def test_a_purge_beside_a_validation_of_the_same_content_leaves_its_files(
    tenant: Tenant, base_model: BaseModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other adapter is purged at the worst moments: around the copy that finds the content there."""
    real: Callable[..., None] = LocalStore.copy
    first = register(tenant, base_model, "pirate")
    second = register_pending(tenant, base_model)
    adapter_delete(adapter=first.adapter)

    def copy(self: LocalStore, source: str, target: str, *, progress: Callable[[], None]) -> None:
        real(self, source, target, progress=progress)
        adapter_purge(adapter=first.adapter)

    monkeypatch.setattr(LocalStore, "copy", copy)
    version_validate(version_id=second.pk)
    second.refresh_from_db()
    assert second.status == "ready"
    assert stored(tmp_path) == {second.sha256} == {first.sha256}


def test_labels_and_lineage_are_checked_and_filtered(tenant: Tenant, base_model: BaseModel) -> None:
    adapter = register(tenant, base_model, "pirate").adapter
    register(tenant, base_model, "parrot")
    adapter_update(adapter=adapter, labels={"team": "support", "a__b": "x"}, notes="swears")
    for wrong in ({"Team": "x"}, {"": "x"}, {"k": "x" * 101}, {f"k{n}": "" for n in range(33)}):
        with pytest.raises(InvalidInputError):
            adapter_update(adapter=adapter, labels=wrong)
    version = version_get(adapter=adapter, number=1)
    for field, value in (("run_url", "javascript:alert(1)"), ("base_sha256", "AB" * 32)):
        with pytest.raises(InvalidInputError):
            version_update(version=version, **{field: value})
    _, key = api_key_create(tenant=tenant, name="m", scopes=["manage"])
    client = Client(headers={"Authorization": f"Bearer {key}"})
    url = "/api/v1/adapters"
    body = {"dataset": "pirates-v2", "run_url": "https://runs.test/1", "base_sha256": "ab" * 32}
    answer = client.patch(f"{url}/pirate/versions/1", body, content_type="application/json")
    assert {name: answer.json()[name] for name in body} == body
    answer = client.patch(f"{url}/pirate", {"notes": ""}, content_type="application/json")
    assert (answer.json()["notes"], answer.json()["labels"]["team"]) == ("", "support")

    def names(query: str) -> list[str]:
        return [item["name"] for item in client.get(f"{url}?{query}").json()["results"]]

    assert names("") == ["parrot", "pirate"]
    assert names("label=team=support") == names("label=team=support&label=a__b=x") == ["pirate"]
    assert names("label=team=other") == names("base_model=none") == names("deleted=true") == []
    assert names("search=rro&base_model=tiny-base") == ["parrot"]
    for wrong_query in ("label=team", "deleted=yes", "q=x"):
        assert client.get(f"{url}?{wrong_query}").status_code == 400
    assert client.delete(f"{url}/pirate").status_code == 204
    assert (names("deleted=true"), names("")) == (["pirate"], ["parrot"])
    assert client.post(f"{url}/pirate/restore").status_code == 200
    assert client.delete(f"{url}/pirate/versions/1").status_code == 204
    assert client.get(f"{url}/pirate/versions/1").status_code == 404
    assert client.post(f"{url}/pirate/versions/1/restore").json()["status"] == "ready"
    alive = client.post(f"{url}/pirate/purge")
    assert (alive.status_code, "is not deleted" in alive.content.decode()) == (404, True)
    assert "has no adapter" in client.post(f"{url}/nobody/purge").content.decode()
    client.delete(f"{url}/pirate")
    assert client.post(f"{url}/pirate/purge").status_code == 204
    assert names("deleted=true") == []
