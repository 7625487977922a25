"""The playground in a real browser, through the real gateway and worker."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.walk.conftest import TARGET
from tests.walk.product import Product, TenantAccess

pytestmark = [
    pytest.mark.slow,
    pytest.mark.walk,
    pytest.mark.browser,
    pytest.mark.model,
    pytest.mark.timeout(900),
]

ANSWER_MS = 180_000
UNKNOWN = "no-such-adapter"


@pytest.fixture
def page(browser: Browser, product: Product) -> Iterator[Page]:
    """The first tenant's playground; a script's error, or a broken policy, fails the test."""
    faults: list[str] = []
    with browser.new_context() as context:
        page = context.new_page()
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda line: faults.append(line.text) if "Content Security" in line.text else None)
        tenant = _tenant(product)
        page.goto(product.web)
        page.get_by_test_id("login-email").fill(tenant.login)
        page.get_by_test_id("login-password").fill(tenant.password)
        page.get_by_test_id("login-submit").click()
        expect(page.get_by_test_id("tenant-name").first).to_be_visible()
        models = (tenant.base_model, tenant.adapters[0])
        page.goto(f"{page.url.rstrip('/')}/playground/?" + "&".join(f"model={name}" for name in models))
        page.get_by_test_id("max-tokens").fill("24")
        yield page
    assert faults == []


def _tenant(product: Product) -> TenantAccess:
    return product.tenants[0]


def _column(page: Page, model: str) -> Locator:
    return page.locator(f"[data-testid=answer][data-model='{model}']")


def _send(page: Page, text: str) -> None:
    page.get_by_test_id("prompt").fill(text)
    page.get_by_test_id("prompt").press("Control+Enter")


def _idle(page: Page) -> None:
    expect(page.get_by_test_id("playground")).to_have_attribute("data-state", "idle", timeout=ANSWER_MS)


def test_models_answer_side_by_side_and_one_failure_leaves_the_others_going(
    page: Page, product: Product
) -> None:
    tenant = _tenant(product)
    pinned = f"{tenant.adapters[0]}@v1"
    for name in (pinned, UNKNOWN):
        page.get_by_test_id("model").fill(name)
        page.get_by_test_id("add-model").click()
    page.get_by_test_id("model").fill(tenant.adapters[1])
    page.get_by_test_id("add-model").click()
    expect(page.get_by_test_id("model-error")).to_contain_text("At most four models")
    before = product.tokens(tenant)
    _send(page, "How do I bake bread?")
    _idle(page)
    answered = (tenant.base_model, tenant.adapters[0], pinned)
    for model in answered:
        metrics = _column(page, model).get_by_test_id("metrics")
        expect(metrics).to_contain_text(re.compile(r"TTFT \d+ ms"))
        expect(metrics).to_contain_text(re.compile(r"\d+ in.* · \d+ out"))
        expect(metrics).to_contain_text("$0.00", timeout=ANSWER_MS)
    refused = _column(page, UNKNOWN).get_by_test_id("answer-error")
    expect(refused).to_contain_text("does not exist")
    expect(refused.get_by_role("link", name="your adapters")).to_be_visible()
    # The next turn carries the conversation: the prompt is longer by the first answer.
    _column(page, UNKNOWN).get_by_test_id("remove-model").click()
    _send(page, "And without yeast?")
    _idle(page)
    for model in answered:
        expect(_column(page, model).locator("[data-role=assistant]")).to_have_count(2)
    gained = product.tokens_after(tenant, before, 6)
    assert gained.requests == 6, "the unknown model is billed to nobody"


def test_an_answer_held_to_a_schema_is_json(page: Page) -> None:
    page.get_by_test_id("format-open").click()
    page.get_by_test_id("format").select_option("json_schema")
    page.get_by_test_id("schema").fill('{"type": "objekt"}')
    _send(page, "Invent a person.")
    expect(page.get_by_test_id("schema-error")).to_contain_text("$: type must be one of object")
    expect(page.locator("[data-role=user]")).to_have_count(0)
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    page.get_by_test_id("schema").fill(json.dumps(schema | {"additionalProperties": False}))
    page.get_by_test_id("max-tokens").fill("200")
    page.get_by_test_id("send").click()
    _idle(page)
    for column in page.get_by_test_id("answer").all():
        expect(column.get_by_test_id("metrics")).to_contain_text("valid JSON")
        answer = json.loads(column.locator("[data-role=assistant]").inner_text())
        assert isinstance(answer["ok"], bool)


@pytest.mark.skipif(bool(TARGET), reason="the running product's model has a template without tools")
def test_a_tool_is_called_and_its_result_goes_on(page: Page, product: Product) -> None:
    base = _tenant(product).base_model
    _column(page, _tenant(product).adapters[0]).get_by_test_id("remove-model").click()
    page.get_by_test_id("tools-open").click()
    parameters = {"type": "object", "properties": {"city": {"enum": ["Oslo"]}}, "required": ["city"]}
    tool = {"name": "get_weather", "parameters": parameters | {"additionalProperties": False}, "strict": True}
    page.get_by_test_id("tools").fill(json.dumps([{"type": "function", "function": tool}]))
    page.get_by_test_id("tool-choice").select_option("required")
    page.get_by_test_id("parallel").uncheck()
    page.get_by_test_id("max-tokens").fill("128")
    _send(page, "How is the weather in Oslo?")
    _idle(page)
    call = _column(page, base).get_by_test_id("call").first
    expect(call).to_contain_text("get_weather")
    assert json.loads(call.get_by_test_id("call-arguments").inner_text()) == {"city": "Oslo"}
    _send(page, "Well?")
    expect(page.get_by_test_id("prompt-error")).to_contain_text("Enter the results")
    page.get_by_test_id("tool-choice").select_option("none")
    for result in page.get_by_test_id("call-result").all():
        result.fill('{"celsius": -4}')
    page.get_by_test_id("send-results").click()
    expect(_column(page, base).locator("[data-role=assistant]")).to_have_count(2)
    _idle(page)
    expect(page.get_by_test_id("answer-error")).to_have_count(0)
    page.get_by_test_id("view-code").click()
    page.get_by_test_id("tab-langchain").click()
    shown = page.locator("#code-langchain").inner_text()
    assert f'base_url="{product.gateway}"' in shown
    assert "GRAFTWORK_API_KEY" in shown
    assert '"tool_call_id"' in shown


def test_stop_ends_every_columns_generation(page: Page, product: Product) -> None:
    tenant = _tenant(product)
    before = product.tokens(tenant)
    page.get_by_test_id("max-tokens").fill("1500")
    _send(page, "Write a very long story about a lighthouse, in twenty chapters.")
    for log in page.get_by_test_id("answer-log").all():
        words = re.compile(r"\w+ \w+ \w+")
        expect(log.locator("[data-role=assistant]")).to_contain_text(words, timeout=ANSWER_MS)
    page.get_by_test_id("stop").click()
    for metrics in page.get_by_test_id("metrics").all():
        expect(metrics).to_contain_text("stopped")
    gained = product.tokens_after(tenant, before, 2)
    assert gained.requests == 2
    assert 0 < gained.completion < 3000, "the worker went on after the browser had gone"
