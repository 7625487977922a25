"""Roles of members: who may change whose, that an owner stays, and what removal ends."""

from __future__ import annotations

from functools import partial

import pytest
from django.test import Client

from controlplane.errors import ConflictError, ForbiddenError, NotFoundError
from controlplane.platform.audit.models import AuditRecord
from controlplane.tenants.access import Access
from controlplane.tenants.members.services import member_remove, member_set_role
from controlplane.tenants.models import ApiKey, Membership, Tenant, User
from controlplane.tenants.roles import Role
from controlplane.tenants.services import api_key_create, user_create
from tests.controlplane.adapters.test_races import at_once

pytestmark = pytest.mark.django_db
PASSWORD = "long-enough-7"


def join(tenant: Tenant, name: str, role: Role) -> User:
    return user_create(email=f"{name}@acme.test", password=PASSWORD, tenant=tenant, role=role)


def role_of(user: User) -> str:
    return Membership.objects.get(user=user).role


def test_the_last_owner_stays_an_owner(tenant: Tenant) -> None:
    first = join(tenant, "first", Role.OWNER)
    for change in (partial(member_set_role, role=Role.ADMIN), member_remove):
        with pytest.raises(ConflictError, match="needs an owner"):
            change(tenant=tenant, user_id=first.pk)
    assert role_of(first) == Role.OWNER
    second = join(tenant, "second", Role.OWNER)
    member_set_role(tenant=tenant, user_id=first.pk, role=Role.VIEWER)
    assert role_of(first) == Role.VIEWER
    with pytest.raises(ConflictError):
        member_remove(tenant=tenant, user_id=second.pk)


@pytest.mark.django_db(transaction=True)
def test_of_owners_who_demote_each_other_at_once_one_stays(tenant: Tenant) -> None:
    owners = [join(tenant, f"owner-{number}", Role.OWNER) for number in range(4)]
    demotions = [partial(member_set_role, tenant=tenant, user_id=o.pk, role="viewer") for o in owners[:2]]
    removals = [partial(member_remove, tenant=tenant, user_id=owner.pk) for owner in owners[2:]]
    results = at_once([*demotions, *removals])
    assert len([result for result in results if isinstance(result, ConflictError)]) == 1
    assert Membership.objects.filter(tenant=tenant, role=Role.OWNER).count() == 1


def test_nobody_deals_in_more_than_they_have(tenant: Tenant) -> None:
    owner, viewer = join(tenant, "owner", Role.OWNER), join(tenant, "viewer", Role.VIEWER)
    join(tenant, "second", Role.OWNER)
    admin = Access(tenant, Role.ADMIN)
    for change in (partial(member_set_role, role="viewer"), member_remove):
        with pytest.raises(ForbiddenError, match=r"tenant\.write"):
            change(tenant=tenant, user_id=owner.pk, by=admin)
    with pytest.raises(ForbiddenError):
        member_set_role(tenant=tenant, user_id=viewer.pk, role="owner", by=admin)
    member_set_role(tenant=tenant, user_id=viewer.pk, role="admin", by=admin)
    assert (role_of(owner), role_of(viewer)) == (Role.OWNER, Role.ADMIN)


def test_removal_ends_sessions_and_the_playgrounds_keys(tenant: Tenant, other_tenant: Tenant) -> None:
    join(tenant, "owner", Role.OWNER)
    user = join(tenant, "leaver", Role.ENGINEER)
    Membership.objects.create(user=user, tenant=other_tenant)
    browsers = Client(), Client()
    for browser in browsers:
        browser.force_login(user)
    assert browsers[0].post("/t/acme/playground/key").status_code == 200
    lasting, _ = api_key_create(tenant=tenant, name="app", scopes=["inference"], created_by=user)
    member_remove(tenant=tenant, user_id=user.pk)
    for browser in browsers:
        assert browser.get("/t/globex/")["Location"].startswith("/login")
    assert ApiKey.objects.get(name="playground").revoked_at is not None
    assert ApiKey.objects.get(pk=lasting.pk).revoked_at is None
    with pytest.raises(NotFoundError):
        member_remove(tenant=tenant, user_id=user.pk)


def test_a_role_changes_by_rest_and_by_the_page(tenant: Tenant) -> None:
    owner, viewer = join(tenant, "owner", Role.OWNER), join(tenant, "viewer", Role.VIEWER)
    client = Client()
    client.force_login(owner)
    url = f"/api/v1/members/{viewer.pk}"
    assert client.get(url).json()["role"] == "viewer"
    body = {"role": "billing"}
    assert client.patch(url, body, content_type="application/json").json()["email"] == viewer.email
    assert role_of(viewer) == Role.BILLING
    client.post(f"/t/acme/members/{viewer.pk}/role", {"role": "admin"})
    assert role_of(viewer) == Role.ADMIN
    page = client.post(f"/t/acme/members/{owner.pk}/role", {"role": "admin"}, follow=True)
    assert "a tenant needs an owner" in page.content.decode()
    client.post(f"/t/acme/members/{viewer.pk}/remove")
    assert client.get(url).status_code == 404
    assert len(client.get("/api/v1/members").json()["results"]) == 1
    told = AuditRecord.objects.filter(action__startswith="member.").order_by("number")
    assert [(record.action, record.actor_name) for record in told] == [
        ("member.set_role", owner.email),
        ("member.set_role", owner.email),
        ("member.remove", owner.email),
    ]
