"""Long lists of people, keys and accounts: pages of 50, one dialog for all rows, as many queries as few."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from controlplane.tenants.members.models import Invitation
from controlplane.tenants.models import Membership, Tenant, User
from controlplane.tenants.roles import Role
from controlplane.tenants.services import api_key_create, project_create, service_account_create, user_create

pytestmark = pytest.mark.django_db
MANY = 120


@pytest.fixture
def owner(client: Client, tenant: Tenant) -> Client:
    user = user_create(email="a-dev@acme.test", password="long-enough-7", tenant=tenant, role=Role.OWNER)
    client.force_login(user)
    client.get("/t/acme/members/")  # fills the session's caches, so that later counts leave them out
    return client


def _members(tenant: Tenant, count: int) -> None:
    users = User.objects.bulk_create(User(email=f"m{number:03}@acme.test") for number in range(count))
    Membership.objects.bulk_create(Membership(user=user, tenant=tenant, role=Role.VIEWER) for user in users)


def _keys(tenant: Tenant, count: int) -> None:
    for number in range(count):
        api_key_create(tenant=tenant, name=f"k{number:03}", scopes=["inference"])


def _accounts(tenant: Tenant, count: int) -> None:
    project = tenant.projects.get(slug="default")
    for number in range(count):
        service_account_create(project=project, name=f"a{number:03}", role=Role.VIEWER)


def _projects(tenant: Tenant, count: int) -> None:
    for number in range(count):
        project_create(tenant=tenant, slug=f"p{number:03}", name="P")


Fill = Callable[[Tenant, int], None]
PAGES: dict[str, tuple[Fill, str, int]] = {
    "members": (_members, "member-", 2),
    "keys": (_keys, "key-[0-9a-z]{8,}", 2),
    "service-accounts": (_accounts, "account-a", 2),
    "projects": (_projects, "project-p", 1),
}


def _read(client: Client, path: str) -> tuple[str, int]:
    with CaptureQueriesContext(connection) as queries:
        answer = client.get(path)
    assert answer.status_code == 200
    return answer.content.decode(), len(queries)


@pytest.mark.parametrize("name", PAGES)
def test_many_rows_come_in_pages_with_one_dialog_for_all(name: str, owner: Client, tenant: Tenant) -> None:
    fill, row, dialogs = PAGES[name]
    path = f"/t/acme/{name}/"
    fill(tenant, 2)
    _read(owner, path)
    _, few = _read(owner, path)
    _clear(tenant, name)
    fill(tenant, MANY)
    page, many = _read(owner, path)
    assert many <= few <= 14
    assert len(re.findall(f'<tr data-testid="{row}', page)) in (49, 50)
    assert len(re.findall('<dialog(?! class="dialog palette")', page)) == dialogs
    assert 'data-testid="page-next"' in page
    seen = set(re.findall(r'<tr data-testid="([^"]+)"', page))
    for _ in range(2):
        (following,) = re.findall(r'href="(\?[^"]*cursor=[^"]*)" rel="next"', page)
        page, _count = _read(owner, path + following.replace("&amp;", "&"))
        rows = set(re.findall(r'<tr data-testid="([^"]+)"', page))
        assert not rows & seen
        seen |= rows
    assert len(seen) >= MANY


def _clear(tenant: Tenant, name: str) -> None:
    """Takes away what was filled in first, so that names may come again."""
    match name:
        case "members":
            User.objects.filter(email__startswith="m0").delete()
        case "keys":
            tenant.api_keys.all().delete()
        case "service-accounts":
            tenant.service_accounts.all().delete()
        case _:
            tenant.projects.exclude(slug="default").delete()


def test_members_are_searched_by_part_of_the_address(owner: Client, tenant: Tenant) -> None:
    _members(tenant, 30)
    page, _ = _read(owner, "/t/acme/members/?search=M01")
    assert len(re.findall('<tr data-testid="member-m01', page)) == 10
    assert 'data-testid="member-m020' not in page
    page, _ = _read(owner, "/t/acme/members/?search=nobody")
    assert 'data-testid="members-none"' in page


def test_only_the_newest_invitations_are_shown(owner: Client, tenant: Tenant) -> None:
    until = timezone.now() + dt.timedelta(days=7)
    Invitation.objects.bulk_create(
        Invitation(tenant=tenant, email=f"i{number}@acme.test", role=Role.VIEWER, nonce="n", expires_at=until)
        for number in range(52)
    )
    page, queries = _read(owner, "/t/acme/members/")
    assert page.count('data-testid="invitation-') == 50
    assert 'data-testid="invitations-more"' in page
    assert queries <= 14


def test_names_in_a_dialogs_words_are_no_markup(owner: Client, tenant: Tenant) -> None:
    api_key_create(tenant=tenant, name='"><script>alert(1)</script>', scopes=["inference"])
    page, _ = _read(owner, "/t/acme/keys/")
    assert "<script>alert" not in page
    assert "Revoke “&quot;&gt;&lt;script&gt;" in page


def test_who_may_not_change_members_has_no_dialog(client: Client, tenant: Tenant) -> None:
    user = user_create(email="v@acme.test", password="long-enough-7", tenant=tenant, role=Role.ADMIN)
    client.force_login(user)
    owner = user_create(email="o@acme.test", password="long-enough-7", tenant=tenant, role=Role.OWNER)
    page, _ = _read(client, "/t/acme/members/")
    assert f'data-testid="role-{owner.pk}-open"' not in page
    assert f'data-testid="role-{user.pk}-open"' in page
