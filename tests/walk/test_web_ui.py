"""The web UI in a real browser against the whole product: register, validate, play, see the usage."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from contracts.adapters.reference import ADAPTER_FILES
from demo.effects import ADAPTERS
from tests.waiting import eventually
from tests.walk.complaints import complaints_of
from tests.walk.product import Product, TenantAccess

pytestmark = [
    pytest.mark.slow,
    pytest.mark.walk,
    pytest.mark.browser,
    pytest.mark.model,
    pytest.mark.timeout(600),
]

ANSWER_MS = 60_000


@pytest.fixture
def page(browser: Browser, product: Product) -> Iterator[Page]:
    """The second tenant's home page; an error in the browser's console fails the test."""
    with browser.new_context() as context:
        page = context.new_page()
        complaints = complaints_of(page)
        _log_in(page, product, product.tenants[1])
        yield page
    assert complaints == []


def _log_in(page: Page, product: Product, tenant: TenantAccess) -> None:
    page.goto(product.web)
    page.get_by_test_id("login-email").fill(tenant.login)
    page.get_by_test_id("login-password").fill(tenant.password)
    page.get_by_test_id("login-submit").click()
    expect(page.get_by_test_id("tenant-name").first).to_be_visible()


def test_from_upload_to_a_streamed_answer_to_the_bill(page: Page, product: Product) -> None:
    tenant, name = product.tenants[1], f"ui-{time.time_ns()}"
    before = product.tokens(tenant)
    page.get_by_role("link", name="Register adapter").first.click()
    page.get_by_test_id("register-name").fill(name)
    page.get_by_test_id("register-base").select_option(tenant.base_model)
    page.get_by_test_id("register-files").set_input_files(
        [ADAPTERS / "pirate" / file for file in ADAPTER_FILES]
    )
    page.get_by_test_id("register-submit").click()
    expect(page.get_by_test_id("status").first).to_have_text("ready", timeout=ANSWER_MS)

    page.goto(page.url.partition("/adapters/")[0] + f"/playground/?model={name}")
    page.get_by_test_id("max-tokens").fill("24")
    page.get_by_test_id("prompt").fill("How do I bake bread?")
    page.get_by_test_id("send").click()
    metrics = page.get_by_test_id("metrics")
    for column in (0, 1):
        expect(metrics.nth(column)).to_contain_text("out", timeout=ANSWER_MS)
    expect(page.get_by_test_id("send")).to_be_visible(timeout=ANSWER_MS)
    logs = page.get_by_test_id("answer-log")
    assert logs.nth(0).inner_text() != logs.nth(1).inner_text(), "the adapter answers unlike its base"
    gained = product.tokens_after(tenant, before, 2)
    assert gained.requests == 2
    assert 0 < gained.completion <= 48
    with product.rest_client(tenant) as rest:
        rest.delete(f"/adapters/{name}").raise_for_status()


def test_stop_ends_the_generation(page: Page, product: Product) -> None:
    tenant = product.tenants[1]
    before = product.tokens(tenant)
    page.goto(page.url.rstrip("/") + f"/playground/?model={tenant.base_model}")
    page.get_by_test_id("max-tokens").fill("1500")
    page.get_by_test_id("prompt").fill("Write a very long story about a lighthouse, in twenty chapters.")
    page.get_by_test_id("send").click()
    answer = page.get_by_test_id("answer-log").locator("[data-role=assistant]")
    expect(answer).to_contain_text(re.compile(r"\w+ \w+ \w+"), timeout=ANSWER_MS)
    page.get_by_test_id("stop").click()
    expect(page.get_by_test_id("metrics").first).to_contain_text("stopped")
    gained = product.tokens_after(tenant, before, 1)
    assert gained.requests == 1
    assert 0 < gained.completion < 1500


def test_prompts_are_kept_from_opting_in_until_opting_out(page: Page, product: Product) -> None:
    tenant, web = product.tenants[1], page.url.rstrip("/")
    page.goto(web + "/prompt-log/")
    expect(page.get_by_test_id("prompt-log-state")).to_have_text("off")
    page.get_by_test_id("prompt-log-days").select_option("1")
    page.get_by_test_id("prompt-log-save").click()
    expect(page.get_by_test_id("prompt-log-state")).to_have_text("on")
    question = "Who keeps the <lighthouse>?"
    answers: dict[str, str] = {}

    def logged() -> str | None:
        """The first request that the log has: gateways follow the change in a moment."""
        with product.openai(tenant) as api:
            answer = api.chat.completions.with_raw_response.create(
                model=tenant.base_model, max_tokens=8, messages=[{"role": "user", "content": question}]
            )
        answers[answer.headers["x-request-id"]] = answer.parse().choices[0].message.content or ""
        with product.rest_client(tenant) as rest:
            for request_id in answers:
                found = rest.get(f"/requests/{request_id}/prompt")
                if found.is_success:
                    assert question in found.json()["request"]
                    return request_id
        return None

    request_id = eventually(logged, message="a prompt is in the log")
    assert request_id is not None
    said = answers[request_id]
    page.goto(f"{web}/requests/{request_id}/")
    page.get_by_test_id("prompt-show").click()
    expect(page.get_by_test_id("prompt")).to_contain_text(question)
    expect(page.get_by_test_id("prompt-answer")).to_contain_text(said.strip())
    page.goto(web + "/audit/?action=prompt.read")
    expect(page.get_by_role("row").filter(has_text="prompt.read")).to_have_count(2)
    page.goto(web + "/prompt-log/")
    page.get_by_test_id("prompt-log-end-open").click()
    page.get_by_role("dialog").get_by_role("button", name="Turn off and delete").click()
    expect(page.get_by_test_id("prompt-log-state")).to_have_text("off")
    with product.rest_client(tenant) as rest:
        assert rest.get(f"/requests/{request_id}/prompt").status_code == 404
        assert rest.get("/prompt-log").status_code == 404
