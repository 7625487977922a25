"""Shares, fallbacks, a key's restrictions and a tenant's limits in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from controlplane.adapters.aliases import alias_move
from controlplane.adapters.models import AdapterVersion
from controlplane.adapters.services import adapter_publish
from controlplane.routes.selectors import route_table
from controlplane.tenants.limits.services import tenant_limits_set
from controlplane.tenants.models import ApiKey, User
from tests.controlplane.console.conftest import Team
from tests.controlplane.console.test_browser import Open, open_page

__all__ = ["open_page"]
pytestmark = [
    pytest.mark.browser,
    pytest.mark.costly("renders pages in Chromium"),
    pytest.mark.django_db(transaction=True),
]
NARROW: dict[str, Any] = {"viewport": {"width": 390, "height": 844}}
WIDTHS = pytest.mark.parametrize("options", [{}, NARROW], ids=["desktop", "narrow"])


@pytest.fixture
def alias(acme: Team) -> str:
    """`support-bot@prod`, of an adapter with three versions."""
    adapter = acme.tenant.adapters.get(name="support-bot")
    for number in (2, 3):
        AdapterVersion.objects.create(
            adapter=adapter, number=number, status="ready", sha256=f"{number}" * 64, uri="file:///a/", rank=2
        )
    adapter_publish(adapter=adapter)
    alias_move(adapter=adapter, name="prod", number=1)
    return "/t/acme/adapters/support-bot/aliases/prod/"


def fits(page: Page) -> None:
    """Check that nothing extends beyond the page's right edge."""
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), page.url


@WIDTHS
def test_shares_and_fallbacks_are_set_by_hand(open_page: Open, alias: str, options: dict[str, Any]) -> None:
    page = open_page(alias, **options)
    fits(page)
    page.get_by_test_id("percent-1").fill("80")
    page.get_by_test_id("percent-3").fill("10")
    page.get_by_test_id("split-submit").click()
    expect(page.get_by_test_id("error-split")).to_contain_text("add up to 90")
    expect(page.get_by_test_id("percent-3")).to_have_value("10")
    page.get_by_test_id("percent-2").fill("10")
    page.get_by_test_id("stays-2").check()
    page.get_by_test_id("split-submit").click()
    expect(page.get_by_test_id("alias-meaning")).to_contain_text("v2: 10")
    page.get_by_test_id("fallback-0").fill("support-bot@v1")
    page.get_by_test_id("fallback-1").fill("tiny")
    page.get_by_test_id("fallback-submit").click()
    expect(page.locator(".toast")).to_contain_text("support-bot@v1, tiny")
    expect(page.get_by_test_id("fallback-1")).to_have_value("tiny")
    route = route_table().adapters["acme"]["support-bot"]
    assert route.splits == {"prod": ((2, 10), (3, 10), (1, 80))}
    assert route.fallbacks == {"prod": ("support-bot@v1", "tiny")}


@WIDTHS
def test_a_key_is_changed_in_one_of_two_tabs(open_page: Open, acme: Team, options: dict[str, Any]) -> None:
    page = open_page("/t/acme/keys/", **options)
    page.get_by_test_id(f"open-{acme.key.pk}").click()
    expect(page.get_by_test_id("key-models")).to_be_visible()  # the click's page, and no longer the list
    fits(page)
    other = page.context.new_page()
    other.goto(page.url)
    page.get_by_test_id("key-models").fill("support-bot@prod, tiny")
    page.get_by_test_id("key-expires").fill("2099-01-31T18:00")
    page.get_by_label("/v1/chat/completions").check()
    page.get_by_test_id("key-settings-submit").click()
    expect(page.locator(".toast")).to_contain_text("within a second")
    other.get_by_test_id("key-networks").fill("192.0.2.0/24")
    other.get_by_test_id("key-settings-submit").click()
    expect(other.get_by_test_id("error-key")).to_contain_text("changed since you opened the page")
    expect(other.get_by_test_id("key-networks")).to_have_value("192.0.2.0/24")
    fits(other)
    key = ApiKey.objects.get(pk=acme.key.pk)
    assert (key.allowed_models, key.allowed_networks) == (["support-bot@prod", "tiny"], None)
    assert key.allowed_endpoints == ["chat/completions"]


@WIDTHS
def test_staff_sets_a_tenants_limits(open_page: Open, acme: Team, options: dict[str, Any]) -> None:
    User.objects.filter(pk=acme.user.pk).update(is_staff=True)
    tenant_limits_set(tenant=acme.tenant, requests_per_minute=600)
    page = open_page("/staff/tenants/acme/", **options)
    fits(page)
    expect(page.get_by_test_id("limit-requests_per_minute")).to_have_value("600")
    page.get_by_test_id("limit-budget").fill("much")
    page.get_by_test_id("tenant-limits-submit").click()
    expect(page.get_by_test_id("error-budget")).to_contain_text("an amount such as 250")
    page.get_by_test_id("limit-budget").fill("250")
    page.get_by_test_id("limit-weight").fill("2")
    page.get_by_test_id("tenant-limits-submit").click()
    expect(page.locator(".toast")).to_contain_text("within a second")
    page.get_by_test_id("limit-size_gb").fill("20")
    page.get_by_test_id("tenant-quota-submit").click()
    expect(page.get_by_test_id("limit-size_gb")).to_have_value("20")
    page.goto("/staff/tenants/")
    page.get_by_test_id("tenant-new").click()
    page.get_by_test_id("tenant-id").fill("initech")
    page.get_by_test_id("tenant-create").click()
    page.wait_for_url("**/staff/tenants/initech/")
    page.goto("/staff/audit/")
    fits(page)
    assert route_table().limits["tenant:acme"].weight == 2
    assert Path(page.url).name == "audit"
