"""Data that older versions wrote is carried over, and back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.costly("migrates back and forth")]


def migrate(name: str) -> MigrationExecutor:
    executor = MigrationExecutor(connection)
    executor.migrate([("tenants", name)])
    return executor


@pytest.fixture
def latest() -> Iterator[None]:
    """Leaves the newest schema for the tests that follow."""
    yield
    executor = MigrationExecutor(connection)
    executor.migrate(executor.loader.graph.leaf_nodes())


@pytest.mark.usefixtures("latest")
def test_members_become_engineers_and_keys_find_their_projects() -> None:
    old = migrate("0002_key_scopes_and_rotation").loader.project_state(
        [("tenants", "0002_key_scopes_and_rotation")]
    )
    tenant = old.apps.get_model("tenants", "Tenant").objects.create(pk="acme", name="Acme", cache_salt="0")
    user = old.apps.get_model("tenants", "User").objects.create(email="a@acme.test")
    old.apps.get_model("tenants", "Membership").objects.create(user=user, tenant=tenant, role="member")
    for pk, project in (("k1", "default"), ("k2", "chat")):
        old.apps.get_model("tenants", "ApiKey").objects.create(
            pk=pk, tenant=tenant, name=pk, project=project, secret_sha256="0", scopes=[]
        )
    new = migrate("0006_keys_project").loader.project_state([("tenants", "0006_keys_project")])
    keys = new.apps.get_model("tenants", "ApiKey").objects.values_list("pk", "project__slug").order_by("pk")
    assert list(keys) == [("k1", "default"), ("k2", "chat")]
    assert new.apps.get_model("tenants", "Membership").objects.get().role == "engineer"
    back = migrate("0002_key_scopes_and_rotation").loader.project_state(
        [("tenants", "0002_key_scopes_and_rotation")]
    )
    keys = back.apps.get_model("tenants", "ApiKey").objects.values_list("pk", "project").order_by("pk")
    assert list(keys) == [("k1", "default"), ("k2", "chat")]
