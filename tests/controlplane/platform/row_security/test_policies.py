"""Row policies on real PostgreSQL: without any filter, nothing of another tenant's is met."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.core.management import call_command
from django.db import DatabaseError, connection, models, transaction

from controlplane.adapters.lifecycle import artifacts_discard
from controlplane.adapters.models import AdapterVersion, ArtifactRemoval
from controlplane.metering.models import UsageRollup
from controlplane.platform.audit.models import AuditRecord
from controlplane.platform.row_security.checks import check_role
from controlplane.platform.row_security.grants import policies_hold, web_role_grant
from controlplane.platform.row_security.scope import EVERYTHING, Scope, every_row, scope_set, scoped
from controlplane.tenants.models import ApiKey, Membership, Project, Tenant, User
from controlplane.tenants.selectors import api_key_verify
from tests.controlplane.world import OTHER, OWN, World, world_make

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.skipif(connection.vendor != "postgresql", reason="only PostgreSQL has row policies"),
]
ROLE = f"graftwork_policies_{os.getpid()}"
WITHOUT: dict[str, str] = {}
"""Tables of tenants' things which need no policy, and why."""


def owned_models() -> list[type[models.Model]]:
    """Every model whose rows are a tenant's: it names one, or points at one whose rows are."""
    owned: set[type[models.Model]] = {Tenant}
    ours = [model for model in apps.get_models() if model.__module__.startswith("controlplane.")]
    while True:
        more = {model for model in ours if model not in owned and _names_a_tenant(model, owned)}
        if not more:
            return sorted(owned, key=lambda model: model._meta.db_table)
        owned |= more


def _names_a_tenant(model: type[models.Model], owned: set[type[models.Model]]) -> bool:
    fields = model._meta.concrete_fields
    return any(field.name == "tenant" or field.related_model in owned for field in fields)


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = world_make(tmp_path)
    owner = User.objects.get(email=f"owner@{OWN}.test")
    UsageRollup.objects.create(
        day="2026-01-01",
        tenant=OWN,
        project="p",
        key_id="k",
        adapter="",
        alias="",
        base_model="b",
        backend="w",
        status="ok",
        requests=1,
        prompt_tokens=1,
        cached_tokens=0,
        completion_tokens=1,
    )
    assert owner.pk
    return world


@pytest.fixture
def web(world: World) -> Iterator[None]:
    """This connection is a web process's: its role owns nothing. Gone with the test's transaction."""
    web_role_grant(name=ROLE)
    with connection.cursor() as cursor:
        cursor.execute(f"SET LOCAL ROLE {ROLE}")
    yield
    with connection.cursor() as cursor:
        cursor.execute("RESET ROLE")


def rows(model: type[models.Model]) -> int:
    return model._base_manager.count()


def test_every_table_of_tenants_things_has_a_policy() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT relname FROM pg_class WHERE relrowsecurity")
        secured = {name for (name,) in cursor.fetchall()}
    owned = {model._meta.db_table for model in owned_models()}
    advice = "add a RowPolicy in a migration of controlplane/platform/row_security, or a reason to WITHOUT"
    assert owned - set(WITHOUT) - secured == set(), advice


@pytest.mark.usefixtures("web")
def test_a_query_without_a_filter_meets_nothing_of_another_tenants(world: World) -> None:
    counted: dict[str, dict[str, int]] = {}
    for scope in (Scope(), Scope(tenant=OTHER), Scope(tenant=OWN), Scope(tenant=EVERYTHING)):
        with scoped(scope):
            counted[scope.tenant] = {model.__name__: rows(model) for model in owned_models()}
    assert {name for name, count in counted[""].items() if count} == set()
    filled = {name for name, count in counted[OWN].items() if count}
    assert {"Tenant", "Adapter", "AdapterVersion", "ApiKey", "Project", "Membership", "Alias"} <= filled
    assert {"UsageRollup", "AuditRecord", "Invitation", "WebhookDelivery", "ServiceAccount"} <= filled
    for name in filled:
        assert counted[OTHER][name] < counted[EVERYTHING][name], name
    with scoped(Scope(tenant=OTHER)):
        assert not Tenant.objects.filter(pk=OWN).exists()
        assert {key.tenant_id for key in ApiKey.objects.all()} == {OTHER}
        assert not UsageRollup.objects.exists()


@pytest.mark.usefixtures("web")
def test_nothing_is_written_for_another_tenant(world: World) -> None:
    with scoped(Scope(tenant=OTHER)):
        with pytest.raises(DatabaseError, match="row-level security"), transaction.atomic():
            Project.objects.create(tenant_id=OWN, slug="stolen", name="x")
        assert Project.objects.filter(tenant_id=OWN).update(name="x") == 0
        with pytest.raises(DatabaseError, match="row-level security"), transaction.atomic():
            Project.objects.filter(slug="default").update(tenant_id=OWN)
        Project.objects.create(tenant_id=OTHER, slug="mine", name="x")


@pytest.mark.usefixtures("web")
def test_a_caller_is_found_before_their_tenant_is_known(world: World) -> None:
    user = User.objects.get(email=f"viewer@{OWN}.test")
    with scoped(Scope(user=str(user.pk))):
        assert [member.tenant.pk for member in Membership.objects.select_related("tenant")] == [OWN]
        assert list(Tenant.objects.values_list("pk", flat=True)) == [OWN]
        assert not ApiKey.objects.exists()
    with scoped(Scope()):
        assert api_key_verify(text=world.manage[OWN][:-1] + "x") is None
        assert ApiKey.objects.count() == 1  # the one that was shown, to be compared with
        found = api_key_verify(text=world.manage[OWN])
        assert found is not None
        assert found.tenant.pk == OWN
        assert {key.tenant_id for key in ApiKey.objects.all()} == {OWN}


@pytest.mark.usefixtures("web")
def test_who_is_being_found_changes_nothing_yet(world: World) -> None:
    """Before their tenant is stated a caller may read what proves who they are, and write none of it."""
    viewer = User.objects.get(email=f"viewer@{OWN}.test")
    key = world.manage[OWN].split("_")[1]
    for scope in (Scope(user=str(viewer.pk)), Scope(key=key), Scope(user=str(viewer.pk), tenant=OTHER)):
        with scoped(scope):
            assert Membership.objects.filter(user=viewer).update(role="owner") == 0
            assert Tenant.objects.filter(pk=OWN).update(name="mine") == 0
            assert ApiKey.objects.filter(pk=key).update(revoked_at=None, scopes=["manage"]) == 0
            assert Membership.objects.filter(user=viewer).delete()[0] == 0
            with pytest.raises(DatabaseError, match="row-level security"), transaction.atomic():
                Membership.objects.create(user=User.objects.get(email=f"viewer@{OTHER}.test"), tenant_id=OWN)
            with pytest.raises(DatabaseError, match="row-level security"), transaction.atomic():
                ApiKey.objects.create(public_id="new", tenant_id=OWN, project_id=1, name="x", scopes=[])
    with scoped(Scope(tenant=EVERYTHING)):
        assert Membership.objects.get(user=viewer).role == "viewer"
        assert Tenant.objects.get(pk=OWN).name != "mine"


@pytest.mark.usefixtures("web")
def test_a_row_is_not_moved_to_another_tenant(world: World) -> None:
    with scoped(Scope(tenant=OTHER)):
        for rows_of in (Membership.objects.all(), ApiKey.objects.all()):
            with pytest.raises(DatabaseError, match="row-level security"), transaction.atomic():
                rows_of.update(tenant_id=OWN)


@pytest.mark.usefixtures("web")
def test_a_scope_ends_where_it_began(world: World) -> None:
    with scoped(Scope(tenant=OTHER)):
        with every_row():
            assert Tenant.objects.count() == 2
        assert Tenant.objects.count() == 1
        scope_set(tenant=OWN)
        assert Tenant.objects.get().pk == OWN
    scope_set(tenant=EVERYTHING)  # outside of a request it says nothing
    assert Tenant.objects.count() == 0


@pytest.mark.usefixtures("web")
def test_a_purge_by_one_tenant_keeps_files_that_another_names(world: World) -> None:
    with scoped(Scope(tenant=OTHER)):
        assert not AdapterVersion.objects.filter(sha256="ab" * 32).exists()
        artifacts_discard(["ab" * 32, "cd" * 32])
    with scoped(Scope(tenant=EVERYTHING)):
        assert not ArtifactRemoval.objects.exists()
        assert AdapterVersion.objects.filter(sha256="ab" * 32).exists()


def test_the_owner_meets_everything_and_is_warned(world: World) -> None:
    assert Tenant.objects.count() == 2
    assert AuditRecord.objects.filter(tenant=OWN).exists()
    assert not policies_hold()
    (warning,) = check_role(databases=["default"])
    assert warning.id == "row_security.W001"


@pytest.mark.usefixtures("web")
def test_the_web_role_is_held_to_the_policies(world: World) -> None:
    assert policies_hold()
    assert check_role(databases=["default"]) == []


@pytest.mark.django_db(transaction=True)
def test_each_transaction_states_the_scope_and_takes_it_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside of transactions too; the connection's next user finds nothing of it."""

    def session_tenant() -> Any:
        with connection.cursor() as cursor:
            cursor.execute("SELECT NULLIF(current_setting('graftwork.tenant', true), '')")
            row = cursor.fetchone()
            assert row is not None
            return row[0]

    with scoped(Scope(tenant=OWN)):
        assert session_tenant() == OWN
        with transaction.atomic():
            assert session_tenant() == OWN
            scope_set(tenant=OTHER)
            assert session_tenant() == OTHER
        assert connection.get_autocommit()
        assert [tenant.pk for tenant in Tenant.objects.iterator()] == []
    assert session_tenant() is None
    monkeypatch.setenv("WEB_DATABASE_URL", f"postgresql://{ROLE}_login:pass%20word@db/graftwork")
    call_command("web_role")
    call_command("web_role")
    with connection.cursor() as cursor:
        cursor.execute("SELECT rolcanlogin, rolsuper FROM pg_roles WHERE rolname = %s", [f"{ROLE}_login"])
        assert cursor.fetchone() == (True, False)
        cursor.execute(f"DROP OWNED BY {ROLE}_login; DROP ROLE {ROLE}_login")
