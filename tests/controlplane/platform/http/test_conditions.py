"""ETags: of two concurrent changes of one state, the second is refused."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import connection
from django.test import Client

from controlplane.adapters.models import Adapter, AdapterVersion
from controlplane.catalog.models import BaseModel
from controlplane.tenants.models import ApiKey, Tenant
from controlplane.tenants.services import api_key_create, api_key_update

JSON = "application/json"


@pytest.fixture
def client(tenant: Tenant) -> Client:
    _, text = api_key_create(tenant=tenant, name="m", scopes=["manage"])
    return Client(headers={"Authorization": f"Bearer {text}"})


@pytest.fixture
def path(tenant: Tenant) -> str:
    return f"/api/v1/keys/{api_key_create(tenant=tenant, name='k', scopes=['inference'])[0].pk}"


def patch(client: Client, path: str, etag: str | None = None, models: list[str] | None = None) -> Any:
    headers = {} if etag is None else {"If-Match": etag}
    return client.patch(path, {"allowed_models": models}, content_type=JSON, headers=headers)


@pytest.mark.django_db
def test_a_change_of_a_state_that_is_gone_is_refused(client: Client, path: str) -> None:
    seen = client.get(path)["ETag"]
    changed = patch(client, path, seen, ["tiny-base"])
    assert changed.status_code == 200
    assert changed["ETag"] == client.get(path)["ETag"] != seen
    refused = patch(client, path, seen, ["other"])
    assert refused.status_code == 412
    assert "read it again" in refused.json()["errors"][0]["detail"]
    assert client.delete(path, headers={"If-Match": seen}).status_code == 412
    assert client.get(path).json()["allowed_models"] == ["tiny-base"]
    assert client.delete(path, headers={"If-Match": f'"x", {changed["ETag"]}'}).status_code == 204


@pytest.mark.django_db
def test_conditions_are_optional_weak_tags_count_and_malformed_ones_do_not(client: Client, path: str) -> None:
    assert patch(client, path).status_code == 200
    etag = client.get(path)["ETag"]
    assert patch(client, path, f"W/{etag}").status_code == 200
    assert patch(client, path, "*").status_code == 200
    assert patch(client, path, etag.strip('"')).status_code == 400
    assert patch(client, "/api/v1/keys/nobody", "*").status_code == 404


@pytest.mark.django_db
def test_who_has_the_state_gets_no_body(client: Client, path: str) -> None:
    etag = client.get(path)["ETag"]
    same = client.get(path, headers={"If-None-Match": etag})
    assert (same.status_code, same.content, same["ETag"]) == (304, b"", etag)
    assert client.get(path, headers={"If-None-Match": '"other"'}).status_code == 200


@pytest.mark.django_db
def test_replacing_limits_demands_a_condition(client: Client, path: str) -> None:
    def put(**headers: str) -> int:
        body = {"requests_per_minute": 5}
        return client.put(f"{path}/limits", body, content_type=JSON, headers=headers).status_code

    assert put() == 428
    none_yet = client.get(f"{path}/limits")["ETag"]
    assert put(**{"If-Match": none_yet}) == 200
    assert put(**{"If-Match": none_yet}) == 412
    assert put(**{"If-Match": "*"}) == 200


@pytest.mark.django_db
def test_an_alias_is_made_only_if_there_is_none(
    client: Client, tenant: Tenant, base_model: BaseModel
) -> None:
    adapter = Adapter.objects.create(tenant=tenant, name="bot", base_model=base_model)
    AdapterVersion.objects.create(
        adapter=adapter, number=1, status="ready", sha256="ab" * 32, uri="file:///a/"
    )

    def put(**headers: str) -> Any:
        path = "/api/v1/adapters/bot/aliases/prod"
        return client.put(path, {"version": 1}, content_type=JSON, headers=headers)

    assert put(**{"If-Match": "*"}).status_code == 404
    made = put(**{"If-None-Match": "*"})
    assert made.status_code == 200
    assert put(**{"If-None-Match": "*"}).status_code == 412
    assert put(**{"If-Match": made["ETag"]}).status_code == 200


@pytest.mark.django_db(transaction=True)
def test_of_two_at_once_one_is_refused(client: Client, path: str, tenant: Tenant) -> None:
    etag, statuses, barrier = client.get(path)["ETag"], [], threading.Barrier(4)

    def change(number: int) -> None:
        try:
            barrier.wait()
            statuses.append(patch(client, path, etag, [f"model-{number}"]).status_code)
        finally:
            connection.close()

    threads = [threading.Thread(target=change, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(statuses) == [200, 412, 412, 412]
    assert ApiKey.objects.get(pk=path.rpartition("/")[2]).allowed_models is not None


@pytest.mark.django_db
def test_a_change_elsewhere_counts(client: Client, path: str) -> None:
    etag = client.get(path)["ETag"]
    api_key_update(api_key=ApiKey.objects.get(pk=path.rpartition("/")[2]), allowed_models=["x"])
    assert patch(client, path, etag).status_code == 412
