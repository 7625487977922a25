"""Authenticates callers of the REST API by API key; people use Django's sessions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from django.utils import timezone
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework import authentication, exceptions
from rest_framework.permissions import SAFE_METHODS
from rest_framework.request import Request

from contracts.addresses import Networks
from controlplane.platform.audit.origin import Actor
from controlplane.platform.http.addresses import request_address, request_client
from controlplane.platform.http.throttling import take
from controlplane.tenants.models import ApiKey, StaffToken, User
from controlplane.tenants.selectors import api_key_verify
from controlplane.tenants.services import api_keys_touch
from controlplane.tenants.services.staff_tokens import PREFIX, staff_token_verify

_NOTED_EVERY: Final = timedelta(minutes=1)
_GUESSES: Final = 60
"""Most wrong keys a minute from one address."""


@dataclass(frozen=True, slots=True)
class KeyHolder:
    """The `request.user` of a request with an API key: never staff, and no person."""

    public_id: str
    is_authenticated: bool = True
    is_active: bool = True
    is_staff: bool = False
    pk: None = None

    def audit_actor(self) -> Actor:
        return Actor("key", self.public_id, f"gw_{self.public_id}_...")


class ApiKeyAuthentication(authentication.BaseAuthentication):
    """`Authorization: Bearer gw_<public id>_<secret>`; `request.auth` is the ApiKey."""

    def authenticate(self, request: Request) -> tuple[KeyHolder, ApiKey] | None:
        scheme, _, text = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        api_key = api_key_verify(text=text.strip())
        if api_key is None:
            raise _refusal(request, "this API key is unknown, revoked or expired: create a new one")
        if api_key.allowed_networks is not None:
            _check_address(request, Networks(api_key.allowed_networks))
        now = timezone.now()
        if api_key.last_used_at is None or now - api_key.last_used_at > _NOTED_EVERY:
            api_keys_touch(used={api_key.pk: now})
        return KeyHolder(api_key.pk), api_key

    def authenticate_header(self, request: Request) -> str:
        return 'Bearer realm="graftwork"'


class StaffTokenAuthentication(authentication.BaseAuthentication):
    """`Authorization: Bearer gs_<public id>_<secret>`; `request.auth` is the StaffToken."""

    def authenticate(self, request: Request) -> tuple[User, StaffToken] | None:
        scheme, _, text = request.headers.get("Authorization", "").partition(" ")
        text = text.strip()
        if scheme.lower() != "bearer" or not text.startswith(f"{PREFIX}_"):
            return None
        token = staff_token_verify(text=text)
        if token is None:
            raise _refusal(
                request, "this staff token is unknown, revoked or expired, or its owner is no active staff"
            )
        # Refused here for every route, also for those of a tenant to which the person belongs.
        if token.scope != StaffToken.Scope.WRITE and request.method not in SAFE_METHODS:
            raise exceptions.PermissionDenied("this staff token has scope read: use one with scope write")
        return token.user, token

    def authenticate_header(self, request: Request) -> str:
        return 'Bearer realm="graftwork"'


class StaffTokenScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """How staff tokens stand in the OpenAPI schema; drf-spectacular finds it."""

    target_class = StaffTokenAuthentication
    name = "staffToken"

    def get_security_definition(self, auto_schema: Any) -> dict[str, Any]:
        return {"type": "http", "scheme": "bearer", "description": "A staff member's personal access token."}


def _refusal(request: Request, text: str) -> exceptions.APIException:
    """Return the error for a wrong secret.

    Only wrong ones are counted, per address, so that others' guesses never block a valid one.
    """
    if wait := take(f"guess:{request_client(request)}", per_minute=_GUESSES):
        return exceptions.Throttled(wait)
    return exceptions.AuthenticationFailed(text)


class ApiKeyScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """How API keys stand in the OpenAPI schema; drf-spectacular finds it."""

    target_class = ApiKeyAuthentication
    name = "apiKey"

    def get_security_definition(self, auto_schema: Any) -> dict[str, Any]:
        return {"type": "http", "scheme": "bearer", "description": "An API key with scope `manage`."}


def _check_address(request: Request, networks: Networks) -> None:
    address = request_address(request)
    if address not in networks:
        raise exceptions.PermissionDenied(f"this API key cannot be used from {address or 'this address'}")
