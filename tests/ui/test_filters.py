"""Filters apply at once, keep the focus and the address; without scripts they have a button."""

from __future__ import annotations

import pytest
from django.test import Client
from playwright.sync_api import Page, expect

from controlplane.tenants.roles import Role
from tests.controlplane.world import OWN, World
from tests.ui import pages
from tests.ui.conftest import Visit

pytestmark = [
    pytest.mark.browser,
    pytest.mark.costly("renders pages in Chromium"),
    pytest.mark.django_db(transaction=True),
]


_ROWS = """() => {
  const body = document.querySelector("[data-testid=usage-table] tbody");
  body.innerHTML = [["thousand", "1,000"], ["nine", "9"], ["dollars", "$1,234.50"]]
    .map(([name, sum]) => `<tr><th>${name}</th><td>${sum}</td></tr>`).join("")
    + "<tr data-fixed><th>others</th><td>0</td></tr>";
}"""
"""Rows whose order as texts differs from that of their numbers."""


@pytest.fixture
def owner(world: World) -> Client:
    return world.people[OWN, Role.OWNER]


def focused(page: Page) -> str:
    found: str = page.evaluate("document.activeElement.id")
    return found


def test_a_filter_applies_at_once_and_keeps_the_focus(world: World, owner: Client, visit: Visit) -> None:
    page = visit(owner, pages.tenant_path(world, "requests"))
    expect(page.get_by_test_id("requests-show")).to_be_hidden()
    rows = page.get_by_test_id("requests-table").locator("tbody tr")
    before = rows.count()
    page.get_by_test_id("status-filter").focus()
    page.get_by_test_id("status-filter").select_option("ok")
    expect(rows).not_to_have_count(before)
    assert "status=ok" in page.url
    assert focused(page) == "status"
    page.get_by_test_id("month-this").click()
    expect(page).to_have_url(page.url)
    assert "status=ok" in page.url
    page.go_back()
    expect(page.get_by_test_id("status-filter")).to_have_value("ok")


def test_the_usage_chart_is_drawn_again(world: World, owner: Client, visit: Visit) -> None:
    page = visit(owner, pages.tenant_path(world, "usage"))
    chart = page.get_by_test_id("usage-chart")
    expect(chart.locator("canvas")).to_have_count(1)
    page.get_by_test_id("usage-group").select_option("key")
    expect(page.get_by_role("heading", name="Usage by")).to_contain_text("key")
    expect(chart.locator("canvas")).to_have_count(1)
    page.evaluate("document.dispatchEvent(new CustomEvent('themechange'))")
    expect(chart.locator("canvas")).to_have_count(1)


def test_without_scripts_a_button_applies_filters(world: World, owner: Client, visit: Visit) -> None:
    page = visit(owner, pages.tenant_path(world, "requests"), java_script_enabled=False)
    page.get_by_test_id("status-filter").select_option("ok")
    page.get_by_test_id("requests-show").click()
    assert "status=ok" in page.url


def test_the_palette_opens_by_keys_and_leads_to_pages_and_adapters(
    world: World, owner: Client, visit: Visit
) -> None:
    page = visit(owner, pages.tenant_path(world, "home"))
    page.keyboard.press("Control+k")
    query, options = (
        page.get_by_test_id("palette-query"),
        page.get_by_test_id("palette").get_by_role("option"),
    )
    expect(query).to_be_focused()
    query.fill("usage")
    expect(options).to_have_count(1)
    page.keyboard.press("Enter")
    page.wait_for_url("**/usage/")
    page.get_by_test_id("palette-open").click()
    query.fill("pirat")
    expect(options).to_have_text(["pirateAdapter"])
    query.fill("no-such-thing")
    expect(page.get_by_text("Nothing found.")).to_be_visible()
    query.fill("")
    page.keyboard.press("ArrowDown")
    assert options.nth(1).get_attribute("aria-selected") == "true"
    page.keyboard.press("Escape")
    expect(page.get_by_test_id("palette")).to_be_hidden()


def test_columns_of_whole_lists_sort(world: World, owner: Client, visit: Visit) -> None:
    page = visit(owner, pages.tenant_path(world, "usage") + "?group=status")
    page.evaluate(_ROWS)
    heads = page.get_by_test_id("usage-table").locator("thead th")
    names = page.get_by_test_id("usage-table").locator("tbody th")
    heads.nth(1).get_by_role("button").click()
    expect(heads.nth(1)).to_have_attribute("aria-sort", "ascending")
    expect(names).to_have_text(["nine", "thousand", "dollars", "others"])
    heads.nth(1).get_by_role("button").click()
    expect(heads.nth(1)).to_have_attribute("aria-sort", "descending")
    expect(names).to_have_text(["dollars", "thousand", "nine", "others"])
    heads.nth(0).get_by_role("button").click()
    expect(names).to_have_text(["dollars", "nine", "thousand", "others"])
    expect(heads.nth(1)).not_to_have_attribute("aria-sort", "descending")
