"""Removes directional control characters from pages, so that a name cannot reorder the text next to it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

_ORDERS: Final = re.compile(rb"\xe2\x80[\xaa-\xae]|\xe2\x81[\xa6-\xa9]")
"""U+202A to U+202E and U+2066 to U+2069, as UTF-8: embeddings, overrides, isolates and their ends."""


class DirectionMiddleware:
    """Removes explicit directional controls from HTML.

    Our templates have none, so each comes from a user's name or note, where it may lack its end and reorder
    the following text. An isolating element (`<bdi>`, class `name`) does not help against a control that ends
    the isolation, and attributes and titles have no elements. Right-to-left text needs no controls: letters
    have a direction, and isolated names do not affect their surroundings. Downloads stay unchanged, byte by
    byte.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        response = self._get_response(request)
        if not isinstance(response, HttpResponse) or response.has_header("Content-Disposition"):
            return response
        if response.headers.get("Content-Type", "").startswith("text/html"):
            page, orders = _ORDERS.subn(b"", response.content)
            if orders:
                response.content = page
        return response
