"""Callers are counted separately, in Redis, and get a retry-after."""

from __future__ import annotations

import dataclasses

import pytest
from django.test import Client, RequestFactory
from pytest_django import Settings
from rest_framework.request import Request

from controlplane.platform.http.throttling import caller, take
from controlplane.tenants import authentication
from controlplane.tenants.models import Tenant
from controlplane.tenants.services import api_key_create

pytestmark = pytest.mark.django_db


def client_of(tenant: Tenant) -> Client:
    _, text = api_key_create(tenant=tenant, name="m", scopes=["manage"])
    return Client(headers={"Authorization": f"Bearer {text}"})


def test_a_key_has_so_many_calls_a_minute(tenant: Tenant, settings: Settings) -> None:
    settings.GRAFTWORK = dataclasses.replace(settings.GRAFTWORK, api_rate=3)
    eager, other = client_of(tenant), client_of(tenant)
    answers = [eager.get("/api/v1/keys") for _ in range(5)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429, 429]
    assert 1 <= int(answers[-1]["Retry-After"]) <= 20
    assert answers[-1].json()["errors"][0]["code"] == "throttled"
    assert other.get("/api/v1/keys").status_code == 200


def test_the_bucket_fills_again() -> None:
    assert [take("s", per_minute=2) for _ in range(2)] == [0, 0]
    assert 29 < take("s", per_minute=2) <= 30
    assert take("s", per_minute=600_000) == 0


def test_guesses_are_counted_by_address(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authentication, "_GUESSES", 2)
    guess = Client(headers={"Authorization": "Bearer gw_a_b"})
    assert [guess.get("/api/v1/keys").status_code for _ in range(3)] == [401, 401, 429]
    assert client_of(tenant).get("/api/v1/keys").status_code == 200


ADDRESSES = ("2001:db8::1", "2001:db8::2", "2001:db8:0:1::1", "192.0.2.1", "192.0.2.2")
"""The first two of one network: whoever has the one has the other."""


def test_guesses_are_counted_by_a_network_of_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authentication, "_GUESSES", 1)
    headers = {"Authorization": "Bearer gw_a_b"}
    answers = [Client(REMOTE_ADDR=address, headers=headers).get("/api/v1/keys") for address in ADDRESSES]
    assert [answer.status_code for answer in answers] == [401, 429, 401, 401, 401]


def test_callers_without_a_key_are_counted_by_a_network_of_ipv6() -> None:
    first, second, *others = [caller(Request(RequestFactory().get("/", REMOTE_ADDR=a))) for a in ADDRESSES]
    assert first == second
    assert len({first, *others}) == 4


def test_without_redis_nobody_is_refused(tenant: Tenant, settings: Settings) -> None:
    client = client_of(tenant)
    settings.GRAFTWORK = dataclasses.replace(
        settings.GRAFTWORK, api_rate=1, redis_url="redis://127.0.0.1:1/0"
    )
    assert [client.get("/api/v1/keys").status_code for _ in range(3)] == [200, 200, 200]
