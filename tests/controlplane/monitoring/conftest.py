"""A tenant with an adapter, and a second tenant."""

from __future__ import annotations

import pytest

from controlplane.adapters.models import Adapter
from controlplane.catalog.models import BaseModel
from controlplane.tenants.models import Tenant, User
from controlplane.tenants.roles import Role
from controlplane.tenants.services import user_create
from tests.controlplane.known import known


@pytest.fixture
def acme(db: None) -> Tenant:
    """The tenant `acme` with a ready `support-bot`; `globex` has one too."""
    known("tiny-base", tenants=("acme", "globex"))
    base = BaseModel.objects.get(name="tiny-base")
    for slug in ("acme", "globex"):
        Adapter.objects.create(tenant_id=slug, name="support-bot", base_model=base)
    return Tenant.objects.get(pk="acme")


@pytest.fixture
def globex(acme: Tenant) -> Tenant:
    return Tenant.objects.get(pk="globex")


@pytest.fixture
def owner(acme: Tenant) -> User:
    return user_create(email="owner@acme.example", password="correct-horse-battery", tenant=acme)


@pytest.fixture
def viewer(acme: Tenant) -> User:
    return user_create(
        email="viewer@acme.example", password="correct-horse-battery", tenant=acme, role=Role.VIEWER
    )


@pytest.fixture
def staff(db: None) -> User:
    return user_create(email="staff@example.com", password="correct-horse-battery", is_staff=True)
