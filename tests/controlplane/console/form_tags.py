"""Forms that carry the state that their page showed."""

from __future__ import annotations

import re
from typing import Any

from django.http import HttpResponse
from django.test import Client


def form_tag(page: Client, url: str, form: str) -> str:
    """The tag in the form of that test id, as its page shows it now."""
    return form_tag_in(page.get(url).content.decode(), form)


def form_tag_in(text: str, form: str) -> str:
    """The tag in the form of that test id on a page."""
    found = re.search(rf'data-testid="{form}".*?name="seen" value="([0-9a-f]{{32}})"', text, re.DOTALL)
    assert found is not None, f"there is no form {form}"
    return found[1]


def send(page: Client, url: str, values: dict[str, Any], *, form: str, to: str | None = None) -> HttpResponse:
    """Opens the page, fills the form in and sends it."""
    return page.post(to or url, {**values, "seen": form_tag(page, url, form)})  # type: ignore[return-value]
