"""Messages of a browser's console while a page is used."""

from __future__ import annotations

from playwright.sync_api import ConsoleMessage, Page


def complaints_of(page: Page) -> list[str]:
    """Errors of the console and of scripts, from now on.

    The playground's key is new, and tried until the gateway has it: that one answer of 401 is meant.
    """
    complaints: list[str] = []

    def heard(message: ConsoleMessage) -> None:
        asked = message.location.get("url", "").endswith("/v1/chat/completions")
        if message.type == "error" and not (asked and "401" in message.text):
            complaints.append(message.text)

    page.on("console", heard)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    return complaints
