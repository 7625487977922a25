"""The canary's slider and the first page's live parts in Chromium: by keys, without scripts, hidden."""

from __future__ import annotations

import pytest
from django.utils import timezone
from playwright.sync_api import Page, expect

from controlplane.adapters.aliases import alias_move
from controlplane.adapters.models import Adapter, AdapterVersion
from controlplane.catalog.models import BaseModel
from controlplane.metering.models import UsageRollup
from tests.controlplane.console.conftest import Team
from tests.controlplane.console.test_browser import Open, open_page
from tests.controlplane.console.test_live_pages_browser import COUNT, HIDE, WAIT
from tests.controlplane.metering.event_log import logged

__all__ = ["open_page"]
pytestmark = [
    pytest.mark.browser,
    pytest.mark.costly("renders pages in Chromium"),
    pytest.mark.django_db(transaction=True),
]
URL = "/t/acme/adapters/support-bot/"


@pytest.fixture
def adapter(acme: Team) -> Adapter:
    """With a second version, and the alias prod on the first."""
    adapter = Adapter.objects.get(tenant=acme.tenant, name="support-bot")
    AdapterVersion.objects.create(
        adapter=adapter, number=2, status="ready", sha256="cd" * 32, uri="file:///nowhere/", rank=16
    )
    alias_move(adapter=adapter, name="prod", number=1)
    return adapter


def collect_requests(page: Page, part: str) -> list[str]:
    """Return a list that collects the URLs with `part` that the page requests from now on."""
    found: list[str] = []
    page.on("request", lambda request: found.append(request.url) if part in request.url else None)
    return found


def test_the_keyboard_slides_applies_and_goes_back(open_page: Open, adapter: Adapter) -> None:
    page = open_page(URL)
    slider, number = page.get_by_test_id("canary-slider-prod"), page.get_by_test_id("canary-percent-prod")
    told = page.get_by_test_id("canary-told-prod")
    expect(slider).to_be_visible()
    slider.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    expect(number).to_have_value("3")
    expect(told).to_have_text("v1: 97 % · v2: 3 %")
    number.fill("12")
    expect(slider).to_have_value("12")
    expect(told).to_have_text("v1: 88 % · v2: 12 %")
    page.keyboard.press("Enter")
    expect(page.get_by_test_id("toasts")).to_contain_text("within a second")
    expect(page.get_by_test_id("canary-told-prod")).to_have_text("v1: 88 % · v2: 12 %")
    versions = AdapterVersion.objects.select_related("adapter").filter(adapter=adapter, number=2)
    logged("acme", timezone.now(), adapter=versions.get().engine_name, alias="prod", arm="v2")
    page.get_by_test_id("rollback-prod").scroll_into_view_if_needed()
    arm = page.get_by_test_id("arm-prod-v2")
    expect(arm).to_contain_text("1 request, 0 failed", timeout=WAIT)
    page.get_by_test_id("rollback-prod").click()
    expect(page.get_by_test_id("canary-told-prod")).to_have_text("v1: 100 % · v2: 0 %")
    expect(arm).to_have_count(0)


def test_without_scripts_the_number_does_the_same(open_page: Open, adapter: Adapter) -> None:
    page = open_page(URL, java_script_enabled=False)
    expect(page.get_by_test_id("canary-slider-prod")).to_be_hidden()
    page.get_by_test_id("canary-percent-prod").fill("25")
    page.get_by_test_id("canary-apply-prod").click()
    expect(page.get_by_test_id("canary-told-prod")).to_have_text("v1: 75 % · v2: 25 %")


def test_the_first_page_goes_on_rests_while_hidden_and_comes_back(open_page: Open, base: BaseModel) -> None:
    page = open_page("/t/acme/")
    errors = page.get_by_test_id("home-errors")
    expect(errors).to_contain_text("0.00 %")
    UsageRollup.objects.filter(tenant="acme", adapter="").update(status="error")
    expect(errors).not_to_contain_text("0.00 %", timeout=WAIT)
    page.evaluate(COUNT)
    page.evaluate(HIDE, True)
    figures = collect_requests(page, "/figures")
    expect(page.locator("body")).to_have_attribute("data-rested", "yes", timeout=WAIT)
    assert figures == [], "nobody looks: nothing is asked for"
    UsageRollup.objects.filter(tenant="acme").update(status="ok")
    page.evaluate(HIDE, False)
    expect(errors).to_contain_text("0.00 %", timeout=WAIT)
    assert figures


def test_the_checklist_follows_and_rests_while_hidden(open_page: Open, acme: Team, base: BaseModel) -> None:
    UsageRollup.objects.filter(tenant="acme").delete()
    page = open_page("/t/acme/")
    request = page.get_by_test_id("step-request")
    expect(request).not_to_have_class("step step-done")
    page.evaluate(HIDE, True)
    steps = collect_requests(page, "/first-steps")
    page.evaluate(COUNT)
    expect(page.locator("body")).to_have_attribute("data-rested", "yes", timeout=WAIT)
    assert steps == []
    UsageRollup.objects.create(
        day=timezone.now().date(),
        tenant="acme",
        project="default",
        key_id="k",
        adapter="",
        alias="",
        base_model="tiny",
        backend="worker",
        status="ok",
        requests=1,
        prompt_tokens=1,
        cached_tokens=0,
        completion_tokens=1,
    )
    page.evaluate(HIDE, False)
    expect(page.get_by_test_id("checklist")).to_contain_text("You are ready", timeout=WAIT)
