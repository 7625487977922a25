"""What django-allauth is told: who may make an account, where a request comes from, how secrets rest."""

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
"""Attempts a minute on one account, from all networks, by browsers that have never logged in to it."""
_NETWORK_BITS: Final = 24
"""Of an IPv4 address, by which attempts on an account are counted; of IPv6 the /64."""


class AccountAdapter(DefaultAccountAdapter):  # type: ignore[misc]
    """Accounts are made by staff, by invitations and by the operator's identity provider; nobody signs up."""

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        return False

    def get_client_ip(self, request: HttpRequest) -> str:
        """What log-in attempts are counted by: the address that our own proxies tell, or nobody else."""
        return str(request_address(request) or "unknown")

    def pre_authenticate(self, request: HttpRequest, **credentials: Any) -> None:
        """Counts the attempt: of a browser that has logged in to this account before for itself, of others by
        account and network, and by account in all."""
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
        # Not before: hashing takes long.
        transaction_begin()
        user.save()


def _network(request: HttpRequest) -> str:
    client = request_client(request)
    return str(
        ip_network((client, _NETWORK_BITS), strict=False) if isinstance(client, IPv4Address) else client
    )


class SocialAdapter(DefaultSocialAccountAdapter):  # type: ignore[misc]
    """People of the operator's identity provider: their verified address is who they are here."""

    def get_requests_session(self) -> requests.Session:
        """For the provider's configuration, keys, tokens and user information."""
        return ProviderSession()

    def is_open_for_signup(self, request: HttpRequest, sociallogin: SocialLogin) -> bool:
        return True

    def authenticate_by_email(self, sociallogin: SocialLogin) -> Any:
        """Some providers tell `email_verified` as text, of which "false" is as true as any."""
        for item in sociallogin.email_addresses:
            item.verified = item.verified is True or item.verified == "true"
        return super().authenticate_by_email(sociallogin)

    def pre_social_login(self, request: HttpRequest, sociallogin: SocialLogin) -> None:
        """Refuses who has no verified address: it would be anybody's that they type in there."""
        transaction_begin()
        if not sociallogin.is_existing and not any(item.verified for item in sociallogin.email_addresses):
            raise ImmediateHttpResponse(render(request, "socialaccount/unverified.html", status=403))

    @transaction.atomic
    def save_user(self, request: HttpRequest, sociallogin: SocialLogin, form: Any = None) -> User:
        user: User = super().save_user(request, sociallogin, form)
        told = {"email": user.email, "is_staff": False, "by": sociallogin.account.provider}
        with every_row():
            audit_record(tenant="", action="user.create", target=user, after=told)
        return user


class MfaAdapter(DefaultMFAAdapter):  # type: ignore[misc]
    """Authenticator secrets and recovery codes rest sealed under GRAFTWORK_SEALING_KEYS."""

    def encrypt(self, text: str) -> str:
        return seal(text, place=_TOTP_PLACE)

    def decrypt(self, encrypted_text: str) -> str:
        return unseal(encrypted_text, place=_TOTP_PLACE)
