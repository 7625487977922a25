"""Staff pages: each loads for staff, is refused to others, and shows no secret."""

from __future__ import annotations

import pytest
from django.contrib import admin
from django.test import Client

from controlplane.tenants.models import Tenant
from controlplane.tenants.services import api_key_create, user_create

pytestmark = pytest.mark.django_db
PAGES = ["/admin/"] + [
    f"/admin/{model._meta.app_label}/{model._meta.model_name}/" for model in admin.site._registry
]


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.costly("its first call loads what the pages need")
def test_only_staff_see_it(tenant: Tenant, page: str) -> None:
    key, text = api_key_create(tenant=tenant, name="k", scopes=["manage"])
    staff, member = Client(), Client()
    staff.force_login(user_create(email="s@graft.test", password="long-enough-7", is_staff=True))
    member.force_login(user_create(email="m@acme.test", password="long-enough-7", tenant=tenant))
    reply = staff.get(page)
    assert reply.status_code == 200
    assert key.secret_sha256 not in reply.content.decode()
    assert tenant.cache_salt not in reply.content.decode()
    assert Client().get(page).status_code == 302
    assert member.get(page).status_code in (302, 403)
    assert Client(headers={"Authorization": f"Bearer {text}"}).get(page).status_code == 302


def test_details_show_no_secret(tenant: Tenant) -> None:
    key, _ = api_key_create(tenant=tenant, name="k", scopes=["manage"])
    staff = Client()
    user = user_create(email="s@graft.test", password="long-enough-7", is_staff=True)
    staff.force_login(user)
    for path, secret in (
        (f"apikey/{key.pk}", key.secret_sha256),
        (f"tenant/{tenant.pk}", tenant.cache_salt),
        (f"user/{user.pk}", user.password),
    ):
        reply = staff.get(f"/admin/tenants/{path}/change/")
        assert reply.status_code == 200
        assert secret not in reply.content.decode()
