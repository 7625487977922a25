"""A key shows its last use, at the gateway or in the control plane."""

from __future__ import annotations

import datetime as dt

import pytest
from django.test import Client
from django.utils import timezone

from controlplane.metering.event_rows import StreamEntry
from controlplane.metering.services import usage_ingest
from controlplane.tenants.models import ApiKey, Tenant
from controlplane.tenants.services import api_key_create, api_keys_touch, user_create
from tests.controlplane.known import known
from tests.controlplane.metering.test_ingest import stream_id, usage_event

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def names(db: None) -> None:
    known("tiny-base", tenants=())


def used(key: ApiKey) -> dt.datetime | None:
    return ApiKey.objects.get(pk=key.pk).last_used_at


def test_a_call_of_the_rest_api_is_noted_to_the_minute(tenant: Tenant) -> None:
    key, text = api_key_create(tenant=tenant, name="k", scopes=["manage"])
    client = Client(headers={"Authorization": f"Bearer {text}"})
    assert used(key) is None
    path = f"/api/v1/keys/{key.pk}"
    first = client.get(path)
    noted = used(key)
    assert noted is not None
    assert timezone.now() - noted < dt.timedelta(seconds=30)
    second = client.get(path)
    assert second.json()["last_used_at"] is not None
    assert used(key) == noted, "one call a minute writes"
    assert second["ETag"] == first["ETag"]
    ApiKey.objects.update(last_used_at=noted - dt.timedelta(minutes=2))
    client.get(path)
    assert used(key) == pytest.approx(timezone.now(), abs=dt.timedelta(seconds=30))


def test_a_wrong_secret_is_no_use(tenant: Tenant) -> None:
    key, text = api_key_create(tenant=tenant, name="k", scopes=["manage"])
    wrong = text[:-1] + ("0" if text[-1] != "0" else "1")
    assert Client(headers={"Authorization": f"Bearer {wrong}"}).get("/api/v1/keys").status_code == 401
    assert used(key) is None


def test_calls_of_models_are_noted_when_their_usage_arrives(tenant: Tenant) -> None:
    key, _ = api_key_create(tenant=tenant, name="k", scopes=["inference"])
    other, _ = api_key_create(tenant=tenant, name="other", scopes=["inference"])
    now = timezone.now().replace(microsecond=0)
    events = [
        usage_event(
            f"r{minutes}",
            key_id=key.pk,
            started_at=int((now - dt.timedelta(minutes=minutes)).timestamp() * 1000),
        )
        for minutes in (9, 5, 7)
    ]
    events.append(usage_event("r0", key_id="gone"))
    usage_ingest(
        entries=[StreamEntry(stream_id(n), event.to_json().encode()) for n, event in enumerate(events)]
    )
    assert used(key) == now - dt.timedelta(minutes=5)
    assert used(other) is None


def test_it_never_goes_back_nor_into_the_future(tenant: Tenant) -> None:
    key, _ = api_key_create(tenant=tenant, name="k", scopes=["inference"])
    now = timezone.now()
    assert api_keys_touch(used={key.pk: now + dt.timedelta(hours=3)}) == 1
    noted = used(key)
    assert noted is not None
    assert noted <= timezone.now()
    assert api_keys_touch(used={key.pk: now - dt.timedelta(hours=1)}) == 0
    assert used(key) == noted


def test_the_page_shows_it(tenant: Tenant) -> None:
    key, _ = api_key_create(tenant=tenant, name="k", scopes=["inference"])
    client = Client()
    client.force_login(user_create(email="m@acme.test", password="long-enough-7", tenant=tenant))
    assert "never used" in client.get("/t/acme/keys/").content.decode()
    api_keys_touch(used={key.pk: timezone.now() - dt.timedelta(hours=3)})
    assert "used 3\xa0hours ago" in client.get("/t/acme/keys/").content.decode()
