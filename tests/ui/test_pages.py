"""Every page in a real browser: accessible, within its width and weight, operable by the keyboard."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from django.test import Client
from playwright.sync_api import Browser, BrowserContext, Page

from tests.controlplane.world import World
from tests.ui import pages
from tests.ui.checks import DESK, STILL, accessible, dialogs, fits, operable, protected, weight
from tests.ui.conftest import WAIT_MS, log_in
from tests.ui.watch import Watch

pytestmark = [
    pytest.mark.browser,
    pytest.mark.costly("renders pages in Chromium"),
    pytest.mark.django_db(transaction=True),
]


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


@pytest.fixture(scope="module")
def measured() -> set[int]:
    """The texts whose contrast some page has shown; see `accessible`."""
    return set()


@pytest.mark.parametrize("name", pages.PAGES)
def test_a_page(
    name: str,
    world: World,
    browser: Browser,
    server: str,
    visitors: dict[Client | None, Visitor],
    measured: set[int],
) -> None:
    opening = pages.opening(world, name)
    visitor = visitor_of(opening.client, browser, server, visitors)
    visitor.watch.faults.clear()
    page = visitor.page
    complaints = protected(page.goto(opening.path), opening.status)
    complaints += weight(page) + accessible(page, measured) + fits(page) + operable(page) + dialogs(page)
    assert complaints + visitor.watch.faults == []
