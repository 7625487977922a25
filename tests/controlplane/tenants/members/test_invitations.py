"""Invitations: sent by e-mail, good once, until they expire, for the address that they name."""

from __future__ import annotations

import datetime as dt
import re
from functools import partial
from urllib.parse import quote

import pytest
from django.core import mail
from django.core.mail.backends.locmem import EmailBackend
from django.test import Client
from django.utils import timezone

from controlplane.errors import ConflictError, ForbiddenError, InvalidInputError, NotFoundError
from controlplane.platform.mail_server import MailServer
from controlplane.tenants.access import Access
from controlplane.tenants.members import services
from controlplane.tenants.members.mail import invitation_send
from controlplane.tenants.members.models import Invitation
from controlplane.tenants.members.selectors import invitation_by_token, invitation_token
from controlplane.tenants.members.services import (
    invitation_accept,
    invitation_create,
    invitation_resend,
    invitation_revoke,
)
from controlplane.tenants.members.tasks import send_invitations
from controlplane.tenants.models import Membership, Tenant, User
from controlplane.tenants.roles import Role
from controlplane.tenants.services import user_create
from tests.controlplane.adapters.test_races import at_once

pytestmark = pytest.mark.django_db
PASSWORD = "correct-horse-battery"


def invite(tenant: Tenant, email: str = "new@acme.test", role: Role = Role.ENGINEER) -> Invitation:
    return invitation_create(tenant=tenant, email=email, role=role)


def send(invitation_id: int) -> bool:
    with MailServer() as server:
        return invitation_send(invitation_id=invitation_id, server=server)
    return False


def link(message: mail.EmailMessage) -> str:
    (path,) = re.findall(r"https?://[^/]+(/invitations/\S+)", str(message.body))
    return str(path)


def test_the_link_makes_an_account_once(tenant: Tenant) -> None:
    owner = user_create(email="owner@acme.test", password=PASSWORD, tenant=tenant)
    client, visitor = Client(), Client()
    client.force_login(owner)
    client.post("/t/acme/members/", {"email": "New@acme.test", "role": "billing"})
    send_invitations()
    (message,) = mail.outbox
    assert message.to == ["new@acme.test"]
    assert message.subject == "Join Acme on Graftwork"
    assert "owner@acme.test invited you" in str(message.body)
    page = visitor.get(link(message)).content.decode()
    assert "Choose a password" in page
    assert not User.objects.filter(email="new@acme.test").exists()
    weak = visitor.post(link(message), {"password": "short"})
    assert weak.status_code == 422
    assert "too short" in weak.content.decode()
    joined = visitor.post(link(message), {"password": PASSWORD})
    assert joined["Location"] == "/t/acme/"
    assert visitor.get("/t/acme/usage/").status_code == 200
    assert Membership.objects.get(user__email="new@acme.test").role == Role.BILLING
    assert Client().get(link(message)).status_code == 404
    send_invitations()
    assert len(mail.outbox) == 1


def test_who_has_an_account_logs_in_and_joins(tenant: Tenant) -> None:
    user = user_create(email="new@acme.test", password=PASSWORD)
    path = f"/invitations/{invitation_token(invite(tenant))}"
    client = Client()
    assert f"/login?next={quote(path)}" in client.get(path).content.decode()
    refused = client.post(path, {"password": "another-password-1"})
    assert "log in first" in refused.content.decode()
    client.force_login(user_create(email="else@acme.test", password=PASSWORD))
    assert "You are logged in as else@acme.test" in client.get(path).content.decode()
    assert "is for new@acme.test" in client.post(path).content.decode()
    assert not Membership.objects.exists()
    client.force_login(user)
    assert client.post(path)["Location"] == "/t/acme/"
    assert Membership.objects.get().user == user


@pytest.mark.parametrize("end", ["accepted", "revoked", "expired", "resent", "forged", "foreign"])
def test_a_link_that_is_over_opens_nothing(end: str, tenant: Tenant, other_tenant: Tenant) -> None:
    invitation = invite(tenant)
    token = invitation_token(invitation)
    assert invitation_by_token(token=token) == invitation
    match end:
        case "accepted":
            user = user_create(email="new@acme.test", password=PASSWORD)
            invitation_accept(invitation=invitation, user=user)
        case "revoked":
            invitation_revoke(invitation=invitation)
        case "expired":
            Invitation.objects.update(expires_at=timezone.now() - dt.timedelta(seconds=1))
        case "resent":
            fresh = invitation_resend(invitation=invitation)
            assert invitation_by_token(token=invitation_token(fresh)) == fresh
        case "forged":
            token = token[:-1] + ("A" if token[-1] != "A" else "B")
        case "foreign":
            invitation.tenant = other_tenant
            token = invitation_token(invitation)
    with pytest.raises(NotFoundError, match="invalid"):
        invitation_by_token(token=token)
    assert "this invitation is invalid" in Client().get(f"/invitations/{token}").content.decode()
    assert Client().post(f"/invitations/{token}", {"password": PASSWORD}).status_code == 404


@pytest.mark.django_db(transaction=True)
def test_of_two_clicks_at_once_one_joins(tenant: Tenant) -> None:
    invitation = invite(tenant)
    user = user_create(email="new@acme.test", password=PASSWORD)

    def accept() -> object:
        try:
            return invitation_accept(invitation=invitation, user=user)
        except NotFoundError as error:
            raise ConflictError(str(error)) from error

    results = at_once([accept] * 3)
    assert len([result for result in results if isinstance(result, Membership)]) == 1


def test_an_address_is_invited_once_and_never_by_who_has_less(tenant: Tenant) -> None:
    first = invite(tenant)
    with pytest.raises(ConflictError, match="already invited"):
        invite(tenant, "NEW@acme.test ")
    Invitation.objects.update(expires_at=timezone.now())
    assert invite(tenant).pk != first.pk
    user_create(email="in@acme.test", password=PASSWORD, tenant=tenant)
    with pytest.raises(ConflictError, match="already a member"):
        invite(tenant, "in@acme.test")
    with pytest.raises(InvalidInputError, match="e-mail address"):
        invite(tenant, "nobody")
    admin = Access(tenant, Role.ADMIN)
    with pytest.raises(ForbiddenError):
        invitation_create(tenant=tenant, email="x@acme.test", role="owner", by=admin)
    owners = invite(tenant, "x@acme.test", Role.OWNER)
    with pytest.raises(ForbiddenError):
        invitation_resend(invitation=owners, by=admin)
    with pytest.raises(ForbiddenError):
        invitation_revoke(invitation=owners, by=admin)
    client = Client()
    client.force_login(
        user_create(email="admin@acme.test", password=PASSWORD, tenant=tenant, role=Role.ADMIN)
    )
    assert client.delete(f"/api/v1/invitations/{owners.pk}").status_code == 403
    assert client.post(f"/t/acme/invitations/{owners.pk}/revoke").status_code == 403
    owners.refresh_from_db()
    assert owners.revoked_at is None


def test_a_mail_server_that_is_away_delays_an_invitation(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    invitation = invite(tenant)
    with monkeypatch.context() as patch:
        patch.setattr(EmailBackend, "send_messages", lambda *_: (_ for _ in ()).throw(OSError("away")))
        assert not send(invitation.pk)
    assert Invitation.objects.get().sent_at is None
    send_invitations()
    assert mail.outbox == []  # tried a moment ago: perhaps another process is at it still
    Invitation.objects.update(attempted_at=timezone.now() - dt.timedelta(minutes=3))
    send_invitations()
    assert len(mail.outbox) == 1
    assert Invitation.objects.get().sent_at is not None


@pytest.mark.django_db(transaction=True)
def test_processes_that_send_at_once_send_one(tenant: Tenant) -> None:
    invitation = invite(tenant)
    sent = at_once([partial(send, invitation.pk)] * 3)
    assert sorted(sent) == [False, False, True]


def test_a_tenants_name_cannot_add_a_header(tenant: Tenant) -> None:
    tenant.name = "Acme\nBcc: all@acme.test"
    tenant.save()
    assert send(invite(tenant).pk)
    assert "\n" not in mail.outbox[0].subject


def test_an_address_is_sent_so_many_links_a_minute_and_no_more(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "PER_EMAIL", 1)
    client = Client()
    client.force_login(user_create(email="owner@acme.test", password=PASSWORD, tenant=tenant))
    invitation = invite(tenant)
    page = client.post(f"/t/acme/invitations/{invitation.pk}/resend", follow=True).content.decode()
    assert "try again in a minute" in page
    assert client.post(f"/api/v1/invitations/{invitation.pk}/resend").status_code == 409
    assert Invitation.objects.get().nonce == invitation.nonce, "the link that was sent stays good"


def test_a_tenant_sends_so_many_links_a_minute(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "PER_TENANT", 1)
    client = Client()
    client.force_login(user_create(email="owner@acme.test", password=PASSWORD, tenant=tenant))
    made, refused = (
        client.post(
            "/api/v1/invitations", {"email": email, "role": "viewer"}, content_type="application/json"
        )
        for email in ("a@acme.test", "b@acme.test")
    )
    assert (made.status_code, refused.status_code) == (201, 409)
    assert "1 invitations can be sent per minute" in refused.content.decode()
    assert not Invitation.objects.filter(email="b@acme.test").exists()


def test_an_address_is_sent_so_many_links_a_day(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "PER_EMAIL_DAILY", 1)
    invitation = invite(tenant)
    with pytest.raises(ConflictError, match="tomorrow"):
        invitation_resend(invitation=invitation)


def test_invitations_by_rest(tenant: Tenant) -> None:
    client = Client()
    client.force_login(user_create(email="owner@acme.test", password=PASSWORD, tenant=tenant))
    body = {"email": "new@acme.test", "role": "viewer"}
    made = client.post("/api/v1/invitations", body, content_type="application/json")
    assert made.status_code == 201
    assert set(made.json()) == {"id", "email", "role", "created_at", "expires_at", "sent_at"}
    url = f"/api/v1/invitations/{made.json()['id']}"
    before = Invitation.objects.get().nonce
    assert client.post(f"{url}/resend").status_code == 200
    assert Invitation.objects.get().nonce != before
    assert client.delete(url).status_code == 204
    assert client.get(url).status_code == 404
    assert client.get("/api/v1/invitations").json()["results"] == []
