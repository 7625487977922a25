"""A key gets a new secret under its public id; the old one may stay right for a while."""

from __future__ import annotations

import datetime as dt

import pytest
from django.test import Client
from django.utils import timezone

from controlplane.errors import ConflictError, InvalidInputError
from controlplane.routes.selectors import route_table
from controlplane.tenants.models import ApiKey, Tenant
from controlplane.tenants.selectors import api_key_verify
from controlplane.tenants.services import api_key_create, api_key_revoke, api_key_rotate
from gateway.errors import InvalidApiKey
from gateway.routing import authenticate

pytestmark = pytest.mark.django_db
HOUR = dt.timedelta(hours=1)


def opens(text: str) -> tuple[bool, bool]:
    """Return whether the REST API and a gateway with the route table accept the key."""
    try:
        authenticate(route_table(), text)
    except InvalidApiKey:
        return api_key_verify(text=text) is not None, False
    return api_key_verify(text=text) is not None, True


def test_both_secrets_are_right_until_the_chosen_time(tenant: Tenant) -> None:
    key, first = api_key_create(tenant=tenant, name="k", scopes=["inference", "manage"])
    _, second = api_key_rotate(api_key=key, old_secret_until=timezone.now() + HOUR)
    assert first.split("_")[:2] == second.split("_")[:2]
    assert first != second
    assert opens(first) == opens(second) == (True, True)
    ApiKey.objects.filter(pk=key.pk).update(old_secret_until=timezone.now())
    assert api_key_verify(text=first) is None
    assert api_key_verify(text=second) == key


def test_without_a_time_the_old_secret_ends_at_once(tenant: Tenant) -> None:
    key, first = api_key_create(tenant=tenant, name="k", scopes=["inference"])
    _, second = api_key_rotate(api_key=key)
    assert (opens(first), opens(second)) == ((False, False), (True, True))


def test_a_second_rotation_ends_the_first_secret(tenant: Tenant) -> None:
    key, first = api_key_create(tenant=tenant, name="k", scopes=["inference"])
    until = timezone.now() + HOUR
    _, second = api_key_rotate(api_key=key, old_secret_until=until)
    _, third = api_key_rotate(api_key=key, old_secret_until=until)
    assert [opens(text) for text in (first, second, third)] == [(False, False), (True, True), (True, True)]


def test_revocation_ends_both(tenant: Tenant) -> None:
    key, first = api_key_create(tenant=tenant, name="k", scopes=["inference", "manage"])
    stale = ApiKey.objects.get(pk=key.pk)
    _, second = api_key_rotate(api_key=key, old_secret_until=timezone.now() + HOUR)
    api_key_revoke(api_key=key)
    assert opens(first) == opens(second) == (False, False)
    with pytest.raises(ConflictError):
        api_key_rotate(api_key=stale)
    assert route_table().keys == {}


def test_the_overlap_lies_ahead_and_ends(tenant: Tenant) -> None:
    key, _ = api_key_create(tenant=tenant, name="k", scopes=["inference"])
    for until, words in ((timezone.now(), "future"), (timezone.now() + dt.timedelta(days=91), "90 days")):
        with pytest.raises(InvalidInputError, match=words):
            api_key_rotate(api_key=key, old_secret_until=until)


def test_by_rest(tenant: Tenant) -> None:
    key, first = api_key_create(tenant=tenant, name="k", scopes=["manage"])
    api = Client(headers={"Authorization": f"Bearer {first}"})
    until = (timezone.now() + HOUR).isoformat()
    answer = api.post(
        f"/api/v1/keys/{key.pk}/rotate", {"old_secret_until": until}, content_type="application/json"
    )
    assert answer.status_code == 200
    body = answer.json()
    assert dt.datetime.fromisoformat(body["old_secret_until"]) == dt.datetime.fromisoformat(until)
    assert api_key_verify(text=body["key"]) == key
    assert api_key_verify(text=first) == key
    assert "key" not in api.get(f"/api/v1/keys/{key.pk}").json()
