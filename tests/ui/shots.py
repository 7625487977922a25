"""`make screenshots`: pages as pictures, light, dark and on a phone, into docs/screenshots. Not a test."""

from __future__ import annotations

import datetime as dt
import io
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from django.test import Client
from django.utils import timezone
from PIL import Image
from playwright.sync_api import Browser, Page, expect
from pytest_django.plugin import DjangoDbBlocker

from tests.conftest import ROOT
from tests.controlplane.world import World
from tests.ui import pages
from tests.ui.alive import fleet_alive, signs_give, traffic_add
from tests.ui.checks import DESK, PHONE, STILL
from tests.ui.conftest import WAIT_MS, log_in

pytestmark = [
    pytest.mark.browser,
    pytest.mark.costly("renders pages in Chromium"),
    pytest.mark.django_db(transaction=True),
]
FOLDER = ROOT / "docs" / "screenshots"
SHOWN = (
    "home",
    "adapters",
    "adapter-register",
    "adapter",
    "alias",
    "playground",
    "keys",
    "usage",
    "billing",
    "members",
    "webhooks",
    "audit",
    "requests",
    "prompt-log",
    "savings",
    "staff-home",
    "staff-fleet",
    "staff-health",
    "staff-queues",
    "staff-tenants",
    "staff-tenant",
    "staff-base-model",
    "staff-deployments",
    "staff-deployment",
    "staff-deployment-adapters",
    "staff-optimizations",
    "staff-optimization",
    "staff-comparison",
    "staff-price-books",
    "staff-price-book",
    "staff-invoices",
    "staff-savings",
    "console:login",
    "console:sign-up",
    "console:sign-up-confirm",
)
QUERIES = {
    "staff-savings": "?form=measured&dedicated_type=ml.g6.2xlarge&region=eu-central-1&tier=stored"
    "&start={start}&end={end}"
}
"""Pages that say something only when they are asked: what they are asked here."""
QUALITY = 82
LOOKS = {"light": (DESK, "light"), "dark": (DESK, "dark"), "phone": (PHONE, "light")}
TALLEST = 2400
"""Pixels of a picture's height at most: a long list shows its beginning."""


@pytest.fixture(scope="module")
def living(world: World, django_db_blocker: DjangoDbBlocker) -> Iterator[World]:
    """The world with workers that run, and a rollout and a growth under way."""
    with ExitStack() as stack:
        with django_db_blocker.unblock():
            found = fleet_alive(world, stack)
        yield found


@pytest.mark.parametrize("look", LOOKS)
def test_pictures(look: str, living: World, browser: Browser, server: str) -> None:
    size, scheme = LOOKS[look]
    FOLDER.mkdir(exist_ok=True)
    made: dict[Client | None, Page] = {}
    traffic_add(living)
    for name in SHOWN:
        opening = pages.opening(living, name)
        signs_give()
        if opening.client not in made:
            context = browser.new_context(
                base_url=server,
                viewport=size,  # type: ignore[arg-type]
                color_scheme=scheme,  # type: ignore[arg-type]
                reduced_motion="reduce",
            )
            context.set_default_timeout(WAIT_MS)
            context.add_init_script(STILL)
            log_in(context, opening.client, server)
            made[opening.client] = context.new_page()
        page = made[opening.client]
        page.goto(opening.path + _query(name))
        for part in page.locator("[hx-trigger='revealed']").all():
            part.scroll_into_view_if_needed()
        # Wait for the parts that the page loads itself.
        expect(page.locator("[hx-trigger='load'], [hx-trigger='revealed']")).to_have_count(0)
        page.evaluate("scrollTo(0, 0)")
        whole = Image.open(io.BytesIO(page.screenshot(full_page=True)))
        picture = whole.crop((0, 0, whole.width, min(whole.height, TALLEST)))
        picture.save(FOLDER / f"{name.replace('console:', '')}-{look}.webp", quality=QUALITY)
    for page in made.values():
        page.context.close()


def _query(name: str) -> str:
    today = timezone.now().date()
    return QUERIES.get(name, "").format(start=today - dt.timedelta(days=29), end=today)
