"""Walks every REST route and every page as every role of two tenants, as keys, staff and nobody."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection, transaction
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver, reverse
from pytest_django.plugin import DjangoDbBlocker

from controlplane import api_urls
from controlplane.console.urls import tenant_urls
from controlplane.platform.http.permissions import Nobody
from controlplane.platform.row_security.grants import web_role_grant
from controlplane.tenants.permissions import Staff, StaffSession, TenantPermission, UsageReporter
from controlplane.tenants.roles import GRANTS, Permission, Role
from tests.controlplane.adapter_routes import ADAPTER_PAGES, ADAPTER_ROUTES
from tests.controlplane.billing.stated import BILLING_PAGES, BILLING_ROUTES
from tests.controlplane.deployment_routes import DEPLOYMENT_ROUTES, FLEET_ROUTES
from tests.controlplane.open_pages import ANYONE, ONESELF
from tests.controlplane.optimization_routes import OPTIMIZATION_ROUTES
from tests.controlplane.staff_pages import STAFF_LISTS, STAFF_PAGES, staff_thing
from tests.controlplane.world import OTHER, OWN, World, everyone, world_make

pytestmark = pytest.mark.django_db

STAFF = "staff"
REPORTER = "key with scope usage:write"
ROLE = f"graftwork_isolation_{os.getpid()}"

# Route name -> method -> the permission that it needs, in words of its own: what a view states is compared
# with this. A new route fails the first test until it stands here; what its path names, in `world.values`.
ROUTES: dict[str, dict[str, str]] = {
    "me": {"get": "tenant.read"},
    **ADAPTER_ROUTES,
    "keys": {"get": "keys.read", "post": "keys.write"},
    "key": {"get": "keys.read", "patch": "keys.write", "delete": "keys.write"},
    "key-rotate": {"post": "keys.write"},
    "key-limits": {"get": "keys.read", "put": "keys.write"},
    "limits": {"get": "tenant.read"},
    "uploads": {"get": "adapters.read", "post": "adapters.write"},
    "upload": {"get": "adapters.read", "patch": "adapters.write", "delete": "adapters.write"},
    "source-credentials": {"get": "adapters.read", "post": "adapters.write"},
    "source-credential": {"get": "adapters.read", "delete": "adapters.write"},
    "projects": {"get": "projects.read", "post": "projects.write"},
    "project": {"get": "projects.read", "patch": "projects.write", "delete": "projects.write"},
    "service-accounts": {"get": "service_accounts.read", "post": "service_accounts.write"},
    "service-account": {
        "get": "service_accounts.read",
        "patch": "service_accounts.write",
        "delete": "service_accounts.write",
    },
    "members": {"get": "members.read"},
    "member": {"get": "members.read", "patch": "members.write", "delete": "members.write"},
    "invitations": {"get": "members.read", "post": "members.write"},
    "invitation": {"get": "members.read", "delete": "members.write"},
    "invitation-resend": {"post": "members.write"},
    "base-models": {"get": "models.read", "post": STAFF},
    "base-model": {"get": "models.read", "patch": STAFF},
    "checkpoint": {"get": STAFF, "post": STAFF},
    "base-model-refresh": {"post": STAFF},
    "variants": {"get": "models.read", "post": STAFF},
    "variant": {"get": "models.read", "delete": STAFF},
    "organization-usage-completions": {"get": "usage.read"},
    "organization-costs": {"get": "usage.read"},
    "hosting": {"get": "billing.read"},
    **FLEET_ROUTES,
    "fleet-hosting": {"get": STAFF},
    "instance-prices": {"get": STAFF, "post": STAFF},
    "instance-prices-aws": {"post": STAFF},
    "fleet-attribution": {"get": STAFF},
    "fleet-savings": {"get": STAFF},
    "fleet-savings-estimate": {"get": STAFF},
    "fleet-blended-price": {"get": STAFF},
    "fleet-instance-saving": {"get": STAFF},
    "usage-events": {"post": REPORTER},
    "usage-sources": {"get": STAFF, "post": STAFF},
    "usage-source": {"get": STAFF, "delete": STAFF},
    "tenants": {"get": STAFF, "post": STAFF},
    "tenant": {"get": STAFF},
    "tenant-limits": {"get": STAFF, "put": STAFF},
    "tenant-adapter-quota": {"get": STAFF, "put": STAFF},
    "tenant-export": {"get": STAFF},
    "tenant-suspension": {"get": STAFF, "post": STAFF, "delete": STAFF},
    "tenant-deletion": {"get": STAFF, "post": STAFF, "delete": STAFF},
    "users": {"get": STAFF, "post": STAFF},
    "copies": {"get": STAFF, "post": STAFF},
    "staff-tokens": {"get": STAFF, "post": STAFF},
    "staff-token": {"get": STAFF, "delete": STAFF},
    "copy": {"get": STAFF, "delete": STAFF},
    **DEPLOYMENT_ROUTES,
    **OPTIMIZATION_ROUTES,
    "webhooks": {"get": "webhooks.read", "post": "webhooks.write"},
    "webhook": {"get": "webhooks.read", "patch": "webhooks.write", "delete": "webhooks.write"},
    "webhook-rotate": {"post": "webhooks.write"},
    "webhook-test": {"post": "webhooks.write"},
    "webhook-deliveries": {"get": "webhooks.read"},
    "webhook-resend": {"post": "webhooks.write"},
    "audit": {"get": "audit.read"},
    "audit-export": {"get": "audit.read"},
    "audit-chain": {"get": "audit.read"},
    "fleet-audit": {"get": STAFF},
    "fleet-audit-export": {"get": STAFF},
    "prompt-log": {"get": "prompts.read", "put": "prompts.write", "delete": "prompts.write"},
    "request-prompt": {"get": "prompts.read"},
    **BILLING_ROUTES,
}
# The same of pages below /t/<tenant>/.
PAGES: dict[str, dict[str, str]] = {
    "home": {"get": "tenant.read"},
    "find": {"get": "tenant.read"},
    **ADAPTER_PAGES,
    "prompt-log": {"get": "prompts.read", "post": "prompts.write"},
    "prompt-log-end": {"post": "prompts.write"},
    "request-prompt": {"post": "prompts.read"},
    "playground": {"get": "inference.call"},
    "playground-key": {"post": "inference.call"},
    "playground-models": {"get": "inference.call"},
    "playground-prices": {"get": "inference.call"},
    "keys": {"get": "keys.read", "post": "keys.write"},
    "key": {"get": "keys.read", "post": "keys.write"},
    "key-limits": {"get": "keys.read", "post": "keys.write"},
    "key-rotate": {"post": "keys.write"},
    "key-revoke": {"post": "keys.write"},
    "webhooks": {"get": "webhooks.read", "post": "webhooks.write"},
    "webhook": {"get": "webhooks.read", "post": "webhooks.write"},
    "webhook-rotate": {"post": "webhooks.write"},
    "webhook-test": {"post": "webhooks.write"},
    "webhook-delete": {"post": "webhooks.write"},
    "webhook-resend": {"post": "webhooks.write"},
    "audit": {"get": "audit.read"},
    "audit-export": {"get": "audit.read"},
    "projects": {"get": "projects.read", "post": "projects.write"},
    "project-rename": {"post": "projects.write"},
    "project-archive": {"post": "projects.write"},
    "service-accounts": {"get": "service_accounts.read", "post": "service_accounts.write"},
    "service-account-role": {"post": "service_accounts.write"},
    "service-account-disable": {"post": "service_accounts.write"},
    "members": {"get": "members.read", "post": "members.write"},
    "member-role": {"post": "members.write"},
    "member-remove": {"post": "members.write"},
    "invitation-resend": {"post": "members.write"},
    "invitation-revoke": {"post": "members.write"},
    **BILLING_PAGES,
}
DELETED = {
    "adapter-restore": {"name": "retired"},
    "adapter-purge": {"name": "retired"},
    "version-restore": {"number": "2"},
}
"""Routes about what was deleted, and its names in the world."""
NAMES = {
    "base-model": "tiny-base",
    "checkpoint": "tiny-base",
    "base-model-refresh": "tiny-base",
    "variants": "tiny-base",
    "variant": "tiny-base",
    "price-book": "standard",
    "prices": "standard",
    "hosting-prices": "standard",
    "price-book-terms": "standard",
    "price-book-term": "standard",
    "source-credential": "hub",
    "source-credential-delete": "hub",
}
"""What <name> stands for, where it is no adapter."""
SHARED = {"base-models", "base-model", "variants", "variant"}
"""Routes about things that no tenant owns."""

READS_USAGE = {
    (name, "get")
    for name in ("usage", "organization-usage-completions", "organization-costs", "requests", "request")
}
"""What a key with scope `usage` alone opens."""

API_CASES = [(name, method) for name, methods in ROUTES.items() for method in methods]
PAGE_CASES = [(name, method) for name, methods in PAGES.items() for method in methods]
METHODS = ("get", "post", "put", "patch", "delete")
REFUSED = {401, 403, 404}
API_PATTERNS: dict[str, URLPattern] = {str(pattern.name): pattern for pattern in api_urls.urlpatterns}
PAGE_PATTERNS: dict[str, URLPattern] = {str(pattern.name): pattern for pattern in tenant_urls}


@pytest.fixture(scope="module")
def world(
    django_db_setup: None, django_db_blocker: DjangoDbBlocker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    """One for all cases; each case's changes are rolled back."""
    with django_db_blocker.unblock(), transaction.atomic():
        made = world_make(tmp_path_factory.mktemp("world"))
        if connection.vendor == "postgresql":
            web_role_grant(name=ROLE)  # gone with the transaction
        yield made
        transaction.set_rollback(True)


@contextmanager
def undone() -> Iterator[None]:
    """Rolls back what is done inside. On PostgreSQL it is done as the web process's role, which row
    policies hold for."""
    with transaction.atomic():
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute(f"SET LOCAL ROLE {ROLE}")
        yield
        transaction.set_rollback(True)


def parameters(pattern: URLPattern) -> list[str]:
    return re.findall(r"<(?:\w+:)?(\w+)>", str(pattern.pattern))


def names_a_thing(pattern: URLPattern) -> bool:
    return bool(parameters(pattern))


def api_path(world: World, name: str) -> str:
    values = dict(world.values)
    values |= DELETED.get(name, {})
    values["name"] = NAMES.get(name, values["name"])
    pattern = API_PATTERNS[name]
    return reverse(f"api:{name}", kwargs={key: values[key] for key in parameters(pattern)})


def page_path(world: World, name: str, tenant: str) -> str:
    named = {**world.values, **DELETED.get(name, {})}
    named["name"] = NAMES.get(name, named["name"])
    values = {key: named[key] for key in parameters(PAGE_PATTERNS[name])}
    return reverse(f"console:{name}", kwargs={"tenant": tenant, **values})


def call(client: Client, method: str, path: str, key: str | None = None) -> int:
    """Return the answer's status; roll back any change."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    if path.endswith(("limits", "quota")):
        headers["If-Match"] = "*"  # demanded; the object is looked for first
    data: dict[str, Any] = {"version": 1} if method == "put" else {}
    if "/organization/" in path:
        data = {"start_time": 1_767_225_600}
    elif path.endswith(("usage", "hosting")):
        data = {"start": "2026-01-01", "end": "2026-01-02"}
    body = {"content_type": "application/json"} if method != "get" else {}
    with undone():
        return int(getattr(client, method)(path, data, headers=headers, **body).status_code)


def visit(client: Client, method: str, path: str) -> int:
    with undone():
        return int(getattr(client, method)(path).status_code)


def test_every_route_and_method_states_the_permission_that_stands_here() -> None:
    found: dict[str, dict[str, str]] = {}
    for name, pattern in API_PATTERNS.items():
        view = pattern.callback.cls  # type: ignore[attr-defined]
        assert "permission_classes" in vars(view), f"{name} states no permission"
        (stated,) = view.permission_classes
        assert stated is not Nobody
        found[name] = {method: _permission(stated, method) for method in METHODS if hasattr(view, method)}
    assert found == ROUTES


def _permission(permission: type, method: str) -> str:
    if permission in (Staff, StaffSession):
        return STAFF
    if permission is UsageReporter:
        return REPORTER
    assert issubclass(permission, TenantPermission), "state tenant_may(...), Staff or UsageReporter"
    if method == "get":
        return permission.read
    return STAFF if permission.staff_writes else permission.write


def test_every_page_states_the_permission_that_stands_here() -> None:
    assert set(PAGE_PATTERNS) == set(PAGES)
    for name, method in PAGE_CASES:
        stated = getattr(PAGE_PATTERNS[name].callback, "permissions", None)
        assert stated is not None, f"page {name} states no permission: decorate it with tenant_page(...)"
        assert stated[method.upper()] == PAGES[name][method], name


def _named(patterns: list[URLPattern | URLResolver]) -> set[str]:
    found = set[str]()
    for pattern in patterns:
        if isinstance(pattern, URLResolver):
            if pattern.app_name not in ("admin", "api") and "t/" not in str(pattern.pattern):
                found |= _named(pattern.url_patterns)
        else:
            found.add(str(pattern.name))
    return found


def test_every_other_page_is_for_anyone_or_about_oneself(world: World) -> None:
    machines = {"openapi", "docs", "None"}
    assert _named(get_resolver().url_patterns) - machines == ANYONE | ONESELF | set(STAFF_PAGES)
    for name in ONESELF:
        assert visit(world.nobody, "get", reverse(name)) in (302, 404), name


@pytest.mark.parametrize(("name", "method"), STAFF_PAGES.items())
def test_a_staff_page_is_no_page_to_others(world: World, name: str, method: str) -> None:
    path = reverse(f"console:{name}", args=() if name in STAFF_LISTS else (staff_thing(world, name),))
    assert visit(world.nobody, method, path) == 302
    for tenant, role, client in everyone(world):
        assert visit(client, method, path) == 404, (tenant, role)
    assert visit(world.staff, method, path) not in REFUSED


def test_every_permission_is_known_and_some_role_has_it() -> None:
    assert set(GRANTS) == set(Role)
    assert GRANTS[Role.OWNER] == set(Permission)
    for table in (ROUTES, PAGES):
        used = {permission for methods in table.values() for permission in methods.values()}
        assert used - {STAFF, REPORTER} <= set(Permission)
    assert GRANTS[Role.VIEWER] < GRANTS[Role.ENGINEER] < GRANTS[Role.ADMIN] < GRANTS[Role.OWNER]
    assert GRANTS[Role.BILLING] < GRANTS[Role.ADMIN]


@pytest.mark.parametrize(("name", "method"), API_CASES)
def test_strangers_and_keys_for_something_else_are_refused(world: World, name: str, method: str) -> None:
    path = api_path(world, name)
    assert call(world.nobody, method, path) == 401
    assert call(world.nobody, method, path, "gw_nobody_nothing") == 401
    assert call(world.nobody, method, path, world.inference[OWN]) == 403
    reads_usage = call(world.nobody, method, path, world.usage[OWN])
    assert reads_usage == (200 if (name, method) in READS_USAGE else 403)


@pytest.mark.parametrize(("name", "method"), API_CASES)
def test_a_route_lets_in_who_has_its_permission(world: World, name: str, method: str) -> None:
    needed, path = ROUTES[name][method], api_path(world, name)
    callers = {(tenant, role, call(client, method, path)) for tenant, role, client in everyone(world)}
    callers |= {
        (tenant, Role.ENGINEER, call(world.nobody, method, path, key)) for tenant, key in world.manage.items()
    }
    for tenant, role, status in callers:
        if needed in (STAFF, REPORTER) or needed not in GRANTS[role]:
            assert status == 403, (tenant, role)
        elif tenant == OTHER and name not in SHARED and names_a_thing(API_PATTERNS[name]):
            assert status == 404, (tenant, role)
        else:
            assert status not in REFUSED, (tenant, role)
    staff_may = needed == STAFF or name in SHARED
    status = call(world.staff, method, path)
    assert status not in REFUSED if staff_may else status == 403


@pytest.mark.parametrize(("name", "method"), PAGE_CASES)
def test_a_page_shows_itself_to_who_has_its_permission(world: World, name: str, method: str) -> None:
    needed, path = PAGES[name][method], page_path(world, name, OWN)
    mine, nowhere = page_path(world, name, OTHER), page_path(world, name, "no-such")
    visitor = getattr(world.nobody, method)(path)
    assert (visitor.status_code, visitor["Location"].split("?")[0]) == (302, "/login")
    assert visit(world.staff, method, path) == 404
    for tenant, role, client in everyone(world):
        may = needed in GRANTS[role]
        if tenant == OTHER:
            assert visit(client, method, path) == visit(client, method, nowhere) == 404, role
            # Their own tenant's page, naming a thing of the other's.
            if may and names_a_thing(PAGE_PATTERNS[name]):
                assert visit(client, method, mine) == 404, role
            continue
        status = visit(client, method, path)
        assert status not in REFUSED if may else status == 403, role


@pytest.mark.parametrize("name", ["adapters", "keys"])
def test_lists_hold_only_ones_own(world: World, name: str) -> None:
    headers = {"Authorization": f"Bearer {world.manage[OTHER]}"}
    text = world.nobody.get(api_path(world, name), headers=headers).content.decode()
    assert "pirate" not in text
    assert world.values["public_id"] not in text


def test_a_person_cannot_name_a_tenant_that_is_not_theirs(world: World) -> None:
    client = world.people[OTHER, Role.OWNER]
    assert client.get("/api/v1/adapters", headers={"X-Graftwork-Tenant": OWN}).status_code == 403


def test_sessions_need_a_csrf_token(world: World) -> None:
    client = Client(enforce_csrf_checks=True)
    client.cookies = world.people[OWN, Role.OWNER].cookies
    body = {"name": "k", "scopes": ["manage"]}
    assert client.post("/api/v1/keys", body, content_type="application/json").status_code == 403
