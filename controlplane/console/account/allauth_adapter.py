"""Adapters for django-allauth: sign-up policy, client addresses, audit transactions, sealed secrets."""

from __future__ import annotations

from ipaddress import IPv4Address, ip_network
from typing import Any, Final

import requests
from allauth.account.adapter import DefaultAccountAdapter
from allauth.core.exceptions import ImmediateHttpResponse
from allauth.mfa.adapter import DefaultMFAAdapter
from allauth.socialaccount.adapter import DefaultSocialAccountAdapter
from allauth.socialaccount.models import SocialLogin
from django.db import transaction
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.shortcuts import render

from controlplane.console.account.known_browser import known_browser, remember_browser
from controlplane.console.account.provider_session import ProviderSession
from controlplane.console.account.transaction import transaction_begin
from controlplane.platform.audit.services import audit_record
from controlplane.platform.http.addresses import request_address, request_client
from controlplane.platform.http.throttling import take
from controlplane.platform.row_security.scope import every_row
from controlplane.platform.sealing import seal, unseal
from controlplane.tenants.models import User

_TOTP_PLACE: Final = "mfa.authenticator"
_STRANGERS: Final = 30
"""Attempts a minute on one account, from all networks, by browsers that never logged in to it."""
_NETWORK_BITS: Final = 24
"""IPv4 prefix length by which attempts on an account are counted; IPv6 uses /64."""


class AccountAdapter(DefaultAccountAdapter):  # type: ignore[misc]
    """Accounts come from staff, invitations and the identity provider; allauth's sign-up is closed."""

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        return False

    def get_client_ip(self, request: HttpRequest) -> str:
        """Return the client address from our own proxies, by which log-in attempts are limited."""
        return str(request_address(request) or "unknown")

    def pre_authenticate(self, request: HttpRequest, **credentials: Any) -> None:
        """Limit log-in attempts.

        A browser known to this account is counted by itself. Others are counted by account and network, and
        by account in total.
        """
        email = str(credentials.get("email", ""))
        if not known_browser(request, email) and take(f"log-in:{email.lower()}", per_minute=_STRANGERS):
            raise self.validation_error("too_many_login_attempts")
        super().pre_authenticate(request, **credentials)

    def _get_login_attempts_cache_key(self, request: HttpRequest, **credentials: Any) -> str:
        by = known_browser(request, str(credentials.get("email", ""))) or _network(request)
        return f"{super()._get_login_attempts_cache_key(request, **credentials)}:{by}"

    def post_login(self, request: HttpRequest, user: User, **details: Any) -> HttpResponseBase:
        response: HttpResponseBase = super().post_login(request, user, **details)
        remember_browser(request, response, user.email)
        return response

    def login(self, request: HttpRequest, user: User) -> None:
        transaction_begin()
        super().login(request, user)

    def logout(self, request: HttpRequest) -> None:
        transaction_begin()
        super().logout(request)

    def set_password(self, user: User, password: str) -> None:
        user.set_password(password)
        # Begin after the password was hashed, which takes long.
        transaction_begin()
        user.save()


def _network(request: HttpRequest) -> str:
    client = request_client(request)
    return str(
        ip_network((client, _NETWORK_BITS), strict=False) if isinstance(client, IPv4Address) else client
    )


class SocialAdapter(DefaultSocialAccountAdapter):  # type: ignore[misc]
    """Log-in by the operator's identity provider, where the verified address identifies the person."""

    def get_requests_session(self) -> requests.Session:
        """Return the session for the provider's configuration, keys, tokens and user information."""
        return ProviderSession()

    def is_open_for_signup(self, request: HttpRequest, sociallogin: SocialLogin) -> bool:
        return True

    def authenticate_by_email(self, sociallogin: SocialLogin) -> Any:
        """Accept only true or "true" as verified: some providers send text, and "false" is truthy."""
        for item in sociallogin.email_addresses:
            item.verified = item.verified is True or item.verified == "true"
        return super().authenticate_by_email(sociallogin)

    def pre_social_login(self, request: HttpRequest, sociallogin: SocialLogin) -> None:
        """Refuse a login without a verified address, since anyone can type any address at the provider."""
        transaction_begin()
        if not sociallogin.is_existing and not any(item.verified for item in sociallogin.email_addresses):
            raise ImmediateHttpResponse(render(request, "socialaccount/unverified.html", status=403))

    @transaction.atomic
    def save_user(self, request: HttpRequest, sociallogin: SocialLogin, form: Any = None) -> User:
        user: User = super().save_user(request, sociallogin, form)
        facts = {"email": user.email, "is_staff": False, "by": sociallogin.account.provider}
        with every_row():
            audit_record(tenant="", action="user.create", target=user, after=facts)
        return user


class MfaAdapter(DefaultMFAAdapter):  # type: ignore[misc]
    """Seals authenticator secrets and recovery codes under GRAFTWORK_SEALING_KEYS."""

    def encrypt(self, text: str) -> str:
        return seal(text, place=_TOTP_PLACE)

    def decrypt(self, encrypted_text: str) -> str:
        return unseal(encrypted_text, place=_TOTP_PLACE)
