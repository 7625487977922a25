"""Logging in: attempts are counted, a second factor is asked for, an identity provider is believed."""

from __future__ import annotations

import gc
import re
import ssl
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import requests
from allauth.account.models import EmailAddress
from allauth.mfa.models import Authenticator
from allauth.socialaccount.models import SocialAccount, SocialLogin
from django.core import mail
from django.core.management import call_command
from django.test import Client, RequestFactory
from pytest_django import Settings

from contracts.environment import SettingsError
from controlplane.console.account import allauth_adapter, provider_session
from controlplane.console.account.allauth_adapter import SocialAdapter
from controlplane.console.account.known_browser import COOKIE, known_browser
from controlplane.platform.environment import Environment
from controlplane.tenants.members.selectors import invitation_token
from controlplane.tenants.members.services import invitation_create
from controlplane.tenants.models import Membership, Tenant, User
from controlplane.tenants.services import user_create
from tests.controlplane.console.conftest import PASSWORD
from tests.controlplane.console.login import log_in, second_factor, sign_on
from tests.dripping import OK, dripping, lasting
from tests.gateway.security.certificates import Authority

pytestmark = pytest.mark.django_db


@pytest.mark.usefixtures("user")
def test_attempts_are_counted_by_address_and_by_account() -> None:
    client = Client()
    for _ in range(5):
        assert "not correct" in log_in(client, "wrong").content.decode()
    page = log_in(client)
    assert page.status_code == 200
    assert "Too many failed login attempts" in page.content.decode()
    others = [log_in(client, "wrong", f"{number}@acme.test") for number in range(8)]
    assert "Too many failed" in others[-1].content.decode()


def test_strangers_do_not_lock_an_owner_out(user: User) -> None:
    """A browser that has logged in before, and another network, are counted apart from an attacker's."""
    owner = Client(REMOTE_ADDR="198.51.100.7")
    assert log_in(owner)["Location"] == "/t/acme/keys/"
    owner.post("/logout")
    attacker = Client(REMOTE_ADDR="198.51.100.9")
    pages = [log_in(attacker, "wrong").content.decode() for _ in range(6)]
    assert "Too many failed" in pages[-1]
    # The owner sits in the attacker's network, and another of its browsers elsewhere.
    assert log_in(owner)["Location"] == "/t/acme/keys/"
    assert log_in(Client(REMOTE_ADDR="203.0.113.5"))["Location"] == "/t/acme/keys/"
    fresh = Client(REMOTE_ADDR="198.51.100.8")
    assert "Too many failed" in log_in(fresh).content.decode()


def test_a_known_browser_guesses_no_more_than_others_and_only_its_own_accounts(user: User) -> None:
    other = user_create(email="other@acme.test", password=PASSWORD)
    client = Client()
    log_in(client)
    client.post("/logout")
    for _ in range(5):
        assert "not correct" in log_in(client, "wrong").content.decode()
    assert "Too many failed" in log_in(client).content.decode()
    request = RequestFactory().get("/login")
    request.COOKIES[COOKIE] = client.cookies[COOKIE].value
    assert known_browser(request, user.email.upper())
    assert known_browser(request, other.email) == ""
    request.COOKIES[COOKIE] += "x"
    assert known_browser(request, user.email) == "", "a cookie that we did not sign"


def test_all_networks_together_have_a_bound(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        allauth_adapter, "_STRANGERS", 1
    )  # of more, one would be free again while others are refused
    pages = [log_in(Client(REMOTE_ADDR=f"10.{number}.0.1"), "wrong").content.decode() for number in range(2)]
    assert "not correct" in pages[0]
    assert "Too many failed" in pages[1]


def test_without_redis_nobody_guesses(user: User, settings: Settings) -> None:
    gone = settings.CACHES["default"] | {"LOCATION": "redis://127.0.0.1:1/0"}
    settings.CACHES = {"default": gone}
    page = log_in(Client())
    assert page.status_code == 503
    assert "Login is unavailable" in page.content.decode()


def test_a_second_factor_is_asked_for_and_a_recovery_code_suffices(user: User) -> None:
    client = Client()
    assert log_in(client)["Location"] == "/t/acme/keys/"
    secret = second_factor(client)
    kept = Authenticator.objects.get(type="totp").data["secret"]
    assert secret not in kept  # sealed
    codes = client.get("/accounts/2fa/recovery-codes/download/").content.decode().split()
    client.post("/logout")
    assert log_in(client)["Location"].startswith("/accounts/2fa/authenticate/")
    assert client.get("/t/acme/")["Location"].startswith("/login")
    wrong = client.post("/accounts/2fa/authenticate/", {"code": "000000"})
    assert "Incorrect code" in wrong.content.decode()
    assert client.post("/accounts/2fa/authenticate/", {"code": codes[0]})["Location"] == "/t/acme/keys/"
    assert client.get("/t/acme/").status_code == 200
    client.post("/logout")
    log_in(client)
    again = client.post("/accounts/2fa/authenticate/", {"code": codes[0]})
    assert "Incorrect code" in again.content.decode()


def test_staff_pages_ask_for_the_second_factor_too(user: User) -> None:
    User.objects.update(is_staff=True, is_superuser=True)
    client = Client()
    reply = client.post("/admin/login/", {"username": user.email, "password": PASSWORD})
    assert reply["Location"].startswith("/login?next=")
    assert client.get("/admin/").status_code == 302


@pytest.mark.parametrize("path", ["signup/", "email/", "3rdparty/signup/"])
def test_nobody_signs_up_or_takes_another_address(path: str, user: User) -> None:
    client = Client()
    client.force_login(user)
    for visitor in (Client(), client):
        assert visitor.get(f"/accounts/{path}").status_code == 404
        assert visitor.post(f"/accounts/{path}", {"email": "x@acme.test"}).status_code == 404


def test_a_forgotten_password_is_set_by_mail_and_ends_sessions(user: User) -> None:
    before, client = Client(), Client()
    before.force_login(user)
    assert client.post("/accounts/password/reset/", {"email": user.email}).status_code == 302
    (path,) = re.findall(r"http://[^/]+(/accounts/password/reset/key/\S+)", str(mail.outbox[0].body))
    form = client.get(path)["Location"]
    fresh = {"password1": "another-battery-9", "password2": "another-battery-9"}
    assert client.post(form, fresh).status_code == 302
    assert log_in(Client(), "another-battery-9").status_code == 302
    assert before.get("/t/acme/").status_code == 302
    client.post("/accounts/password/reset/", {"email": "nobody@acme.test"})
    assert mail.outbox[-1].to == ["nobody@acme.test"]  # the page says the same to everyone


@pytest.mark.parametrize("path", ["2fa/", "password/change/", "password/reset/", "login/", "inactive/"])
def test_pages_keep_the_policy(path: str, user: User) -> None:
    client = Client()
    if path not in ("password/reset/", "login/"):
        client.force_login(user)
    response = client.get(f"/accounts/{path}", follow=True)
    page = response.content.decode()
    assert response.status_code == 200
    assert 'class="auth"' in page
    assert re.findall(r"\s(style|on[a-z]+)=", page) == []
    assert "unsafe" not in response["Content-Security-Policy"]


def test_single_sign_on_finds_the_member_of_a_verified_address(sso: Client, user: User) -> None:
    assert sign_on(sso, "known")["Location"] == "/t/acme/keys/"
    assert sso.get("/t/acme/").status_code == 200
    assert User.objects.get().check_password(PASSWORD)
    assert SocialAccount.objects.get().user == user


def test_single_sign_on_takes_no_unverified_address(sso: Client, user: User) -> None:
    refused = sign_on(sso, "sly")
    assert refused.status_code == 403
    assert "not return a verified e-mail address" in refused.content.decode()
    assert sso.get("/t/acme/").status_code == 302
    assert User.objects.count() == 1
    assert not SocialAccount.objects.exists()


def test_single_sign_on_asks_for_the_second_factor(sso: Client, user: User) -> None:
    owner = Client()
    log_in(owner)
    second_factor(owner)
    assert sign_on(sso, "known")["Location"].startswith("/accounts/2fa/authenticate/")
    assert sso.get("/t/acme/").status_code == 302


def test_who_is_new_joins_by_invitation(sso: Client, tenant: Tenant) -> None:
    invitation = invitation_create(tenant=tenant, email="new@acme.test", role="viewer")
    path = f"/invitations/{invitation_token(invitation)}"
    assert sign_on(sso, "new", path)["Location"] == path
    assert not Membership.objects.exists()
    assert "not a member of any tenant" in sso.get("/").content.decode()
    assert sso.post(path)["Location"] == "/t/acme/"
    assert not User.objects.get().has_usable_password()


def test_a_forged_answer_of_the_provider_logs_nobody_in(sso: Client, user: User) -> None:
    reply = sso.get("/accounts/oidc/sso/login/callback/?code=x&state=forged")
    assert reply.status_code == 401
    assert "_auth_user_id" not in sso.session
    assert sso.get("/accounts/oidc/sso/login/").status_code == 405
    assert sso.post("/accounts/oidc/other/login/").status_code == 404


def test_a_provider_that_is_away_is_told_of(sso: Client, settings: Settings) -> None:
    provider = settings.SOCIALACCOUNT_PROVIDERS["openid_connect"]
    (app,) = provider["APPS"]
    away = app | {"settings": {"server_url": "http://127.0.0.1:1"}}
    settings.SOCIALACCOUNT_PROVIDERS = {"openid_connect": provider | {"APPS": [away]}}
    assert sso.post("/accounts/oidc/sso/login/").status_code == 503


@pytest.mark.parametrize(
    "prompt", [b"", OK, OK.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)], ids=["head", "body", "closing"]
)
def test_a_provider_that_drips_holds_nobody_for_long(
    prompt: bytes, sso: Client, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provider_session, "TOTAL_S", 2.0)
    provider = settings.SOCIALACCOUNT_PROVIDERS["openid_connect"]
    (app,) = provider["APPS"]
    with dripping(prompt, every=0.5) as server, lasting(1.9):
        slow = app | {"settings": {"server_url": server.url}}
        settings.SOCIALACCOUNT_PROVIDERS = {"openid_connect": provider | {"APPS": [slow]}}
        assert sso.post("/accounts/oidc/sso/login/").status_code == 503


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and those that it was raised from."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


@pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")
def test_a_provider_that_drips_under_tls_is_left_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider_session, "TOTAL_S", 2.0)
    authority = Authority(tmp_path)
    with dripping(OK, every=0.5) as server, provider_session.ProviderSession() as session:
        server.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.context.load_cert_chain(authority.issue("server").both)
        session.verify = str(authority.certificate)
        session.trust_env = False
        url = server.url.replace("http", "https")
        with lasting(1.9), pytest.raises(requests.RequestException):
            session.get(url)
        # The time was the session's, not the connection's.
        with pytest.raises(requests.RequestException) as caught:
            session.get(url)
        assert any("took longer than 2 s" in str(error) for error in _causes(caught.value))
    # CPython leaves a socket that was cut in the middle of its handshake to the collector, which complains.
    gc.collect()


def test_a_provider_needs_its_client() -> None:
    with pytest.raises(SettingsError, match="OIDC_CLIENT_ID is required"):
        Environment.from_env({"GRAFTWORK_OIDC_ISSUER": "https://id.example"})


def test_without_a_provider_there_is_no_button(settings: Settings, tenant: Tenant) -> None:
    assert replace(settings.GRAFTWORK, oidc_issuer="").oidc_apps() == []
    assert b"login-sso" not in Client().get("/login").content
    call_command("check")


class _Trusting(SocialAdapter):
    """An adapter with a configured provider."""

    def can_authenticate_by_email(self, *_: object) -> bool:
        return True


def test_a_provider_that_tells_as_text_that_an_address_is_not_verified() -> None:
    """The text "false" must not count as verified: a stranger could type in the owner's address there."""
    owner = user_create(email="owner@acme.test", password="long-enough-7")
    for told, found in (("false", None), ("", None), (False, None), ("true", owner), (True, owner)):
        login = SocialLogin(
            user=User(email=owner.email),
            account=SocialAccount(provider="oidc", uid="1"),
            email_addresses=[EmailAddress(email=owner.email, verified=told)],
        )
        answer = _Trusting().authenticate_by_email(login)
        assert (answer and answer[0]) == found, told
