"""Who calls the REST API: a person with a session, or a program with an API key."""

from __future__ import annotations

from dataclasses import dataclass

from rest_framework import authentication, exceptions
from rest_framework.request import Request

from controlplane.tenants.models import ApiKey
from controlplane.tenants.selectors import api_key_verify


@dataclass(frozen=True, slots=True)
class KeyHolder:
    """Stands as `request.user` when a key authenticates: never staff, nobody in particular."""

    public_id: str
    is_authenticated: bool = True
    is_active: bool = True
    is_staff: bool = False
    pk: None = None


class ApiKeyAuthentication(authentication.BaseAuthentication):
    """`Authorization: Bearer gw_<public id>_<secret>`; `request.auth` is the ApiKey."""

    def authenticate(self, request: Request) -> tuple[KeyHolder, ApiKey] | None:
        scheme, _, text = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        api_key = api_key_verify(text=text.strip())
        if api_key is None:
            raise exceptions.AuthenticationFailed("this API key is unknown, revoked or expired: make another")
        return KeyHolder(api_key.pk), api_key

    def authenticate_header(self, request: Request) -> str:
        return 'Bearer realm="graftwork"'
