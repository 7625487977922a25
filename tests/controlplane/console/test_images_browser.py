"""Images in the playground's prompt in Chromium: attached, checked, sent to every column and kept."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Callable
from typing import Any, Final

import pytest
from playwright.sync_api import FilePayload, Page, Route, expect

from controlplane.catalog.models import BaseModel
from gateway.api.images import Image, read_images
from tests.controlplane.console.test_browser import COMPLETIONS, Open, open_page
from tests.ui.checks import axe, fits, operable

__all__ = ["open_page"]
pytestmark = [
    pytest.mark.browser,
    pytest.mark.costly("renders pages in Chromium"),
    pytest.mark.django_db(transaction=True),
]
REFUSAL: Final = "The base model 'tiny' has no vision part, so it reads text alone."
TRANSFER: Final = """([kind, name, type, data]) => {
  const transfer = new DataTransfer();
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  transfer.items.add(new File([bytes], name, { type }));
  const options = { bubbles: true, cancelable: true };
  const event = kind === "paste"
    ? new ClipboardEvent(kind, { ...options, clipboardData: transfer })
    : new DragEvent(kind, { ...options, dataTransfer: transfer });
  document.getElementById("prompt").dispatchEvent(event);
}"""
"""Pastes or drops a file on the prompt."""


def png(width: int = 24, height: int = 16, shade: int = 90) -> bytes:
    """Return a gray PNG."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = zlib.compress((b"\0" + bytes([shade]) * width) * height)
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def payload(name: str, data: bytes, kind: str = "image/png") -> FilePayload:
    return {"name": name, "mimeType": kind, "buffer": data}


def transfer(page: Page, kind: str, name: str, data: bytes, media_type: str = "image/png") -> None:
    page.evaluate(TRANSFER, [kind, name, media_type, base64.b64encode(data).decode()])


def answering(page: Page, refused: str = "") -> list[Any]:
    """Answer as a gateway, which checks images as the real one does; return the bodies that it received."""
    asked: list[Any] = []
    usage = {"prompt_tokens": 275, "completion_tokens": 2}
    events = [{"choices": [{"delta": {"content": "A gray box"}}]}, {"choices": [], "usage": usage}]
    body = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"

    def answer(route: Route) -> None:
        sent: Any = route.request.post_data_json
        asked.append(sent)
        if read_images(sent["messages"]) and sent["model"] == refused:
            error = {"message": REFUSAL, "code": "images_not_served", "param": "messages"}
            return route.fulfill(status=400, json={"error": error})
        return route.fulfill(status=200, content_type="text/event-stream", body=body)

    page.route(COMPLETIONS, answer)
    return asked


def check(page: Page) -> None:
    """Check the page for a desk and for a phone."""
    for width in (1440, 360):
        page.set_viewport_size({"width": width, "height": 900})
        assert axe(page) + fits(page) + operable(page) == []


def send(page: Page, text: str) -> None:
    page.get_by_test_id("prompt").fill(text)
    page.get_by_test_id("prompt").press("Enter")
    expect(page.get_by_test_id("playground")).to_have_attribute("data-state", "idle")


@pytest.fixture
def open_vision(open_page: Open, base: BaseModel) -> Callable[..., Page]:
    """Opens the playground with an adapter and its base model, which read images."""
    base.image_tokens = {"most": 256}
    base.save(update_fields=["image_tokens"])
    return lambda **options: open_page("/t/acme/playground/?model=support-bot", **options)


def test_images_are_chosen_pasted_dropped_and_sent_to_every_column(open_vision: Open) -> None:
    page = open_vision()
    asked = answering(page)
    page.get_by_test_id("image-files").set_input_files([payload("one.png", png()), payload("off.png", png())])
    transfer(page, "paste", "two.png", png(32, 8))
    transfer(page, "drop", "three.png", png(5, 7))
    expect(page.get_by_test_id("preview")).to_have_count(4)
    page.get_by_role("button", name="Remove off.png").click()
    expect(page.get_by_test_id("preview")).to_have_count(3)
    expect(page.get_by_test_id("image-note")).to_be_empty()
    check(page)
    send(page, "What is this?")
    assert sorted(body["model"] for body in asked) == ["support-bot", "tiny"]
    for body in asked:
        (message,) = body["messages"]
        assert message["content"][0] == {"type": "text", "text": "What is this?"}
        assert read_images([message]) == (Image(24, 16), Image(32, 8), Image(5, 7))
        data = message["content"][1]["image_url"]["url"].partition("base64,")[2]
        assert base64.b64decode(data) == png()
    for column in page.get_by_test_id("answer").all():
        expect(column.get_by_test_id("metrics")).to_contain_text("275 in · 2 out")
        expect(column.get_by_test_id("metrics")).to_contain_text("3 images")
        expect(column.locator("[data-role=user] img")).to_have_count(3)
    expect(page.get_by_test_id("previews")).to_be_hidden()
    check(page)


def test_the_conversation_keeps_its_images_and_the_code_shortens_them(open_vision: Open) -> None:
    page = open_vision()
    asked = answering(page)
    transfer(page, "paste", "one.png", png())
    send(page, "")
    send(page, "And its color?")
    first, answer, second = asked[-1]["messages"]
    assert [part["type"] for part in first["content"]] == ["image_url"]
    assert (answer["role"], second["content"]) == ("assistant", "And its color?")
    expect(page.get_by_test_id("metrics").first).to_contain_text("1 image")
    page.get_by_test_id("view-code").first.click()
    code = page.locator("#code-curl").inner_text()
    assert "data:image/png;base64,iVBORw0KGgo" in code
    assert "…" in code
    assert base64.b64encode(png()).decode() not in code


def test_a_column_that_reads_no_images_says_so_and_the_others_go_on(open_page: Open, base: BaseModel) -> None:
    page = open_page("/t/acme/playground/?model=support-bot")
    answering(page, refused="tiny")
    note = page.get_by_test_id("image-note")
    expect(note).to_be_empty()
    transfer(page, "paste", "one.png", png())
    expect(note).to_contain_text("support-bot reads no images.")
    expect(note).to_contain_text("tiny reads no images.")
    send(page, "What is this?")
    expect(note).to_be_empty()
    refused = page.locator("[data-testid=answer][data-model=tiny]").get_by_test_id("answer-error")
    expect(refused).to_contain_text(REFUSAL)
    expect(refused).to_contain_text("send the message without images")
    expect(page.get_by_test_id("answer-error")).to_have_count(1)
    expect(page.locator("[data-model=support-bot] [data-role=assistant]")).to_contain_text("A gray box")
    # The refused message is no part of the conversation: the column can be asked again without it.
    send(page, "Hello")
    expect(page.locator("[data-model=tiny] [data-role=assistant]")).to_contain_text("A gray box")


def test_images_beyond_the_gateways_bounds_are_refused_before_they_are_sent(open_vision: Open) -> None:
    page = open_vision()
    error = page.get_by_test_id("prompt-error")
    transfer(page, "drop", "notes.svg", b"<svg/>", "image/svg+xml")
    expect(error).to_have_text("notes.svg is not a PNG, JPEG, WebP or GIF image.")
    transfer(page, "drop", "fake.png", b"not an image")
    expect(error).to_have_text("fake.png is not a PNG, JPEG, WebP or GIF image.")
    transfer(page, "drop", "long.png", png(16_385, 1))
    expect(error).to_contain_text("long.png has 16385 × 1 pixels. A side may have at most 16384.")
    files = [payload(f"{number}.png", png()) for number in range(50)]
    page.get_by_test_id("image-files").set_input_files(files)
    expect(page.get_by_test_id("preview")).to_have_count(50)
    page.get_by_test_id("image-files").set_input_files(files[:15])
    expect(page.get_by_test_id("preview")).to_have_count(64)
    expect(error).to_contain_text("At most 64 images in a conversation")


def test_a_conversation_larger_than_the_gateways_default_is_announced(open_vision: Open) -> None:
    page = open_vision()
    transfer(page, "paste", "heavy.png", png() + bytes(1_700_000))
    expect(page.get_by_test_id("image-note")).to_contain_text("has 2.2 MiB. The gateway accepts 2 MiB")


def test_pixels_are_counted_over_the_conversation(open_vision: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controlplane.console.adapters.views.playground.MAX_PIXELS", 500)
    page = open_vision()
    answering(page)
    transfer(page, "paste", "first.png", png())
    send(page, "What is this?")
    transfer(page, "paste", "second.png", png())
    expect(page.get_by_test_id("prompt-error")).to_contain_text("more than 500 pixels together")
    expect(page.get_by_test_id("preview")).to_have_count(0)
    page.get_by_test_id("clear").click()
    transfer(page, "paste", "second.png", png())
    expect(page.get_by_test_id("preview")).to_have_count(1)
