"""Browsers that have logged in before: strangers' wrong passwords do not lock their owners out.

A signed cookie with a random id lists the accounts that the browser has logged in to. It grants no access:
attempts are only counted by browser instead of by network.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from typing import Final

from django.conf import settings
from django.http import HttpRequest
from django.http.response import HttpResponseBase

COOKIE: Final = "graftwork_browser"
_SALT: Final = "controlplane.console.account.known_browser"
_SECONDS: Final = 180 * 24 * 3600
_ACCOUNTS: Final = 8
"""Most accounts in a browser's cookie; the newest are kept."""


def known_browser(request: HttpRequest, email: str) -> str:
    """Return the browser's id if it has logged in to the account of `email`, else ""."""
    browser, accounts = _read(request)
    return browser if _digest(email) in accounts else ""


def remember_browser(request: HttpRequest, response: HttpResponseBase, email: str) -> None:
    """Set the cookie after a log-in to the account of `email`."""
    browser, accounts = _read(request)
    digest = _digest(email)
    accounts = [digest, *(other for other in accounts if other != digest)][:_ACCOUNTS]
    response.set_signed_cookie(
        COOKIE,
        json.dumps([browser or secrets.token_urlsafe(12), *accounts]),
        salt=_SALT,
        max_age=_SECONDS,
        secure=settings.SESSION_COOKIE_SECURE,
        httponly=True,
        samesite="Lax",
    )


def _read(request: HttpRequest) -> tuple[str, list[str]]:
    value = request.get_signed_cookie(COOKIE, "[]", salt=_SALT, max_age=_SECONDS)
    browser, *accounts = json.loads(value or "[]") or [""]
    return browser, accounts


def _digest(email: str) -> str:
    return hashlib.sha256(email.strip().lower().encode()).hexdigest()[:32]
