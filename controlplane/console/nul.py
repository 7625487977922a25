"""Answers 400 to a form with a NUL character, which no database text can hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.utils.translation import gettext as _

_API: Final = "/api/"


class FormNulMiddleware:
    """Checks forms and queries of all pages before their views run.

    PostgreSQL refuses such a text in the middle of a query, and the page would be a 500. NUL characters come
    with text pasted from files. The REST API checks its own fields.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        return self._get_response(request)

    def process_view(
        self, request: HttpRequest, view: Callable[..., Any], args: Any, kwargs: Any
    ) -> HttpResponse | None:
        """Check the request, after the CSRF check, which reads the form as well."""
        if request.path_info.startswith(_API):
            return None
        sent = [pair for form in (request.GET, request.POST) for pair in form.lists()]
        if not any("\0" in text for name, texts in sent for text in (name, *texts)):
            return None
        reason = _("The form contains a NUL character, which cannot be stored. Remove it.")
        return render(request, "400.html", {"reason": reason}, status=400)
