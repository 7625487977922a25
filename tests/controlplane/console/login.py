"""Logging in as people do it, for tests: by password, with a second factor, by an identity provider."""

from __future__ import annotations

import html
import re
from typing import Any

from allauth.mfa.totp.internal.auth import format_hotp_value, hotp_value, yield_hotp_counters_from_time
from django.test import Client

from tests.controlplane.console.conftest import PASSWORD
from tests.controlplane.console.oidc import authorize


def log_in(client: Client, password: str = PASSWORD, email: str = "dev@acme.test") -> Any:
    """Sends the form of the login page."""
    return client.post("/login", {"login": email, "password": password, "next": "/t/acme/keys/"})


def code(secret: str) -> str:
    """The one-time code that an authenticator app shows now."""
    return str(format_hotp_value(hotp_value(secret, next(iter(yield_hotp_counters_from_time())))))


def second_factor(client: Client) -> str:
    """Turns it on as a person does; returns the secret."""
    asked = client.get("/accounts/2fa/totp/activate/", follow=True)
    assert "Password" in asked.content.decode()
    client.post(asked.request["PATH_INFO"], {"password": PASSWORD})
    page = client.get("/accounts/2fa/totp/activate/").content.decode()
    assert 'src="data:image/svg+xml' in page
    assert re.findall(r"\s(style|on[a-z]+)=", page) == []
    secret = re.findall(r'id="authenticator_secret"[^>]*value="([A-Z2-7]+)"', page)[0]
    assert client.post("/accounts/2fa/totp/activate/", {"code": code(secret)}).status_code == 302
    return str(secret)


def sign_on(client: Client, sub: str, path: str = "/t/acme/keys/") -> Any:
    """From the button on our page to the answer to what the provider sends back."""
    page = client.get(f"/login?next={path}").content.decode()
    assert "Log in with Okta" in page
    (action,) = re.findall(r'action="(/accounts/oidc/[^"]+)"', page)
    between = client.post(html.unescape(action))
    assert between.status_code == 200
    (url,) = re.findall(r'http-equiv="refresh" content="0; url=([^"]+)"', between.content.decode())
    assert "code_challenge=" in url
    return client.get(authorize(html.unescape(url), sub=sub))
