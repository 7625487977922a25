"""Who sees which page, and that nothing a tenant writes becomes markup."""

from __future__ import annotations

import gzip
import re

import pytest
from django.test import Client
from django.urls import reverse

from controlplane.adapters.services import alias_move
from controlplane.catalog.models import BaseModel
from controlplane.console.urls import tenant_urls
from controlplane.tenants.models import ApiKey, Membership
from controlplane.tenants.services import api_key_create, user_create
from tests.controlplane.console.conftest import HOSTILE, PASSWORD, Team, make_adapter

ARGUMENTS = {"name": "support-bot", "number": 1, "alias": "prod", "public_id": "0123456789ab"}
POSTS = {"alias-set", "alias-delete", "adapter-pin", "adapter-delete", "playground-key", "key-revoke"}
ROUTES = [(route.name, re.findall(r":(\w+)>", str(route.pattern))) for route in tenant_urls]


def address(name: str, parameters: list[str], tenant: str, **changed: object) -> str:
    values = {parameter: ARGUMENTS[parameter] for parameter in parameters} | changed
    return reverse(f"console:{name}", kwargs={"tenant": tenant, **values})


@pytest.fixture
def client_of(client: Client, acme: Team) -> Client:
    client.force_login(acme.user)
    return client


@pytest.mark.parametrize(("name", "parameters"), ROUTES)
def test_a_visitor_is_sent_to_log_in(name: str, parameters: list[str], client: Client, acme: Team) -> None:
    url = address(name, parameters, "acme")
    response = client.post(url) if name in POSTS else client.get(url)
    assert response.status_code == 302
    assert response["Location"].startswith("/login?next=/t/acme/")


@pytest.mark.parametrize(("name", "parameters"), ROUTES)
def test_another_tenants_page_is_no_page(
    name: str, parameters: list[str], client_of: Client, acme: Team, globex: Team
) -> None:
    unknown, foreign = (
        client_of.post(url) if name in POSTS else client_of.get(url)
        for url in (address(name, parameters, "no-such"), address(name, parameters, "globex"))
    )
    assert (unknown.status_code, foreign.status_code) == (404, 404)
    assert b"Globex" not in foreign.content
    assert b"globex-secret" not in foreign.content


@pytest.mark.parametrize("name", ["home", "adapters", "playground", "keys", "usage"])
def test_no_page_shows_another_tenants_things(name: str, client_of: Client, globex: Team) -> None:
    response = client_of.get(address(name, [], "acme"))
    assert response.status_code == 200
    text = response.content.decode()
    assert "globex" not in text.lower()
    assert globex.key.pk not in text


def test_another_tenants_key_and_adapter_are_not_reached_through_ones_own(
    client_of: Client, globex: Team
) -> None:
    url = reverse("console:key-revoke", args=("acme", globex.key.pk))
    assert client_of.post(url).status_code == 404
    assert ApiKey.objects.get(pk=globex.key.pk).revoked_at is None
    assert (
        client_of.post(reverse("console:adapter-delete", args=("acme", "globex-secret"))).status_code == 404
    )
    assert client_of.get(reverse("console:adapter", args=("acme", "globex-secret"))).status_code == 404


def test_names_never_become_markup(client: Client, base: BaseModel, acme: Team) -> None:
    acme.tenant.name = HOSTILE
    acme.tenant.save()
    make_adapter(acme, base, "refused-one", "refused", reason=HOSTILE)
    api_key_create(tenant=acme.tenant, name=HOSTILE[:100], scopes=["inference"])
    client.force_login(acme.user)
    for name in ("home", "adapters", "playground", "keys", "usage"):
        assert "<script>alert" not in client.get(address(name, [], "acme")).content.decode()
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


@pytest.mark.parametrize(("is_staff", "hint"), [(False, "Your operator has to add"), (True, "Staff pages")])
def test_who_has_no_tenant_is_told_what_to_do(is_staff: bool, hint: str, client: Client, acme: Team) -> None:
    client.force_login(user_create(email="new@nowhere.example", password=PASSWORD, is_staff=is_staff))
    response = client.get("/")
    assert response.status_code == 200
    assert hint in response.content.decode()


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
    urls = [address(name, [], "acme") for name in ("home", "adapters", "playground", "keys", "usage")]
    for url in [*urls, "/t/acme/adapters/support-bot/", "/t/acme/adapters/new", "/login"]:
        page = client_of.get(url, follow=True).content.decode()
        assert re.findall(r"\s(style|on[a-z]+)=", page) == [], url
        for attributes in re.findall(r"<script\b([^>]*)>", page):
            assert "src=" in attributes or 'type="application/json"' in attributes, url
        assert re.findall(r'(?:src|href)="(?:https?:)?//', page) == [], url


def test_login_takes_the_right_password_only(client: Client, acme: Team) -> None:
    wrong = client.post("/login", {"username": acme.user.email, "password": "wrong"})
    assert wrong.status_code == 200
    assert "do not match" in wrong.content.decode()
    right = client.post(
        "/login", {"username": acme.user.email, "password": PASSWORD, "next": "/t/acme/keys/"}
    )
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
