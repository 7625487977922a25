"""Names turn round no text beside them: pages are sent without the characters that order a direction."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

_ORDERS: Final = re.compile(rb"\xe2\x80[\xaa-\xae]|\xe2\x81[\xa6-\xa9]")
"""U+202A to U+202E and U+2066 to U+2069, as UTF-8: embeddings, overrides, isolates, and what ends them."""


class DirectionMiddleware:
    """Takes explicit directional orders out of HTML.

    No template of ours has one, so each is of somebody's name or note, where it may have no end and then
    turns round what follows. An element that isolates (`<bdi>`, class `name`) is no help against an order
    that ends the isolation itself, and attributes and titles have no elements. What is written from right to
    left needs none of them: letters know their direction, and isolated names keep it to themselves.
    Documents that are handed out as files stay as they are, byte by byte.
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
