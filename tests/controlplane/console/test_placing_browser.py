"""The operator's pages of adapters on copies and of consolidation in a real browser, by the keyboard."""

from __future__ import annotations

import uuid

import pytest
from django.utils import timezone
from playwright.sync_api import expect

from controlplane.adapters.services import adapter_publish
from controlplane.catalog.models import BaseModel
from controlplane.deployments.models import AdapterRule, Copy, Deployment
from controlplane.deployments.services import deployment_create
from controlplane.deployments.targets.services import target_create
from controlplane.metering.models import UsageEventRow
from controlplane.metering.partitions import partitions_ensure
from tests.controlplane.console.conftest import Team
from tests.controlplane.console.test_browser import Open, open_page

__all__ = ["open_page"]
pytestmark = [
    pytest.mark.browser,
    pytest.mark.costly("renders pages in Chromium"),
    pytest.mark.django_db(transaction=True),
]
PAGE = "/staff/deployments/tiny"


@pytest.fixture
def name(acme: Team, base: BaseModel) -> str:
    """An adapter in use on two of a deployment's three copies; the user is staff."""
    acme.user.is_staff = True
    acme.user.save()
    adapter = acme.tenant.adapters.get(name="support-bot")
    adapter_publish(adapter=adapter)
    name: str = adapter.versions.get(status="ready").engine_name
    deployment = deployment_create(
        name="tiny",
        target=target_create(name="here", kind="local"),
        base_model=base,
        min_copies=3,
        max_copies=4,
    )
    Deployment.objects.update(status="serving")
    at = timezone.now()
    partitions_ensure([at.date()])
    for number in range(3):
        Copy.objects.create(
            id=f"copy-{number}",
            url=f"http://127.0.0.1:{number + 1}",
            base_model=base,
            kind="worker",
            deployment=deployment,
        )
        UsageEventRow.objects.create(
            event_id=uuid.uuid4(),
            day=at.date(),
            hour=at.hour,
            tenant="acme",
            project="p",
            key_id="k",
            request_id=uuid.uuid4().hex,
            attempt=1,
            requested_model="m",
            alias="",
            arm="",
            adapter=name,
            base_model=base.name,
            backend="worker",
            endpoint=f"copy-{number % 2}",
            status="ok",
            error_code="",
            prompt_tokens=1200,
            cached_tokens=0,
            completion_tokens=34,
            estimated=False,
            duration_ms=60_000,
            ttft_ms=20 + number,
            started_at=int(at.timestamp() * 1000) - 60_000,
            gateway_id="g",
        )
    return name


def test_an_adapter_is_pinned_and_moved_by_the_keyboard(open_page: Open, name: str) -> None:
    page = open_page(f"{PAGE}/")
    page.get_by_test_id("deployment-adapters").focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/adapters")
    row = page.get_by_test_id("seen").locator("tbody tr").first
    expect(row).to_contain_text("2,468")
    row.get_by_role("link").focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/adapters?adapter=*")
    expect(page.get_by_test_id("place-adapter")).to_have_value(name)
    page.get_by_test_id("place-adapter").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    expect(page.get_by_label("copy-0", exact=False).first).to_be_checked()
    page.get_by_test_id("place-pin").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_test_id("rule-status")).to_have_text("Loading")
    page.goto(f"{PAGE}/adapters?adapter={name}")
    page.get_by_label("to", exact=True).select_option("copy-2")
    page.get_by_test_id("place-move").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_test_id("rule-status")).to_have_text("Moving")
    assert AdapterRule.objects.get().on == ["copy-2"]
    page.goto(f"{PAGE}/")
    expect(page.get_by_test_id("adapter-rules")).to_contain_text("copy-2")


def test_a_consolidation_is_looked_at_and_done(open_page: Open, name: str) -> None:
    page = open_page(f"{PAGE}/consolidation", viewport={"width": 375, "height": 800})
    expect(page.get_by_test_id("plan-saved")).to_have_text("2")
    wider = page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
    assert not wider, "nothing reaches beyond a telephone's edge"
    page.get_by_test_id("consolidate").focus()
    page.keyboard.press("Enter")
    page.get_by_test_id("consolidate-confirm").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_test_id("consolidation-copies")).to_contain_text("1 copies desired, 3 in the routes")
    expect(page.get_by_test_id("consolidations")).to_contain_text("3 -> 1")
    Copy.objects.exclude(pk="copy-0").delete()
    expect(page.get_by_test_id("consolidation-copies")).to_contain_text("1 in the routes", timeout=10_000)
