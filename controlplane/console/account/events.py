"""Audit records of account events: log-ins, log-outs, passwords, second factors, identity providers.

Django and allauth send signals. For factors and providers the rows' own signals are used: allauth sends its
signals after the commit, when a record can no longer be refused together with its change. Each tenant of the
person gets the record. Events of staff, and of people without a tenant, go to the platform's own log.
"""

from __future__ import annotations

from typing import Any, Final

from allauth.account.internal.flows.login import get_authentication_records
from allauth.account.signals import password_changed, password_reset, password_set
from allauth.mfa.models import Authenticator
from allauth.mfa.signals import authentication_failed
from allauth.socialaccount.models import SocialAccount
from django.contrib.auth.signals import user_logged_in, user_logged_out, user_login_failed
from django.db import transaction
from django.db.models.signals import post_delete, post_save
from django.dispatch import receiver
from django.http import HttpRequest

from controlplane.platform.audit.origin import answers_a_request
from controlplane.platform.audit.services import audit_record
from controlplane.platform.http.throttling import take
from controlplane.platform.row_security.scope import every_row
from controlplane.tenants.models import User
from controlplane.tenants.selectors import tenant_ids_of, user_by_email

_STRANGERS: Final = 60
"""Failed log-ins a minute with unknown addresses that are recorded, since anyone can send any number."""


@receiver(user_logged_in)
def _logged_in(sender: Any, request: HttpRequest, user: User, **_: Any) -> None:
    methods = [_method(entry) for entry in get_authentication_records(request, user)]
    _record(user, "user.login", after={"methods": methods or [_entry_link(request)]})


@receiver(user_logged_out)
def _logged_out(sender: Any, request: HttpRequest, user: User | None, **_: Any) -> None:
    if user is not None:
        _record(user, "user.logout")


@receiver(user_login_failed)
def _login_failed(sender: Any, credentials: dict[str, Any], **_: Any) -> None:
    """Record a wrong password. The typed address is recorded only if it is an account's, since people also
    type passwords into that field."""
    email = str(credentials.get("email") or credentials.get("username") or "").strip().lower()
    user = user_by_email(email=email) if email else None
    if user is not None:
        _record(user, "user.login_failed", after={"method": "password", "active": user.is_active})
    elif not take("audit:strangers", per_minute=_STRANGERS):
        _record(User(), "user.login_failed", after={"method": "password", "known": False})


@receiver(authentication_failed)
def _factor_failed(sender: Any, user: User, authenticator: Authenticator, **_: Any) -> None:
    _record(user, "user.login_failed", after={"method": authenticator.type})


@receiver(password_changed)
def _password_changed(sender: Any, user: User, **_: Any) -> None:
    _record(user, "user.password_change")


@receiver(password_set)
def _password_set(sender: Any, user: User, **_: Any) -> None:
    _record(user, "user.password_set")


@receiver(password_reset)
def _password_reset(sender: Any, user: User, **_: Any) -> None:
    _record(user, "user.password_reset", after={"by": "a link sent by e-mail"})


@receiver(post_save, sender=Authenticator)
def _factor_added(sender: Any, instance: Authenticator, created: bool, **_: Any) -> None:
    if created:
        _record(instance.user, "user.factor_add", after={"type": instance.type})


@receiver(post_delete, sender=Authenticator)
def _factor_removed(sender: Any, instance: Authenticator, **_: Any) -> None:
    _record(instance.user, "user.factor_remove", before={"type": instance.type})


@receiver(post_save, sender=SocialAccount)
def _provider_connected(sender: Any, instance: SocialAccount, created: bool, **_: Any) -> None:
    if created:
        _record(instance.user, "user.provider_connect", after=_identity(instance))


@receiver(post_delete, sender=SocialAccount)
def _provider_disconnected(sender: Any, instance: SocialAccount, **_: Any) -> None:
    _record(instance.user, "user.provider_disconnect", before=_identity(instance))


def _identity(account: SocialAccount) -> dict[str, str]:
    return {"provider": account.provider, "uid": account.uid}


def _entry_link(request: HttpRequest) -> str:
    """Return the kind of link by which a person was logged in without a password or provider."""
    match = request.resolver_match
    return "sign_up" if match and match.view_name == "console:sign-up-confirm" else "invitation"


def _method(entry: dict[str, Any]) -> str:
    """Return `password`, `totp`, `recovery_codes`, or the identity provider's id."""
    return str(entry.get("type") or entry.get("provider") or entry.get("method"))


def _record(
    user: User, action: str, *, before: dict[str, Any] | None = None, after: dict[str, Any] | None = None
) -> None:
    if not answers_a_request():
        return  # tests and commands log people in without a request
    with transaction.atomic(), every_row():
        logs = tenant_ids_of(user=user)
        # Sorted by name, the order in which every writer to several logs locks their chains.
        for log in ["", *logs] if user.is_staff or not logs else logs:
            audit_record(tenant=log, action=action, target=user, before=before, after=after)
