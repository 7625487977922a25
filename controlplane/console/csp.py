"""The content security policy of every page: own origin only, scripts by nonce."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from typing import Final
from urllib.parse import urlsplit

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.conf import settings
from django.http import HttpRequest, HttpResponse

_FOREIGN_PAGES: Final = ("/admin/", "/api/docs/")
"""Pages with other packages' templates: inline scripts and styles are allowed, from our origin only."""
_STRICT: Final = (
    "default-src 'none'; script-src 'self' 'nonce-{nonce}'; style-src 'self'; img-src 'self' data:;"
    " font-src 'self'; connect-src 'self' {gateway}; form-action 'self'; base-uri 'none';"
    " frame-ancestors 'none'"
)
_RELAXED: Final = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline';"
    " img-src 'self' data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_NO_DEVICES: Final = "camera=(), geolocation=(), microphone=(), payment=(), usb=()"


class ContentSecurityPolicyMiddleware:
    """Sets `request.csp_nonce` and the policy header; browsers may also connect to the gateway."""

    async_capable, sync_capable = True, True

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse | Awaitable[HttpResponse]]) -> None:
        self._get_response = get_response
        gateway = urlsplit(settings.GRAFTWORK.gateway_url)
        self._gateway = f"{gateway.scheme}://{gateway.netloc}"
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> HttpResponse | Awaitable[HttpResponse]:
        request.csp_nonce = secrets.token_urlsafe(16)  # type: ignore[attr-defined]
        response = self._get_response(request)
        if isinstance(response, HttpResponse) or not iscoroutinefunction(self._get_response):
            return self._protect(request, response)  # type: ignore[arg-type]
        return self._protect_later(request, response)

    async def _protect_later(self, request: HttpRequest, response: Awaitable[HttpResponse]) -> HttpResponse:
        return self._protect(request, await response)

    def _protect(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        policy = _RELAXED if request.path.startswith(_FOREIGN_PAGES) else _STRICT
        nonce = request.csp_nonce  # type: ignore[attr-defined]
        response.headers.setdefault(
            "Content-Security-Policy", policy.format(nonce=nonce, gateway=self._gateway)
        )
        response.headers.setdefault("Permissions-Policy", _NO_DEVICES)
        return response
