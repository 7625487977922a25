"""Single sign-on in Chromium: the strict policy lets people go to the provider and come back."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser
from pytest_django import Settings
from pytest_django.live_server_helper import LiveServer

from controlplane.tenants.members.selectors import invitation_token
from controlplane.tenants.members.services import invitation_create
from tests.controlplane.console.conftest import Team
from tests.controlplane.console.oidc import oidc_provider

pytestmark = [
    pytest.mark.browser,
    pytest.mark.costly("renders pages in Chromium"),
    pytest.mark.django_db(transaction=True),
]


def test_the_button_leads_to_the_provider_and_back(
    browser: Browser, live_server: LiveServer, acme: Team, settings: Settings, tmp_path: Path
) -> None:
    person = {"sub": "dev", "email": acme.user.email, "email_verified": True}
    with oidc_provider(tmp_path, person) as issuer:
        app = {"provider_id": "sso", "name": "Okta", "client_id": "graftwork", "secret": "s"}
        apps = [app | {"settings": {"server_url": issuer}}]
        settings.SOCIALACCOUNT_PROVIDERS = {"openid_connect": {"APPS": apps}}
        page = browser.new_page(base_url=live_server.url)
        page.goto("/login")
        page.get_by_test_id("login-sso").click()
        page.wait_for_url(f"{issuer}/**")
        page.get_by_role("textbox").fill("dev")
        page.get_by_role("textbox").press("Enter")
        page.wait_for_url("**/t/acme/")
        assert page.get_by_test_id("account").inner_text() == acme.user.email
        page.close()


def test_what_an_invitation_refuses_is_said_in_red(
    browser: Browser, live_server: LiveServer, acme: Team
) -> None:
    invitation = invitation_create(
        tenant=acme.tenant, email="new@acme.example", role="viewer", invited_by=acme.user
    )
    page = browser.new_page(base_url=live_server.url)
    page.goto(f"/invitations/{invitation_token(invitation)}")
    page.get_by_test_id("invitation-password").fill("short")
    page.get_by_test_id("invitation-accept").click()
    colour = "element => getComputedStyle(element).color"
    said = page.get_by_test_id("error-password").evaluate(colour)
    assert said != page.locator("p.name").evaluate(colour)
    # As any other form's: outside of the card.
    made = "const p = document.body.appendChild(document.createElement('p')); p.className = 'field-error';"
    assert said == page.evaluate(f"() => {{ {made} return getComputedStyle(p).color }}")
    page.close()
