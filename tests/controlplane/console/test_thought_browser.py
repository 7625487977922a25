"""The playground's folded thought in Chromium, while an answer streams and when it has ended."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest
from playwright.sync_api import Page, expect

from tests.controlplane.console.test_browser import Open, open_page

__all__ = ["open_page"]
pytestmark = [
    pytest.mark.browser,
    pytest.mark.costly("renders pages in Chromium"),
    pytest.mark.django_db(transaction=True),
]
HOLD_STREAM: Final = """() => {
  window.asked = [];
  const begun = new Promise((resolve) => { window.begin = resolve; });
  window.begun = () => begun;
  const real = window.fetch;
  window.fetch = (url, options) => {
    if (!String(url).endsWith("/chat/completions")) return real(url, options);
    window.asked.push(JSON.parse(options.body));
    const body = new ReadableStream({ start: (controller) => { window.held = controller; window.begin(); } });
    return Promise.resolve(new Response(body, { status: 200 }));
  };
  window.push = (text) => window.held.enqueue(new TextEncoder().encode(text));
}"""
"""Makes the gateway's answer a stream that `push` continues."""


def push(page: Page, delta: dict[str, Any], tokens: int, reasoning: int) -> None:
    details = {"completion_tokens_details": {"reasoning_tokens": reasoning}}
    usage = {"prompt_tokens": 7, "completion_tokens": tokens, **details}
    event = {"choices": [{"delta": delta, "finish_reason": None}], "usage": usage}
    page.evaluate("text => window.push(text)", f"data: {json.dumps(event)}\n\n")


def ask(open_page: Open, text: str = "hello") -> Page:
    page = open_page("/t/acme/playground/?model=tiny")
    page.evaluate(HOLD_STREAM)
    page.get_by_test_id("prompt").fill(text)
    page.get_by_test_id("prompt").press("Enter")
    page.evaluate("() => window.begun()")
    return page


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_a_thought_is_folded_while_it_streams_and_afterwards(open_page: Open, name: str) -> None:
    page = ask(open_page)
    thought, text = page.get_by_test_id("thought"), page.get_by_test_id("thought-text")
    expect(thought).to_be_hidden()
    push(page, {name: "So <b>hm</b>"}, 3, 3)
    expect(thought.locator("summary")).to_have_text("Reasoning · 3 tokens")
    expect(text).to_be_hidden()
    thought.locator("summary").click()
    expect(text).to_have_text("So <b>hm</b>")
    push(page, {name: ", yes"}, 5, 5)
    expect(thought.locator("summary")).to_have_text("Reasoning · 5 tokens")
    expect(text).to_have_text("So <b>hm</b>, yes")
    expect(text).to_be_visible()
    push(page, {"content": "Ahoy"}, 7, 6)
    page.evaluate("window.push('data: [DONE]\\n\\n')")
    expect(page.get_by_test_id("playground")).to_have_attribute("data-state", "idle")
    expect(page.locator("[data-role=assistant]")).to_contain_text("Ahoy")
    expect(thought.locator("summary")).to_have_text("Reasoning · 6 tokens")
    expect(page.get_by_test_id("metrics")).to_contain_text("7 in · 7 out")


def test_a_thought_that_was_cut_stays_and_is_no_answer(open_page: Open) -> None:
    page = ask(open_page)
    push(page, {"reasoning_content": "So"}, 2, 2)
    page.evaluate("window.push('data: [DONE]\\n\\n')")
    expect(page.get_by_test_id("thought").locator("summary")).to_have_text("Reasoning · 2 tokens")


def test_an_answer_without_a_thought_has_none(open_page: Open) -> None:
    page = ask(open_page)
    push(page, {"content": "Ahoy"}, 1, 0)
    page.evaluate("window.push('data: [DONE]\\n\\n')")
    expect(page.locator("[data-role=assistant]")).to_contain_text("Ahoy")
    expect(page.get_by_test_id("thought")).to_be_hidden()


def test_effort_and_budget_are_sent(open_page: Open) -> None:
    page = open_page("/t/acme/playground/?model=tiny")
    page.evaluate(HOLD_STREAM)
    page.get_by_test_id("effort").select_option("low")
    page.get_by_test_id("thinking-budget").fill("64")
    page.get_by_test_id("prompt").fill("hello")
    page.get_by_test_id("prompt").press("Enter")
    page.evaluate("() => window.begun()")
    (body,) = page.evaluate("window.asked")
    assert (body["reasoning_effort"], body["thinking_token_budget"]) == ("low", 64)
