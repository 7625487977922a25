"""Every page in a real browser: accessible, within its width and weight, operable by the keyboard."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import pytest
from django.test import Client
from django.urls import NoReverseMatch, reverse
from playwright.sync_api import Browser, BrowserContext, Page

from controlplane.console.urls import tenant_urls
from controlplane.tenants.roles import Role
from tests.controlplane.open_pages import ANYONE, ONESELF
from tests.controlplane.staff_pages import STAFF_PAGES as STAFF_ADDRESSES
from tests.controlplane.world import OWN, World
from tests.ui import pages
from tests.ui.checks import DESK, STILL, accessible, dialogs, fits, operable, protected, weight
from tests.ui.conftest import WAIT_MS, log_in
from tests.ui.watch import Watch

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


@dataclass
class Visitor:
    """A person's browser, with one page that is led from address to address."""

    page: Page
    watch: Watch


@pytest.fixture(scope="module")
def visitors(browser: Browser, server: str) -> Iterator[dict[Client | None, Visitor]]:
    """Browsers by whose session they have; made as they are asked for."""
    made: dict[Client | None, Visitor] = {}
    yield made
    for visitor in made.values():
        visitor.page.context.close()


def visitor_of(
    client: Client | None, browser: Browser, server: str, made: dict[Client | None, Visitor]
) -> Visitor:
    if client not in made:
        context: BrowserContext = browser.new_context(
            base_url=server,
            viewport=DESK,  # type: ignore[arg-type]
            reduced_motion="reduce",
        )
        context.set_default_timeout(WAIT_MS)
        context.add_init_script(STILL)
        log_in(context, client, server)
        watch = Watch(server)
        page = watch.page(context)
        # Each page's weight is that of its first load.
        context.new_cdp_session(page).send("Network.setCacheDisabled", {"cacheDisabled": True})
        made[client] = Visitor(page, watch)
    return made[client]


@pytest.mark.parametrize("name", pages.PAGES)
def test_a_page(
    name: str, world: World, browser: Browser, server: str, visitors: dict[Client | None, Visitor]
) -> None:
    opening = pages.opening(world, name)
    visitor = visitor_of(opening.client, browser, server, visitors)
    visitor.watch.faults.clear()
    page = visitor.page
    complaints = protected(page.goto(opening.path), opening.status) + [
        complaint
        for check in (weight, accessible, fits, operable, dialogs)
        for complaint in check(page)
    ]  # fmt: skip
    assert complaints + visitor.watch.faults == []


def test_every_page_is_in_the_list(world: World) -> None:
    owner = world.people[OWN, Role.OWNER]
    missing = [
        name
        for name in (str(pattern.name) for pattern in tenant_urls)
        if name not in pages.TENANT_PAGES and is_page(owner, pages.tenant_path(world, name))
    ]
    missing += [
        name
        for name in STAFF_ADDRESSES
        if name not in pages.STAFF_PAGES and is_page(world.staff, pages.staff_path(world, name))
    ]
    missing += [name for name in ONESELF - set(pages.ACCOUNT_PAGES) if is_page(owner, reverse(name))]
    known = {path for name, path in open_addresses() if name in pages.OPEN_PAGES}  # login has two names
    missing += [
        name
        for name, path in open_addresses()
        if name not in pages.OPEN_PAGES and path not in known and is_page(world.nobody, path)
    ]
    assert missing == [], "add them to tests/ui/pages.py"


def is_page(client: Client, path: str) -> bool:
    """Whether it answers a GET with a whole page; fragments, files, actions and ways on are none."""
    response = client.get(path)
    return response.status_code == 200 and b"<html" in getattr(response, "content", b"")


def open_addresses() -> Iterator[tuple[str, str]]:
    """Name and path of every page that is for anyone, and names nothing."""
    for name in sorted(ANYONE):
        for space in ("", "console:"):
            with suppress(NoReverseMatch):
                yield f"{space}{name}", reverse(f"{space}{name}")
