"""Signing up: off unless a setting says so, by a link that proves the address, into a limited tenant."""

from __future__ import annotations

import dataclasses
import datetime as dt
import re
import secrets
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.core import mail
from django.db.models import F
from django.test import Client
from django.utils import timezone
from pytest_django import Settings

from contracts.environment import SettingsError
from controlplane.adapters.models import AdapterQuota
from controlplane.console.account.views import sign_up as sign_up_views
from controlplane.errors import ConflictError, NotFoundError
from controlplane.platform.audit.models import AuditRecord
from controlplane.platform.environment import Environment
from controlplane.sign_up.models import SignUp
from controlplane.sign_up.selectors import sign_up_by_token, sign_up_token
from controlplane.sign_up.services import PER_EMAIL_DAILY, QUIET, sign_up_begin, sign_up_complete
from controlplane.sign_up.tasks import send_due
from controlplane.tenants.limits.models import ScopeLimits
from controlplane.tenants.models import Membership, Project, Tenant, User
from controlplane.tenants.roles import Role
from controlplane.tenants.services import tenant_create, user_create

pytestmark = pytest.mark.django_db
EMAIL, PASSWORD = "new@example.com", "correct-horse-battery"
FORM = {"name": "New & Co", "id": "new-co", "password": PASSWORD}


def offer(settings: Settings, rule: str = "open", **values: Any) -> None:
    settings.GRAFTWORK = dataclasses.replace(django_settings.GRAFTWORK, sign_up=rule, **values)


@pytest.fixture
def offered(settings: Settings) -> None:
    offer(settings)


def ask(client: Client, email: str = EMAIL) -> str:
    """Ask for a link and return the path of the link in the mail."""
    assert client.post("/sign-up", {"email": email}).status_code == 200
    send_due()
    (path,) = re.findall(r"https?://[^/]+(/sign-up/\S+)", str(mail.outbox[-1].body))
    return str(path)


def test_off_there_is_no_page_and_no_mail_names_it() -> None:
    assert django_settings.GRAFTWORK.sign_up == "off"
    for path in ("/sign-up", "/sign-up/x"):
        assert Client().get(path).status_code == 404
        assert Client().post(path, {"email": EMAIL}).status_code == 404
    assert "sign-up" not in Client().get("/login").content.decode()
    SignUp.objects.create(email=EMAIL, nonce="n", expires_at=timezone.now() + dt.timedelta(hours=1))
    send_due()
    assert mail.outbox == []


@pytest.mark.usefixtures("offered")
def test_a_link_makes_a_tenant_and_its_owner_once() -> None:
    client = Client()
    assert "/sign-up" in client.get("/login").content.decode()
    path = ask(client, " New@Example.com ")
    assert mail.outbox[0].to == [EMAIL]
    assert "Your organization" in client.get(path).content.decode()
    assert not User.objects.filter(email=EMAIL).exists(), "filters open links too"
    weak = client.post(path, FORM | {"password": "short"})
    assert weak.status_code == 422
    assert "too short" in weak.content.decode()
    assert not Tenant.objects.exists(), "all or nothing"
    assert client.post(path, FORM)["Location"] == "/t/new-co/"
    assert client.get("/t/new-co/").status_code == 200
    assert Membership.objects.get().role == "owner"
    assert Project.objects.get().slug == Project.DEFAULT
    limits = ScopeLimits.objects.get()
    assert (limits.requests_per_minute, limits.tokens_per_minute) == (60, 60_000)
    assert limits.concurrency == 8
    quota = AdapterQuota.objects.get()
    assert (quota.adapters, quota.size_bytes) == (20, 2 * 10**9)
    record = AuditRecord.objects.get(action="tenant.sign_up")
    assert (record.tenant, record.after) == ("new-co", {"email": EMAIL})
    login = AuditRecord.objects.get(action="user.login")
    assert (login.tenant, login.after) == ("new-co", {"methods": ["sign_up"]})
    assert Client().get(path).status_code == 404
    send_due()
    assert len(mail.outbox) == 1


@pytest.mark.usefixtures("offered")
def test_an_id_that_is_taken_is_told_and_can_be_mended() -> None:
    tenant_create(slug="new-co", name="Earlier")
    client = Client()
    path = ask(client)
    refused = client.post(path, FORM)
    assert refused.status_code == 422
    assert "tenant &#x27;new-co&#x27; already exists: choose another id" in refused.content.decode()
    assert 'value="New &amp; Co"' in refused.content.decode()
    assert "lower-case letters" in client.post(path, FORM | {"id": "New Co"}).content.decode()
    assert client.post(path, FORM | {"id": "new-co-2"})["Location"] == "/t/new-co-2/"


@pytest.mark.usefixtures("offered")
def test_whether_an_address_has_an_account_only_its_mail_says(tenant: Tenant) -> None:
    user_create(email=EMAIL, password=PASSWORD, tenant=tenant)
    known, unknown = (Client().post("/sign-up", {"email": email}) for email in (EMAIL, "else@example.com"))
    said, else_said = (
        answer.content.decode().partition("<main")[2].partition("</main>")[0] for answer in (known, unknown)
    )
    assert said.replace(EMAIL, "x") == else_said.replace("else@example.com", "x")
    send_due()
    (told,) = [str(message.body) for message in mail.outbox if message.to == [EMAIL]]
    assert "which already has an account" in told
    assert "/sign-up/" not in told
    assert "/login" in told


def test_domains_bound_who_may(settings: Settings) -> None:
    offer(settings, "example.com,example.org")
    assert "example.com, example.org" in Client().get("/sign-up").content.decode()
    for email in ("x@else.test", "x@sub.example.com", "x@example.com.else.test"):
        refused = Client().post("/sign-up", {"email": email})
        assert refused.status_code == 422
        assert "sign up with an e-mail address of" in refused.content.decode()
    path = ask(Client())
    offer(settings, "example.org")
    assert "sign up with an e-mail address of" in Client().post(path, FORM).content.decode()
    assert not Tenant.objects.exists()


def test_a_plan_of_nothing_waits_for_staff(settings: Settings) -> None:
    offer(settings, sign_up_requests_per_minute=0, sign_up_tokens_per_minute=0)
    Client().post(ask(Client()), FORM)
    limits = ScopeLimits.objects.get()
    assert (limits.requests_per_minute, limits.tokens_per_minute) == (0, 0)


@pytest.mark.usefixtures("offered")
def test_links_are_sent_so_often_and_no_more() -> None:
    client = Client()
    answers = [client.post("/sign-up", {"email": EMAIL}).status_code for _ in range(4)]
    assert answers == [200, 200, 429, 429], "to one address"
    others = [client.post("/sign-up", {"email": f"{at}@example.com"}).status_code for at in range(12)]
    assert others.count(200) <= 10, "from one client"
    assert others[-1] == 429


def later() -> None:
    """A quarter of an hour goes by."""
    SignUp.objects.update(expires_at=F("expires_at") - QUIET)


@pytest.mark.usefixtures("offered")
def test_a_strangers_wish_voids_no_link_that_was_just_sent() -> None:
    path = ask(Client())
    Client().post("/sign-up", {"email": EMAIL})
    send_due()
    assert len(mail.outbox) == 1
    assert Client().get(path).status_code == 200
    later()
    sign_up_begin(email=EMAIL)
    send_due()
    assert len(mail.outbox) == 2
    assert Client().get(path).status_code == 404


@pytest.mark.usefixtures("offered")
def test_an_address_is_sent_so_many_links_a_day() -> None:
    for _ in range(PER_EMAIL_DAILY):
        sign_up_begin(email=EMAIL)
        later()
    with pytest.raises(ConflictError, match="5 links today"):
        sign_up_begin(email=EMAIL)
    refused = Client().post("/sign-up", {"email": EMAIL})
    assert refused.status_code == 422
    assert "or try again tomorrow" in refused.content.decode()


@pytest.mark.usefixtures("offered")
def test_a_network_of_ipv6_is_one_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sign_up_views, "PER_ADDRESS", 1)

    def answer(address: str) -> int:
        form = {"email": f"{secrets.token_hex(4)}@example.com"}
        return Client(REMOTE_ADDR=address).post("/sign-up", form).status_code

    answers = [answer(address) for address in ("2001:db8::1", "2001:db8::2", "2001:db8:0:1::1", "192.0.2.1")]
    assert answers == [200, 429, 200, 200]


@pytest.mark.usefixtures("offered")
@pytest.mark.parametrize("end", ["used", "again", "expired", "forged"])
def test_a_link_that_is_over_opens_nothing(end: str) -> None:
    sign_up = sign_up_begin(email=EMAIL)
    token = sign_up_token(sign_up)
    assert sign_up_by_token(token=token) == sign_up
    match end:
        case "used":
            sign_up_complete(sign_up=sign_up, slug="new-co", name="", password=PASSWORD)
        case "again":
            later()
            sign_up_begin(email=EMAIL)
        case "expired":
            SignUp.objects.update(expires_at=timezone.now() - dt.timedelta(seconds=1))
        case "forged":
            token = token[:-1] + ("A" if token[-1] != "A" else "B")
    with pytest.raises(NotFoundError, match="invalid"):
        sign_up_by_token(token=token)
    assert "this link is invalid" in Client().get(f"/sign-up/{token}").content.decode()
    assert Client().post(f"/sign-up/{token}", FORM).status_code == 404
    if end == "used":
        with pytest.raises(NotFoundError, match="already used"):
            sign_up_complete(
                sign_up=SignUp(pk=1, email=EMAIL, nonce="n"), slug="b", name="", password=PASSWORD
            )
    if end == "expired":
        send_due()
        assert not SignUp.objects.exists()


@pytest.mark.usefixtures("offered")
def test_who_is_logged_in_goes_on(tenant: Tenant) -> None:
    client = Client()
    client.force_login(user_create(email=EMAIL, password=PASSWORD, tenant=tenant))
    assert client.get("/sign-up")["Location"] == "/"


def test_the_setting_is_a_word_or_domains() -> None:
    assert Environment.from_env({}).sign_up == "off"
    assert Environment.from_env({"GRAFTWORK_SIGN_UP": "OPEN"}).sign_up == "open"
    assert Environment.from_env({"GRAFTWORK_SIGN_UP": " A.test, b.test"}).sign_up == "a.test,b.test"
    for wrong in ("yes", "a@b.test", "a.test;b.test"):
        with pytest.raises(SettingsError, match="GRAFTWORK_SIGN_UP must be off, open, or domains"):
            Environment.from_env({"GRAFTWORK_SIGN_UP": wrong})


@pytest.mark.usefixtures("offered")
def test_a_form_that_is_sent_too_late_says_so_and_keeps_what_was_typed() -> None:
    client = Client()
    late = ask(client)
    # Asked for again once the quiet time is over, from wherever: the open form's link is invalid then.
    SignUp.objects.update(expires_at=F("expires_at") - QUIET - dt.timedelta(seconds=1))
    newest = ask(Client())
    assert "a newer one was sent to the same address" in client.get(late).content.decode()
    refused = client.post(late, FORM)
    assert refused.status_code == 404
    assert "a newer one was sent to the same address" in refused.content.decode()
    assert 'data-testid="sign-up-kept"' in refused.content.decode()
    assert not Tenant.objects.exists()
    page = client.get(newest).content.decode()
    assert 'value="New &amp; Co"' in page
    assert 'value="new-co"' in page
    assert PASSWORD not in page
    assert 'value="new-co"' not in Client().get(newest).content.decode(), "in that browser alone"
    assert client.post(newest, FORM)["Location"] == "/t/new-co/"
    assert "sign-up" not in client.session
    used = Client().post(newest, {"name": "", "id": ""})
    assert (used.status_code, "sign-up-kept" in used.content.decode()) == (404, False)


@pytest.mark.usefixtures("offered")
def test_no_more_is_kept_than_a_field_holds() -> None:
    client = Client()
    assert client.post("/sign-up/forged", {"name": "n" * 10_000, "id": "i" * 10_000}).status_code == 404
    assert {name: len(text) for name, text in client.session["sign-up"].items()} == {"name": 200, "id": 64}


def test_a_demo_shows_the_links_of_its_e_mails_on_pages(settings: Settings, tenant: Tenant) -> None:
    member, staff = Client(), Client()
    member.force_login(user_create(email="o@acme.test", password=PASSWORD, tenant=tenant, role=Role.OWNER))
    staff.force_login(user_create(email="s@graft.test", password=PASSWORD, is_staff=True))
    for shown in (False, True):
        offer(settings, show_mail_links=shown, web_url="http://testserver")
        page = Client().post("/sign-up", {"email": f"{shown}@example.com"}).content.decode()
        links = re.findall(r'href="http://testserver(/sign-up/\S+)"', page)
        invite = {"email": f"{shown}@acme.test", "role": "viewer"}
        page = member.post("/t/acme/members/", invite, follow=True).content.decode()
        links += re.findall(r'href="http://testserver(/invitations/\S+)"', page)
        made = {"id": f"made-{shown}".lower(), "name": "Made", "owner": f"{shown}@made.test"}
        page = staff.post("/staff/tenants/", made, follow=True).content.decode()
        links += re.findall(r"sent to \S+: http://testserver(/invitations/[^\s<]+)", page)
        # The members' page also shows the link of the invitation before.
        assert len(links) == 4 * shown
        for link in links:
            assert Client().get(link).status_code == 200
