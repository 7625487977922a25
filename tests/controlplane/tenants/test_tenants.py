"""A new tenant's published route, and the uniqueness of its name."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from django.db import connection

from controlplane.errors import ConflictError
from controlplane.routes.selectors import route_table
from controlplane.tenants.services import tenant_create, user_create

pytestmark = pytest.mark.django_db


def test_each_tenant_has_a_salt_of_its_own() -> None:
    """The salt separates prefix caches. It is hex, since other bytes have crashed engines."""
    salts = {tenant_create(slug=f"tenant-{number}", name="").cache_salt for number in range(8)}
    assert len(salts) == 8
    assert all(len(bytes.fromhex(salt)) == 16 for salt in salts)
    assert {tenant.cache_salt for tenant in route_table().tenants.values()} >= salts


def _tenant() -> object:
    return tenant_create(slug="same", name="Same")


def _user() -> object:
    return user_create(email="same@acme.test", password="long-enough-7")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("create", [_tenant, _user])
def test_of_many_of_one_name_at_once_one_is_made_and_the_others_are_told(
    create: Callable[[], object],
) -> None:
    told: list[object] = []
    barrier = threading.Barrier(4)

    def make() -> None:
        try:
            barrier.wait(20)
            told.append(create())
        except ConflictError as error:
            told.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(told) == 4
    assert len([made for made in told if not isinstance(made, ConflictError)]) == 1
