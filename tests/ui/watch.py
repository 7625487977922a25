"""Faults that no page may have: script errors, policy violations, requests to other servers, dialogs."""

from __future__ import annotations

from playwright.sync_api import BrowserContext, ConsoleMessage, Dialog, Page, Request

_GATEWAY = "http://127.0.0.1:8001/v1/"


class Watch:
    """Listens to pages. `faults` names each with the page that had it."""

    def __init__(self, server: str) -> None:
        self._server = server
        self.faults: list[str] = []

    def page(self, context: BrowserContext) -> Page:
        """A new page, listened to."""
        page = context.new_page()
        page.on("pageerror", lambda error: self._add(page, f"script error: {error}"))
        page.on("console", lambda message: self._console(page, message))
        page.on("request", lambda request: self._request(page, request))
        page.on("dialog", lambda dialog: self._dialog(page, dialog))
        return page

    def _add(self, page: Page, text: str) -> None:
        self.faults.append(f"{page.url}: {text}")

    def _console(self, page: Page, message: ConsoleMessage) -> None:
        # The browser's own remark on each 4xx and 5xx answer is no fault of the page, nor is htmx's on a
        # network that was lost.
        remarks = ("Failed to load resource", "htmx:afterRequest", "htmx:sendError")
        if message.type == "error" and not message.text.startswith(remarks):
            self._add(page, message.text)

    def _request(self, page: Page, request: Request) -> None:
        if not request.url.startswith((self._server + "/", _GATEWAY, "data:", "blob:")):
            self._add(page, f"asks elsewhere: {request.url}")

    def _dialog(self, page: Page, dialog: Dialog) -> None:
        self._add(page, f"a script of somebody's name ran: {dialog.message}")
        dialog.dismiss()
