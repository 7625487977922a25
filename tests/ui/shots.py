"""`make screenshots`: pages as pictures, light, dark and on a phone, into docs/screenshots. Not a test."""

from __future__ import annotations

import io

import pytest
from django.test import Client
from PIL import Image
from playwright.sync_api import Browser, Page, expect

from tests.conftest import ROOT
from tests.controlplane.world import World
from tests.ui import pages
from tests.ui.checks import DESK, PHONE, STILL
from tests.ui.conftest import WAIT_MS, log_in

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
FOLDER = ROOT / "docs" / "screenshots"
SHOWN = (
    "home", "adapters", "adapter-register", "adapter", "alias", "playground", "keys", "usage", "billing",
    "members", "webhooks", "audit", "requests", "savings", "staff-fleet", "staff-health", "staff-queues",
    "staff-tenants", "staff-tenant", "staff-base-model",
    "staff-deployments", "staff-deployment", "staff-deployment-adapters", "staff-optimizations",
    "staff-optimization", "staff-comparison", "staff-price-book", "staff-invoices", "staff-savings",
    "console:login", "console:sign-up", "console:sign-up-confirm",
)  # fmt: skip
QUALITY = 82
LOOKS = {"light": (DESK, "light"), "dark": (DESK, "dark"), "phone": (PHONE, "light")}
TALLEST = 2400
"""Pixels of a picture's height at most: a long list shows its beginning."""


@pytest.mark.parametrize("look", LOOKS)
def test_pictures(look: str, world: World, browser: Browser, server: str) -> None:
    size, scheme = LOOKS[look]
    FOLDER.mkdir(exist_ok=True)
    made: dict[Client | None, Page] = {}
    for name in SHOWN:
        opening = pages.opening(world, name)
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
        page.goto(opening.path)
        for part in page.locator("[hx-trigger='revealed']").all():
            part.scroll_into_view_if_needed()
        # What a page asks for once it is there.
        expect(page.locator("[hx-trigger='load'], [hx-trigger='revealed']")).to_have_count(0)
        page.evaluate("scrollTo(0, 0)")
        whole = Image.open(io.BytesIO(page.screenshot(full_page=True)))
        picture = whole.crop((0, 0, whole.width, min(whole.height, TALLEST)))
        picture.save(FOLDER / f"{name.replace('console:', '')}-{look}.webp", quality=QUALITY)
    for page in made.values():
        page.context.close()
