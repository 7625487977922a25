"""Account events are in the audit log: actor, action, address, no secret. Tested through the real pages."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from allauth.mfa.models import Authenticator
from allauth.socialaccount.models import SocialAccount
from django.contrib.auth.hashers import get_hasher
from django.core import mail
from django.core.mail.backends.locmem import EmailBackend
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from controlplane.console.account.provider_session import ProviderSession
from controlplane.platform.audit.models import AuditRecord
from controlplane.tenants.members.selectors import invitation_token
from controlplane.tenants.members.services import invitation_create
from controlplane.tenants.models import Membership, Tenant, User
from controlplane.tenants.services import user_create
from tests.controlplane.console.conftest import PASSWORD
from tests.controlplane.console.login import log_in, second_factor, sign_on

pytestmark = pytest.mark.django_db
NEW = {"password1": "another-battery-9", "password2": "another-battery-9"}


def events(tenant: str = "acme", action: str = "user.") -> list[AuditRecord]:
    """Oldest first, without the making of users."""
    found = AuditRecord.objects.filter(tenant=tenant, action__startswith=action)
    return list(found.exclude(action="user.create").order_by("number"))


def recorded_actions(tenant: str = "acme") -> list[tuple[str, Any]]:
    return [(record.action, record.after or record.before) for record in events(tenant)]


def test_a_login_and_a_logout(user: User) -> None:
    client = Client(headers={"User-Agent": "Firefox"})
    log_in(client)
    client.post("/logout")
    entered, left = events()
    assert (entered.action, entered.after) == ("user.login", {"methods": ["password"]})
    assert left.action == "user.logout"
    for record in (entered, left):
        assert (record.actor_kind, record.actor_name) == ("user", user.email)
        assert (record.target_type, record.target_id) == ("user", str(user.pk))
        assert (record.address, record.user_agent) == ("127.0.0.1", "Firefox")
        assert record.request_id


def test_a_wrong_password_is_told_of_whom_it_was_tried_on(user: User) -> None:
    log_in(Client(), "wrong-battery-staple")
    (failed,) = events()
    assert (failed.action, failed.actor_kind) == ("user.login_failed", "anonymous")
    assert (failed.target_name, failed.after) == (user.email, {"method": "password", "active": True})


def test_what_strangers_type_is_not_recorded(user: User) -> None:
    """People type passwords into the wrong field."""
    log_in(Client(), "x", "my-password-is@here.test")
    assert events() == []
    (failed,) = events("")
    assert (failed.action, failed.target_id, failed.target_name) == ("user.login_failed", "", "")
    assert failed.after == {"method": "password", "known": False}


def test_strangers_cannot_fill_the_log(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controlplane.console.account.events._STRANGERS", 3)
    for number in range(6):
        log_in(Client(), "x", f"{number}@here.test")
    assert len(events("")) == 3


def test_factors(user: User) -> None:
    client = Client()
    log_in(client)
    secret = second_factor(client)
    codes = client.get("/accounts/2fa/recovery-codes/download/").content.decode().split()
    client.post("/accounts/2fa/recovery-codes/generate/")
    client.post("/logout")
    log_in(client)
    client.post("/accounts/2fa/authenticate/", {"code": "000000"})
    fresh = Authenticator.objects.get(type="recovery_codes").wrap().get_unused_codes()
    client.post("/accounts/2fa/authenticate/", {"code": fresh[0]})
    asked = client.post("/accounts/2fa/totp/deactivate/", follow=True)
    client.post(asked.request["PATH_INFO"], {"password": PASSWORD, "code": fresh[1]})
    client.post("/accounts/2fa/totp/deactivate/")
    assert recorded_actions() == [
        ("user.login", {"methods": ["password"]}),
        ("user.factor_add", {"type": "totp"}),
        ("user.factor_add", {"type": "recovery_codes"}),
        ("user.factor_remove", {"type": "recovery_codes"}),
        ("user.factor_add", {"type": "recovery_codes"}),
        ("user.logout", None),
        ("user.login_failed", {"method": "totp"}),
        ("user.login", {"methods": ["password", "recovery_codes"]}),
        ("user.factor_remove", {"type": "totp"}),
        ("user.factor_remove", {"type": "recovery_codes"}),
    ]
    _holds_nothing_secret(PASSWORD, secret, *codes, *fresh)


def test_passwords(user: User) -> None:
    client = Client()
    log_in(client)
    client.post("/accounts/password/change/", {"oldpassword": PASSWORD, **NEW})
    client.post("/accounts/password/reset/", {"email": user.email})
    (path,) = re.findall(r"http://[^/]+(/accounts/password/reset/key/\S+)", str(mail.outbox[-1].body))
    visitor = Client()
    visitor.post(visitor.get(path)["Location"], {"password1": PASSWORD, "password2": PASSWORD})
    assert recorded_actions()[1:] == [
        ("user.password_change", None),
        ("user.password_reset", {"by": "a link sent by e-mail"}),
    ]
    assert [record.actor_kind for record in events()] == ["user", "user", "anonymous"]
    _holds_nothing_secret(PASSWORD, NEW["password1"])


def test_an_identity_provider_is_connected_and_disconnected(sso: Client, user: User) -> None:
    sign_on(sso, "known")
    account = SocialAccount.objects.get(user=user)
    sso.post("/accounts/3rdparty/", {"account": account.pk})
    identity = {"provider": "sso", "uid": "known"}
    assert recorded_actions() == [
        ("user.provider_connect", identity),
        ("user.login", {"methods": ["sso"]}),
        ("user.provider_disconnect", identity),
    ]


def test_who_sets_a_first_password_and_who_joins(sso: Client, tenant: Tenant) -> None:
    invitation = invitation_create(tenant=tenant, email="new@acme.test", role="viewer")
    path = f"/invitations/{invitation_token(invitation)}"
    sign_on(sso, "new", path)
    assert ("user.login", {"methods": ["sso"]}) in recorded_actions("")
    sso.post(path)
    sso.post("/accounts/password/set/", NEW)
    assert recorded_actions() == [("user.password_set", None)]
    other = invitation_create(tenant=tenant, email="other@acme.test", role="viewer")
    Client().post(f"/invitations/{invitation_token(other)}", {"password": PASSWORD})
    assert recorded_actions()[1:] == [("user.login", {"methods": ["invitation"]})]


def test_each_of_a_persons_tenants_has_the_record_and_the_platform_that_of_staff(
    user: User, other_tenant: Tenant
) -> None:
    Membership.objects.create(user=user, tenant=other_tenant)
    log_in(Client())
    assert [len(events(log)) for log in ("acme", "globex", "")] == [1, 1, 0]
    user_create(email="s@graft.test", password=PASSWORD, is_staff=True)
    log_in(Client(), email="s@graft.test")
    (record,) = events("")
    assert record.actor_kind == "staff"


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From when it is called on, no record can be written."""

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no room for a record")

    return partial(monkeypatch.setattr, "controlplane.console.account.events.audit_record", broken)


def test_a_provider_that_cannot_be_recorded_is_not_connected(
    sso: Client, user: User, full: Callable[[], None]
) -> None:
    full()
    sso.raise_request_exception = False
    assert sign_on(sso, "known").status_code == 500
    assert not SocialAccount.objects.exists()
    assert sso.get("/t/acme/keys/").status_code == 302


def test_a_factor_that_cannot_be_recorded_is_not_added(user: User, full: Callable[[], None]) -> None:
    client = Client(raise_request_exception=False)
    log_in(client)
    full()
    with pytest.raises(AssertionError):
        second_factor(client)
    assert not Authenticator.objects.exists()


def test_a_change_that_cannot_be_recorded_does_not_happen(user: User, full: Callable[[], None]) -> None:
    client = Client(raise_request_exception=False)
    log_in(client)
    full()
    answer = client.post("/accounts/password/change/", {"oldpassword": PASSWORD, **NEW})
    assert answer.status_code == 500
    assert User.objects.get().check_password(PASSWORD)


@pytest.mark.skipif(connection.vendor != "sqlite", reason="of SQLite's one lock")
@pytest.mark.django_db(transaction=True)
def test_what_takes_long_holds_no_lock(sso: Client, user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    """An atomic block is SQLite's write lock: not for pages, hashing, mail, nor the provider's answers."""
    seen: list[tuple[str, bool]] = []

    def watch(owner: type, name: str) -> None:
        real = getattr(owner, name)

        def watched(*arguments: Any, **options: Any) -> Any:
            seen.append((name, connection.in_atomic_block))
            return real(*arguments, **options)

        monkeypatch.setattr(owner, name, watched)

    watch(type(get_hasher()), "encode")
    watch(ProviderSession, "request")
    watch(EmailBackend, "send_messages")
    paths = ("login/", "password/reset/", "password/change/", "2fa/", "2fa/totp/activate/", "3rdparty/")
    client = Client()

    def transactions() -> list[str]:
        with CaptureQueriesContext(connection) as queries:
            for path in paths:
                client.get(f"/accounts/{path}")
        return [query["sql"] for query in queries if query["sql"].startswith("BEGIN")]

    assert transactions() == []
    client.post("/accounts/login/", {"login": user.email, "password": PASSWORD})
    assert transactions() == []
    Client().post("/accounts/login/", {"login": user.email, "password": "wrong-battery-staple"})
    client.post("/accounts/password/change/", {"oldpassword": PASSWORD, **NEW})
    Client().post("/accounts/password/reset/", {"email": user.email})
    sign_on(sso, "known")
    assert {name for name, _ in seen} == {"encode", "request", "send_messages"}
    assert [name for name, is_locked in seen if is_locked] == []
    assert [action for action, _ in recorded_actions()] == [
        "user.login",
        "user.login_failed",
        "user.password_change",
        "user.provider_connect",
        "user.login",
    ]


def test_logging_somebody_in_without_their_doing_is_no_event(user: User) -> None:
    Client().force_login(user)
    assert events() == []


def _holds_nothing_secret(*secrets: str) -> None:
    fields = ("before", "after", "target_name", "actor_name")
    text = json.dumps(list(AuditRecord.objects.values_list(*fields)))
    assert [secret for secret in secrets if secret in text] == []
