"""A tenant keeps no more adapters, versions and bytes than it may, also when it asks for several at once."""

from __future__ import annotations

from functools import partial
from io import BytesIO

import pytest
from django.test import Client

from controlplane.adapters.lifecycle import adapter_delete, adapter_purge
from controlplane.adapters.models import Adapter, AdapterVersion
from controlplane.adapters.quotas import quota_set, quota_use
from controlplane.adapters.services import adapter_register
from controlplane.adapters.validation import version_validate
from controlplane.catalog.models import BaseModel
from controlplane.errors import ConflictError
from controlplane.tenants.models import Tenant
from controlplane.tenants.services import api_key_create, user_create
from tests.controlplane.adapters.test_races import at_once
from tests.controlplane.conftest import adapter_files

pytestmark = pytest.mark.django_db
SIZE = sum(len(data) for data in adapter_files().values())


def register(tenant: Tenant, base_model: BaseModel, name: str = "pirate") -> AdapterVersion:
    files = {name: BytesIO(data) for name, data in adapter_files().items()}
    return adapter_register(tenant=tenant, name=name, base_model=base_model, files=files)


def test_adapters_and_versions_are_counted_until_purged(tenant: Tenant, base_model: BaseModel) -> None:
    quota_set(tenant=tenant, adapters=1, versions=2)
    first = register(tenant, base_model)
    with pytest.raises(ConflictError, match="may keep 1 adapter and has 1"):
        register(tenant, base_model, "parrot")
    register(tenant, base_model)
    with pytest.raises(ConflictError, match="may keep 2 versions and has 2"):
        register(tenant, base_model)
    adapter_delete(adapter=first.adapter)
    with pytest.raises(ConflictError, match="keep 1 adapter and"):
        register(tenant, base_model, "parrot")
    adapter_purge(adapter=first.adapter)
    assert register(tenant, base_model, "parrot").number == 1


def test_bytes_are_checked_when_they_are_known_and_refused_versions_count_nowhere(
    tenant: Tenant, other_tenant: Tenant, base_model: BaseModel
) -> None:
    quota_set(tenant=tenant, size_bytes=SIZE + 1)
    versions = [register(tenant, base_model) for _ in range(2)]
    versions.append(register(other_tenant, base_model))
    for version in versions:
        version_validate(version_id=version.pk)
        version.refresh_from_db()
    assert [version.status for version in versions] == ["ready", "refused", "ready"]
    assert f"may keep {SIZE + 1} bytes of adapters and has {SIZE}, and this version" in versions[1].reason
    use = quota_use(tenant=tenant)
    assert (use.adapters, use.versions, use.size_bytes) == (1, 1, SIZE)
    quota_set(tenant=tenant, size_bytes=SIZE)
    with pytest.raises(ConflictError, match=f"has {SIZE}"):
        register(tenant, base_model)


@pytest.mark.django_db(transaction=True)
def test_of_many_at_once_as_many_as_may_be_are_kept(tenant: Tenant, base_model: BaseModel) -> None:
    quota_set(tenant=tenant, adapters=3)
    names = [f"bot-{number}" for number in range(6)]
    results = at_once([partial(register, tenant, base_model, name) for name in names])
    assert len([item for item in results if isinstance(item, ConflictError)]) == 3
    assert Adapter.objects.count() == 3
    quota_set(tenant=tenant, size_bytes=2 * SIZE)
    ids = AdapterVersion.objects.values_list("pk", flat=True)
    at_once([partial(version_validate, version_id=pk) for pk in ids])
    statuses = sorted(AdapterVersion.objects.values_list("status", flat=True))
    assert statuses == ["ready", "ready", "refused"]


def test_rest_tells_and_staff_sets(tenant: Tenant, base_model: BaseModel) -> None:
    register(tenant, base_model)
    staff = Client()
    staff.force_login(user_create(email="s@graft.test", password="long-enough-7", is_staff=True))
    url = "/api/v1/tenants/acme/adapter-quota"
    assert staff.put(url, {"adapters": 5}, content_type="application/json").status_code == 428
    headers = {"If-Match": staff.get(url)["ETag"]}
    answer = staff.put(url, {"adapters": 5}, content_type="application/json", headers=headers)
    assert (answer.status_code, answer.json()["adapters"], answer.json()["versions"]) == (200, 5, None)
    assert staff.put(url, {}, content_type="application/json", headers=headers).status_code == 412
    headers = {"If-Match": "*"}
    for wrong in ({"adapters": -1}, {"adapter": 1}):
        answer = staff.put(url, wrong, content_type="application/json", headers=headers)
        assert answer.status_code == 400
    _, key = api_key_create(tenant=tenant, name="m", scopes=["manage"])
    own = Client().get("/api/v1/adapter-quota", headers={"Authorization": f"Bearer {key}"}).json()
    assert own == staff.get(url).json()
    assert (own["adapters"], own["used_adapters"], own["used_size_bytes"]) == (5, 1, 0)
