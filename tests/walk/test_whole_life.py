"""A tenant's whole life in a real browser: from signing up to the bill, against the whole product."""

from __future__ import annotations

import datetime as dt
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI
from playwright.sync_api import APIResponse, Browser, Locator, Page, expect

from contracts.adapters.reference import ADAPTER_FILES
from demo.credentials import OPERATOR
from demo.effects import ADAPTERS
from tests.waiting import eventually
from tests.walk.complaints import complaints_of
from tests.walk.product import Product, logged_in

pytestmark = [
    pytest.mark.slow,
    pytest.mark.walk,
    pytest.mark.browser,
    pytest.mark.model,
    pytest.mark.timeout(900),
]

WAIT_MS = 120_000
PASSWORD = "correct-horse-battery"


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A stranger's browser; an error in its console fails the test."""
    with browser.new_context() as context:
        context.set_default_timeout(WAIT_MS)
        page = context.new_page()
        complaints = complaints_of(page)
        yield page
    assert complaints == []


def test_from_signing_up_to_the_invoice(page: Page, product: Product) -> None:
    if product.mail is None or not product.operator_password:
        pytest.skip("needs the product's mail, and the operator's login")
    slug, name = f"life-{time.time_ns()}", "pirate-bot"
    _sign_up(page, product, product.mail, slug)
    home = f"{product.web}/t/{slug}/"
    secret = _key(page, home)
    for of in ("pirate", "strict-json"):
        _register(page, home, name, product.tenants[0].base_model, of)
    _alias(page, home, name)
    _play(page, home, name)
    _usage(page, home, name)
    _canary(page, home, name)
    with OpenAI(base_url=product.gateway, api_key=secret, max_retries=0) as client:
        answer = client.chat.completions.create(
            model=f"{name}@prod", messages=[{"role": "user", "content": "Ahoy"}], max_tokens=4
        )
    assert answer.usage is not None
    assert answer.usage.completion_tokens > 0
    _bill(page, home, product, slug)


def _sign_up(page: Page, product: Product, mail: Path, slug: str) -> None:
    email = f"{slug}@example.com"
    page.goto(product.web)
    page.get_by_test_id("sign-up").click()
    page.get_by_test_id("sign-up-email").fill(email)
    page.get_by_test_id("sign-up-submit").click()
    expect(page.get_by_role("heading", name="Check your e-mail")).to_be_visible()
    page.goto(_link(mail, email))
    page.get_by_label("Name", exact=True).fill("Whole Life & Co")
    page.get_by_test_id("sign-up-id").fill(slug)
    page.get_by_test_id("sign-up-password").fill(PASSWORD)
    page.get_by_test_id("sign-up-confirm").click()
    page.wait_for_url(f"**/t/{slug}/")
    expect(page.get_by_test_id("tenant-name").first).to_have_text("Whole Life & Co")


def _link(mail: Path, email: str) -> str:
    """The address in the e-mail to `email`, once it has been sent."""

    def sign_up_link() -> str:
        texts = [sent.read_text() for sent in mail.glob("*")] if mail.exists() else []
        links = [re.search(r"http\S+/sign-up/\S+", text) for text in texts if f"To: {email}" in text]
        return next((link[0] for link in links if link), "")

    return eventually(sign_up_link, message=f"an e-mail to {email} in {mail}")


def _key(page: Page, home: str) -> str:
    page.goto(f"{home}keys/")
    page.get_by_test_id("key-name").fill("backend")
    page.get_by_test_id("key-submit").click()
    return page.get_by_test_id("key-secret").inner_text().strip()


def _register(page: Page, home: str, name: str, base_model: str, of: str) -> None:
    page.goto(f"{home}adapters/new")
    page.get_by_test_id("register-name").fill(name)
    page.get_by_test_id("register-base").select_option(base_model)
    page.get_by_test_id("register-files").set_input_files([ADAPTERS / of / file for file in ADAPTER_FILES])
    page.get_by_test_id("register-submit").click()
    page.wait_for_url(f"**/adapters/{name}/")
    expect(page.get_by_test_id("status").first).to_have_text("ready", timeout=WAIT_MS)


def _alias(page: Page, home: str, name: str) -> None:
    page.goto(f"{home}adapters/{name}/")
    page.get_by_test_id("alias-name").fill("prod")
    page.get_by_test_id("alias-version").select_option("1")
    page.get_by_test_id("alias-submit").click()
    expect(page.get_by_test_id("alias-link-prod")).to_be_visible()


def _play(page: Page, home: str, name: str) -> None:
    page.goto(f"{home}playground/?model={name}")
    page.get_by_test_id("max-tokens").fill("8")
    page.get_by_test_id("prompt").fill("How do I bake bread?")
    page.get_by_test_id("send").click()
    metrics = page.get_by_test_id("metrics")
    expect(metrics.first).to_contain_text("out", timeout=WAIT_MS)
    expect(metrics.last).to_contain_text("out", timeout=WAIT_MS)


def _usage(page: Page, home: str, name: str) -> None:
    """The playground's tokens come to stand on the page of usage."""

    def rows_of_model() -> int:
        page.goto(f"{home}usage/")
        return page.locator("main table", has_text=name).count()

    eventually(rows_of_model, message="the usage appears")


def _canary(page: Page, home: str, name: str) -> None:
    page.goto(f"{home}adapters/{name}/aliases/prod/")
    page.get_by_test_id("canary-version").select_option("2")
    page.get_by_test_id("canary-start").click()
    expect(page.get_by_test_id("rollout")).to_be_visible()
    expect(_meaning(page)).to_contain_text("v2")
    page.get_by_test_id("rollout-abort").click()
    expect(_meaning(page)).to_have_text("Points to version 1.")
    page.get_by_test_id("rollback").click()
    expect(_meaning(page)).to_contain_text("v2")
    page.get_by_test_id("rollback").click()
    expect(_meaning(page)).to_have_text("Points to version 1.")


def _meaning(page: Page) -> Locator:
    return page.get_by_test_id("alias-meaning")


def _bill(page: Page, home: str, product: Product, slug: str) -> None:
    """Last month's invoice, which staff closes, as PDF; this month's draft has what was used."""
    this = dt.datetime.now(dt.UTC).date().replace(day=1)
    last = (this - dt.timedelta(days=1)).replace(day=1)
    with logged_in(product, OPERATOR, product.operator_password) as staff:
        drafts, due = {}, {}
        for month in (last, this):
            made = staff.post(f"/api/v1/tenants/{slug}/invoices", json={"month": f"{month}"})
            assert made.status_code == 201, made.text
            drafts[month], due[month] = made.json()["id"], made.json()["due_nano"]
        for path in ("seller", f"tenants/{slug}/billing-details"):
            stated = staff.post(f"/api/v1/{path}", json={"legal_name": "Walk Ltd", "address": "1 Main St"})
            assert stated.status_code == 201, stated.text
        closed = staff.post(f"/api/v1/fleet/invoices/{drafts[last]}/finalize", json={"due_nano": due[last]})
        assert closed.is_success, closed.text
    page.goto(f"{home}billing/invoices/{drafts[this]}/")
    expect(page.locator("main")).to_contain_text("pirate-bot")
    page.goto(f"{home}billing/")
    assert _pdf(page, f"{home}billing/invoices/{drafts[last]}/pdf").startswith(b"%PDF-")


def _pdf(page: Page, address: str) -> bytes:
    """The document; it is rendered by a task, and answered by 503 until then."""

    def rendered() -> APIResponse | None:
        answer = page.request.get(address)
        return None if answer.status == 503 else answer

    answer = eventually(rendered, message="the document is rendered")
    assert answer is not None
    assert answer.ok, answer.text()
    return answer.body()
