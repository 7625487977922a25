"""The pages in a real browser: the whole way of a tenant, without a CSP violation or a script error."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, Route, expect
from pytest_django.live_server_helper import LiveServer

from controlplane.adapters.models import AdapterVersion
from controlplane.adapters.validation import version_validate
from controlplane.tenants.selectors import api_key_verify
from tests.controlplane.console.conftest import PASSWORD, Team, make_adapter_files

pytestmark = [
    pytest.mark.browser,
    pytest.mark.costly("renders pages in Chromium"),
    pytest.mark.django_db(transaction=True),
]
Open = Callable[..., Page]
COMPLETIONS = "**/v1/chat/completions"
PAGES = [
    "",
    "adapters/",
    "adapters/new",
    "source-credentials/",
    "adapters/support-bot/",
    "playground/",
    "keys/",
    "usage/",
    "hosting/",
    "billing/",
    "audit/",
    "webhooks/",
]


@pytest.fixture
def open_page(browser: Browser, live_server: LiveServer, acme: Team) -> Iterator[Open]:
    """Opens logged-in pages; at the end none may have met a script error or broken the policy."""
    contexts: list[BrowserContext] = []
    faults: list[str] = []

    def open_page(path: str = "/", *, login: bool = True, **options: object) -> Page:
        context = browser.new_context(base_url=live_server.url, **options)  # type: ignore[arg-type]
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: faults.append(f"{page.url}: {error}"))
        page.on("console", lambda message: faults.extend(fault(message)))
        page.on("request", lambda request: faults.extend(foreign(request, live_server.url)))
        if login:
            page.goto("/login")
            page.get_by_test_id("login-email").fill(acme.user.email)
            page.get_by_test_id("login-password").fill(PASSWORD)
            page.get_by_test_id("login-submit").click()
            page.wait_for_url(re.compile(r"/(t/acme|staff)/$"))  # staff land on their overview
        page.goto(path)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert faults == []


def fault(message: ConsoleMessage) -> list[str]:
    """Errors on the console, save the browser's own remark on each 4xx and 5xx answer."""
    is_fault = message.type == "error" and not message.text.startswith("Failed to load resource")
    return [message.text] if is_fault else []


def foreign(request: Request, own: str) -> list[str]:
    """The address of a request that goes neither to the console nor to the gateway."""
    return [] if request.url.startswith((own, "http://127.0.0.1:8001/v1/", "data:")) else [request.url]


@pytest.fixture
def validating(acme: Team) -> Iterator[threading.Event]:
    """Validates what is pending, as the Celery worker does, from when the event is set."""
    go, stop = threading.Event(), threading.Event()

    def work() -> None:
        try:
            while not stop.wait(0.1):
                if go.is_set():
                    for version in AdapterVersion.objects.filter(status="pending"):
                        version_validate(version_id=version.pk)
        finally:
            connection.close()

    thread = threading.Thread(target=work)
    thread.start()
    yield go
    stop.set()
    thread.join()


def upload(page: Page, name: str, files: list[Path]) -> None:
    page.get_by_test_id("register-name").fill(name)
    page.get_by_test_id("register-files").set_input_files(files)
    page.get_by_test_id("register-submit").click()


def test_register_then_watch_it_become_ready(
    open_page: Open, validating: threading.Event, tmp_path: Path
) -> None:
    page = open_page("/t/acme/adapters/")
    page.get_by_test_id("register-link").click()
    upload(page, "Not A Slug", make_adapter_files(tmp_path / "a"))
    expect(page.get_by_test_id("error-name")).to_contain_text("lower-case letters")
    # The files survive the refusal, and the name alone is mended.
    page.get_by_test_id("register-name").fill("fresh")
    page.get_by_test_id("register-submit").click()
    page.wait_for_url("**/adapters/fresh/")
    expect(page.get_by_test_id("status").first).to_have_attribute("data-status", "pending")
    validating.set()
    expect(page.get_by_test_id("snippet-curl")).to_contain_text('"model": "fresh"', timeout=15_000)
    expect(page.get_by_test_id("status").first).to_have_attribute("data-status", "ready")


def test_a_refused_adapter_names_the_tensor(
    open_page: Open, validating: threading.Event, tmp_path: Path
) -> None:
    validating.set()
    page = open_page("/t/acme/adapters/new")
    upload(page, "misfit", make_adapter_files(tmp_path / "a", fits=False))
    failed = page.get_by_test_id("step-tensors")
    expect(failed).to_have_attribute("data-status", "failed", timeout=15_000)
    expect(page.get_by_role("alert")).to_contain_text("q_proj.lora_B")


def test_polling_rests_while_the_page_is_hidden(open_page: Open, tmp_path: Path) -> None:
    page = open_page("/t/acme/adapters/new")
    page.clock.install()
    upload(page, "slow", make_adapter_files(tmp_path / "a"))
    page.wait_for_url("**/adapters/slow/")
    polls: list[str] = []
    page.on("request", lambda request: polls.append(request.url) if "/status" in request.url else None)
    hide = "(hidden) => Object.defineProperty(document, 'hidden', {value: hidden, configurable: true})"
    for hidden in (False, True, False):
        page.evaluate(hide, hidden)
        polls.clear()
        if hidden:
            page.clock.run_for(60_000)
        else:
            with page.expect_response("**/status"):
                page.clock.run_for(5_000)
        assert bool(polls) == (not hidden)


def test_make_and_revoke_a_key(open_page: Open) -> None:
    page = open_page("/t/acme/keys/")
    page.get_by_test_id("key-name").fill("browser")
    page.get_by_test_id("key-submit").dblclick()
    secret = page.get_by_test_id("key-secret").text_content()
    api_key = api_key_verify(text=secret or "")
    assert api_key is not None
    expect(page.get_by_test_id(f"key-{api_key.pk}")).to_contain_text("active")
    assert page.locator("tbody :text-is('browser')").count() == 1
    page.get_by_test_id(f"revoke-{api_key.pk}-open").click()
    page.get_by_test_id("revoke-confirm").click()
    expect(page.get_by_test_id("toasts")).to_contain_text("revoked")
    expect(page.get_by_test_id(f"key-{api_key.pk}")).to_contain_text("revoked")


@pytest.mark.usefixtures("priced")
def test_the_chart_is_drawn_and_switches(open_page: Open) -> None:
    page = open_page("/t/acme/usage/")
    expect(page.locator("[data-testid=usage-chart] canvas")).to_be_visible()
    colours = """() => {
        const canvas = document.querySelector('[data-testid=usage-chart] canvas');
        const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
        const seen = new Set();
        for (let i = 0; i < pixels.length; i += 4) {
            if (pixels[i + 3] > 250) seen.add(pixels[i] << 16 | pixels[i + 1] << 8 | pixels[i + 2]);
        }
        return seen.size;
    }"""
    assert page.evaluate(colours) >= 3
    page.get_by_test_id("measure-price").click()
    expect(page.get_by_test_id("usage-chart")).to_have_attribute("data-drawn", "price")


def test_theme_is_kept_and_menus_answer_to_the_keyboard(open_page: Open) -> None:
    page = open_page("/t/acme/")
    page.get_by_role("button", name="Dark").click()
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to content")).to_be_focused()
    page.get_by_test_id("tenant-menu").press("Enter")
    expect(page.get_by_test_id("tenant-acme")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_test_id("tenant-acme")).to_be_hidden()


@pytest.mark.parametrize("path", PAGES)
def test_a_page_fits_a_phone(path: str, open_page: Open) -> None:
    page = open_page(f"/t/acme/{path}", viewport={"width": 360, "height": 740})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_the_gateways_refusal_is_shown_in_its_own_words(open_page: Open) -> None:
    page = open_page("/t/acme/playground/")
    refusal = {"error": {"message": "no copy of tiny is up: retry in 5 s"}}
    page.route(COMPLETIONS, lambda route: route.fulfill(status=503, json=refusal))
    page.get_by_test_id("prompt").fill("hello")
    page.get_by_test_id("prompt").press("Enter")
    expect(page.get_by_test_id("answer-error")).to_have_count(2)
    expect(page.get_by_test_id("answer-error").first).to_contain_text("no copy of tiny is up")


def test_a_gateway_out_of_reach_is_named(open_page: Open) -> None:
    page = open_page("/t/acme/playground/")
    page.route(COMPLETIONS, lambda route: route.abort())
    page.get_by_test_id("prompt").fill("hello")
    page.get_by_test_id("send").click()
    expect(page.get_by_test_id("answer-error").first).to_contain_text("http://127.0.0.1:8001/v1")


def test_answers_stream_beside_each_other(open_page: Open) -> None:
    page = open_page("/t/acme/playground/?model=support-bot")
    events: list[dict[str, Any]] = [
        {"choices": [{"delta": {"content": text}, "finish_reason": None}]}
        for text in ("Ahoy", " <b>matey</b>")
    ]
    events += [{"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}]
    body = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
    asked: list[Any] = []

    def answer(route: Route) -> None:
        asked.append(route.request.post_data_json)
        route.fulfill(status=200, content_type="text/event-stream", body=body)

    page.route(COMPLETIONS, answer)
    posted: list[str] = []
    page.on("request", lambda sent: posted.append(sent.url) if sent.method == "POST" else None)
    page.get_by_test_id("prompt").fill("hello")
    page.get_by_test_id("prompt").press("Enter")
    for log in page.get_by_test_id("answer-log").all():
        expect(log).to_contain_text("Ahoy <b>matey</b>")
    expect(page.get_by_test_id("metrics").first).to_contain_text("7 in · 2 out")
    assert sorted(str(body["model"]) for body in asked) == ["support-bot", "tiny"]
    issued = [url for url in posted if not url.endswith("/v1/chat/completions")]
    assert len(issued) == 1, "one key for all columns"
