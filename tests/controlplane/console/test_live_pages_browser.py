"""The operator's live pages in Chromium: they refresh themselves, pause while hidden, and show silence."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, Request, expect

from controlplane.catalog.models import BaseModel
from controlplane.deployments.models import Copy
from tests.controlplane.console.conftest import Team
from tests.controlplane.console.test_browser import Open, open_page
from tests.controlplane.fleet.copy_server import CopyServer, copy_server

__all__ = ["open_page"]
pytestmark = [
    pytest.mark.browser,
    pytest.mark.costly("renders pages in Chromium"),
    pytest.mark.django_db(transaction=True),
]
PAGES = ("/staff/fleet/", "/staff/health/", "/staff/queues/", "/staff/fleet/bases/tiny/adapters/?all=1")
WAIT = 60_000
HIDE = """hidden => {
  Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}"""
COUNT = """() => {
  document.addEventListener("htmx:beforeRequest", (event) => {
    if (!event.target.hasAttribute("data-poll")) return;
    setTimeout(() => { if (event.defaultPrevented) document.body.dataset.rested = "yes"; });
  });
}"""
SIDEWAYS = "document.documentElement.scrollWidth > document.documentElement.clientWidth"


@pytest.fixture
def server(acme: Team, base: BaseModel) -> Iterator[CopyServer]:
    """A routed copy; the user is staff."""
    acme.user.is_staff = True
    acme.user.save()
    with copy_server() as state:
        state.held = {"ab" * 32: "device"}
        Copy.objects.create(id="copy-a", base_model=base, kind="worker", url=state.url)
        yield state


def polls(page: Page) -> list[str]:
    """Return a list that collects the status URLs that the page polls from now on."""
    asked: list[str] = []

    def note(request: Request) -> None:
        if "/status" in request.url:
            asked.append(request.url)

    page.on("request", note)
    return asked


def test_the_fleet_goes_on_rests_while_hidden_and_comes_back(open_page: Open, server: CopyServer) -> None:
    page = open_page("/staff/fleet/")
    copy = page.get_by_test_id("copy-copy-a")
    expect(copy).to_have_attribute("data-state", "serving")
    server.status = 503
    expect(copy).to_have_attribute("data-state", "silent", timeout=WAIT)
    expect(copy).to_contain_text("updated")
    page.evaluate(COUNT)
    page.evaluate(HIDE, True)
    asked = polls(page)
    expect(page.locator("body")).to_have_attribute("data-rested", "yes", timeout=WAIT)
    assert asked == [], "nobody looks: nothing is asked for"
    server.status = 200
    page.evaluate(HIDE, False)
    expect(copy).to_have_attribute("data-state", "serving", timeout=WAIT)
    assert asked


def test_a_page_whose_server_is_gone_says_that_it_is_old(open_page: Open, server: CopyServer) -> None:
    page = open_page("/staff/health/")
    lost = page.locator("[data-live-lost]")
    expect(lost).to_be_hidden()
    page.route("**/staff/health/status", lambda route: route.abort())
    # As if several rounds had passed.
    page.get_by_test_id("health").evaluate("part => { part.dataset.live = '0'; }")
    expect(lost).to_be_visible(timeout=WAIT)
    expect(page.locator("[data-live-age]")).to_contain_text("ago")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_pages_fit_a_phone_and_their_menu_a_desktop(open_page: Open, server: CopyServer, theme: str) -> None:
    page = open_page(PAGES[0], color_scheme=theme, viewport={"width": 360, "height": 800})
    for path in PAGES:
        page.goto(path)
        assert not page.evaluate(SIDEWAYS), path
    page.get_by_test_id("menu").click()
    expect(page.get_by_test_id("staff-menu")).to_be_visible()
    expect(page.get_by_test_id("logout")).to_be_visible()
    page.set_viewport_size({"width": 1280, "height": 900})
    page.goto("/staff/queues/")
    menu = page.get_by_test_id("staff-menu").get_by_role("link")
    rows = menu.evaluate_all("links => links.map(link => [link.offsetLeft, link.clientHeight])")
    assert len({left for left, _ in rows}) == 1
    assert max(height for _, height in rows) < 48, "no title wraps"
