"""The checks themselves: each complains about a page that has its fault, else it would pass everything."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page

from tests.ui.checks import DESK, accessible, dialogs, fits, operable, weight
from tests.ui.watch import Watch

pytestmark = [
    pytest.mark.browser,
    pytest.mark.costly("renders pages in Chromium"),
    pytest.mark.django_db(transaction=True),
]

FAULTY = """<!doctype html><html lang="en"><head><title>Faulty</title></head><body><main><h1>Faulty</h1>
<p style="color: #aaa; background: #fff">Pale</p><input type="text"><a href="#" tabindex="-1">Away</a>
<div style="width: 2000px">Wide</div>
<div class="table-wrap" style="width: 100px; overflow: auto"><table style="width: 300px"><tr><td>Cut
</td></tr></table></div>
<aside style="width: 90px; overflow-y: auto"><div style="width: 300px"><button style="margin-left: 200px">Out
</button></div></aside>
<button data-dialog-open="d" onclick="document.getElementById('d').show(); this.blur()">Open</button>
<dialog id="d" aria-label="Trap"><button>In</button></dialog></main></body></html>"""


@pytest.fixture
def faulty(browser: Browser) -> Iterator[Page]:
    with browser.new_context(viewport=DESK) as context:  # type: ignore[arg-type]
        page = context.new_page()
        page.set_content(FAULTY)
        yield page


def test_each_check_finds_its_fault(faulty: Page) -> None:
    told = " ".join(accessible(faulty, set()))
    assert "light, axe color-contrast" in told
    assert "axe label" in told
    told = " ".join(operable(faulty))
    assert "no label" in told
    assert "not in the order of the Tab key" in told
    told = " ".join(fits(faulty))
    assert "px sideways at 1280" in told
    assert "px sideways at 360" in told
    assert "a table: 300 px in 100" in told
    assert "a control cut off: <button style=" in told
    told = " ".join(dialogs(faulty))
    assert "has the focus outside" in told
    assert "stays open at Escape" in told
    assert "does not give the focus back" in told


def test_a_heavy_page_is_told(browser: Browser, server: str) -> None:
    with browser.new_context(base_url=server) as context:
        page = context.new_page()
        page.route(
            "**/heavy", lambda route: route.fulfill(body="<p>" + "x" * 200_000, content_type="text/html")
        )
        page.goto("/heavy")
        assert "bytes at first load" in " ".join(weight(page))


def test_the_watch_sees_scripts_dialogs_and_requests_elsewhere(browser: Browser, server: str) -> None:
    watch = Watch(server)
    with browser.new_context(base_url=server) as context:
        page = watch.page(context)
        page.route("http://elsewhere.test/**", lambda route: route.fulfill(body=""))
        page.goto("/login")
        page.evaluate("""() => {
            alert('ran'); console.error('said');
            const script = document.createElement('script');
            script.textContent = 'window.x = 1';
            document.body.append(script);
            fetch('http://elsewhere.test/').catch(() => {});
            setTimeout(() => { throw new Error('thrown'); });
        }""")
        page.wait_for_function("() => new Promise((done) => setTimeout(() => done(true), 100))")
    told = " ".join(watch.faults)
    for fault in ("a script of somebody's name ran: ran", "said", "Content Security Policy", "thrown"):
        assert fault in told, fault
