"""Access to the console's pages by role, and escaping of everything that a tenant writes."""

from __future__ import annotations

import gzip
import re

import pytest
from django.test import Client
from django.urls import reverse

from controlplane.adapters.aliases import alias_move
from controlplane.catalog.models import BaseModel
from controlplane.platform.audit.models import AuditRecord
from controlplane.tenants.limits.services import tenant_limits_set
from controlplane.tenants.models import ApiKey, Membership
from controlplane.tenants.roles import Role
from controlplane.tenants.services import api_key_create, user_create
from tests.controlplane.console.conftest import HOSTILE, PASSWORD, Team, make_adapter


def address(page: str, tenant: str, **values: object) -> str:
    return reverse(f"console:{page}", kwargs={"tenant": tenant, **values})


@pytest.fixture
def client_of(client: Client, acme: Team) -> Client:
    client.force_login(acme.user)
    return client


def test_another_tenants_page_says_nothing_of_it(client_of: Client, globex: Team) -> None:
    foreign = client_of.get(address("adapter", "globex", name="globex-secret"))
    assert foreign.status_code == 404
    assert b"Globex" not in foreign.content


def test_a_role_sees_what_it_may_use(client_of: Client, acme: Team) -> None:
    Membership.objects.filter(user=acme.user).update(role=Role.VIEWER)
    page = client_of.get(address("adapter", "acme", name="support-bot")).content.decode()
    assert 'data-testid="delete-adapter-open"' not in page
    assert address("keys", "acme") not in page
    refused = client_of.get(address("keys", "acme"))
    assert refused.status_code == 403
    assert "is Viewer, which lacks the permission keys.read" in refused.content.decode()


@pytest.mark.parametrize("name", ["home", "adapters", "playground", "keys", "usage", "audit"])
def test_no_page_shows_another_tenants_things(name: str, client_of: Client, globex: Team) -> None:
    response = client_of.get(address(name, "acme"))
    assert response.status_code == 200
    text = response.content.decode()
    assert "globex" not in text.lower()
    assert globex.key.pk not in text


def test_another_tenants_key_and_adapter_are_not_reached_through_ones_own(
    client_of: Client, globex: Team
) -> None:
    for name in ("key-revoke", "key-rotate"):
        url = reverse(f"console:{name}", args=("acme", globex.key.pk))
        assert client_of.post(url, {"overlap": "0"}).status_code == 404
    kept = ApiKey.objects.get(pk=globex.key.pk)
    assert (kept.revoked_at, kept.rotated_at, kept.secret_sha256) == (None, None, globex.key.secret_sha256)
    assert (
        client_of.post(reverse("console:adapter-delete", args=("acme", "globex-secret"))).status_code == 404
    )
    assert client_of.get(reverse("console:adapter", args=("acme", "globex-secret"))).status_code == 404


def test_the_usage_page_shows_the_tenants_limits(client_of: Client, acme: Team) -> None:
    url = address("usage", "acme")
    assert b"limits-table" not in client_of.get(url).content
    tenant_limits_set(tenant=acme.tenant, requests_per_minute=712, budget_nano=5 * 10**11)
    text = client_of.get(url).content.decode()
    table = text[text.index("limits-table") :]
    assert ">712<" in table
    assert "$500.00" in table
    assert "Tokens per minute" not in table


def test_the_audit_page_filters_and_goes_on_to_older_records(client_of: Client, acme: Team) -> None:
    for number in range(50):
        api_key_create(tenant=acme.tenant, name=f"k{number}", scopes=["inference"])
    url = address("audit", "acme")
    newest = AuditRecord.objects.filter(tenant="acme").latest("number").number
    first = client_of.get(url).content.decode()
    assert f'data-testid="record-{newest}"' in first
    assert 'data-testid="record-3"' not in first
    older = client_of.get(url, {"before": "4"}).content.decode()
    assert 'data-testid="record-3"' in older
    assert 'data-testid="audit-older"' not in older
    filtered = client_of.get(url, {"action": "tenant.create", "since": "2020-01-01"}).content.decode()
    assert filtered.count('data-testid="record-') == 1
    assert client_of.get(url, {"since": "soon"}).status_code == 422
    assert client_of.get(address("audit-export", "acme"), {"form": "xml"}).status_code == 400
    text = client_of.get(address("audit-export", "acme"), {"action": "tenant."}).getvalue().decode()
    assert len(text.splitlines()) == 2


def test_names_never_become_markup(client: Client, base: BaseModel, acme: Team) -> None:
    acme.tenant.name = HOSTILE
    acme.tenant.save()
    make_adapter(acme, base, "refused-one", "refused", reason=HOSTILE)
    api_key_create(tenant=acme.tenant, name=HOSTILE[:100], scopes=["inference"])
    client.force_login(acme.user)
    for name in ("home", "adapters", "playground", "keys", "usage", "audit"):
        assert "<script>alert" not in client.get(address(name, "acme")).content.decode()
    page = client.get(reverse("console:adapter", args=("acme", "refused-one"))).content.decode()
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)" in page


def test_an_htmx_request_of_an_ended_session_leads_to_the_login_page(client: Client, acme: Team) -> None:
    headers = {"HX-Request": "true", "HX-Current-URL": "http://testserver/t/acme/keys/"}
    response = client.get("/t/acme/adapters/", headers=headers)
    assert response.status_code == 204
    assert response["HX-Redirect"] == "/login?next=/t/acme/keys/"


def test_the_start_page_leads_to_the_tenant_last_seen(client_of: Client, acme: Team, globex: Team) -> None:
    assert client_of.get("/")["Location"] == "/t/acme/"
    Membership.objects.create(user=acme.user, tenant=globex.tenant)
    page = client_of.get("/t/globex/").content.decode()
    assert 'data-testid="tenant-acme"' in page
    assert client_of.get("/")["Location"] == "/t/globex/"


def test_who_has_no_tenant_is_told_what_to_do(client: Client, acme: Team) -> None:
    client.force_login(user_create(email="new@nowhere.example", password=PASSWORD))
    response = client.get("/")
    assert response.status_code == 200
    assert "Ask your operator to add" in response.content.decode()


def test_staff_get_the_overview_until_they_visit_a_tenant(client: Client, acme: Team) -> None:
    user = user_create(email="new@nowhere.example", password=PASSWORD, is_staff=True)
    client.force_login(user)
    assert client.get("/")["Location"] == "/staff/"
    page = client.get("/staff/").content.decode()
    assert f'action="{reverse("console:logout")}"' in page
    assert "Your tenants" not in page
    Membership.objects.create(user=user, tenant=acme.tenant)
    assert client.get("/")["Location"] == "/staff/"
    assert 'href="/t/acme/"' in client.get("/staff/").content.decode()
    assert 'data-testid="staff-home"' in client.get("/t/acme/").content.decode()
    assert client.get("/")["Location"] == "/t/acme/"


def test_the_policy_forbids_what_is_not_ours(client: Client, acme: Team) -> None:
    first, second = (client.get("/login") for _ in range(2))
    policy = first["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "connect-src 'self' http://127.0.0.1:8001;" in policy
    nonces = [re.findall(r"'nonce-([^']+)'", page["Content-Security-Policy"])[0] for page in (first, second)]
    assert nonces[0] != nonces[1]
    assert f'nonce="{nonces[0]}"' in first.content.decode()


def test_no_page_has_inline_scripts_styles_or_handlers(client_of: Client, acme: Team) -> None:
    alias_move(adapter=acme.tenant.adapters.get(name="support-bot"), name="prod", number=1)
    urls = [address(name, "acme") for name in ("home", "adapters", "playground", "keys", "usage")]
    for url in [*urls, "/t/acme/adapters/support-bot/", "/t/acme/adapters/new", "/login"]:
        page = client_of.get(url, follow=True).content.decode()
        assert re.findall(r"\s(style|on[a-z]+)=", page) == [], url
        for attributes in re.findall(r"<script\b([^>]*)>", page):
            assert "src=" in attributes or 'type="application/json"' in attributes, url
        assert re.findall(r'(?:src|href)="(?:https?:)?//', page) == [], url


def test_login_takes_the_right_password_only(client: Client, acme: Team) -> None:
    wrong = client.post("/login", {"login": acme.user.email, "password": "wrong"})
    assert wrong.status_code == 200
    assert "are not correct" in wrong.content.decode()
    right = client.post("/login", {"login": acme.user.email, "password": PASSWORD, "next": "/t/acme/keys/"})
    assert right["Location"] == "/t/acme/keys/"
    elsewhere = client.post("/logout")
    assert elsewhere["Location"] == "/login"


@pytest.mark.parametrize("path", ["", "adapters/", "adapters/new", "playground/", "keys/", "usage/"])
def test_a_first_visit_weighs_less_than_100_kb(path: str, client_of: Client) -> None:
    compressed = {"Accept-Encoding": "gzip"}
    page = client_of.get(f"/t/acme/{path}", headers=compressed)
    text = gzip.decompress(page.content).decode()
    total = len(page.content)
    for asset in sorted(set(re.findall(r'(?:src|href)="(/static/[^"#]+)', text))):
        response = client_of.get(asset, headers=compressed)
        assert response.status_code == 200
        total += int(response["Content-Length"])
        response.close()
    assert 50_000 < total < 100_000
