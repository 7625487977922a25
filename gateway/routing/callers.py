"""Authenticates and authorizes callers by API key, against one immutable route table."""

from __future__ import annotations

import hashlib
import hmac
import time
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from contracts.addresses import Networks, client_address
from contracts.keys import KEY_PREFIX, KeyRoute, KeyScope
from contracts.route_table import RouteTable
from gateway.errors import AddressNotAllowed, EndpointNotAllowed, InvalidApiKey, TenantSuspended
from gateway.http.asgi import Scope, bearer, header_values

_NOBODY: Final = KeyRoute(tenant="", secret_sha256="0" * 64)
_API: Final = "/v1/"


@dataclass(slots=True)
class Caller:
    """The API key behind a request.

    Attributes:
        models: names that it may call, as `KeyScope.models`; None for all of its tenant.
    """

    key_id: str
    tenant: str
    project: str
    models: frozenset[str] | None = None


class Authorizer:
    """Admits callers by their key and its restrictions.

    Args:
        proxies: proxies whose X-Forwarded-For is trusted.
    """

    def __init__(self, proxies: Networks) -> None:
        self._proxies = proxies

    def authorize(self, table: RouteTable, scope: Scope) -> Caller:
        """Return the caller of a request.

        Raises:
            InvalidApiKey: unknown, wrong, revoked or expired: the message does not say which.
            TenantSuspended: the key is valid, but its tenant is suspended.
            AddressNotAllowed, EndpointNotAllowed: the key is valid, but not for this address or endpoint.
        """
        key_id, key = authenticate(table, bearer(scope))
        if key.scope is None:
            return Caller(key_id, key.tenant, key.project)
        rules = _rules(key.scope)
        if rules.networks is not None:
            self._check_address(rules.networks, scope)
        endpoint = _endpoint(scope["path"])
        if rules.endpoints is not None and endpoint not in rules.endpoints:
            allowed = ", ".join(_API + name for name in sorted(rules.endpoints))
            raise EndpointNotAllowed(
                f"This API key may not call {_API}{endpoint}. It may call {allowed}. Use another key, or ask "
                "an administrator of your tenant to change this key's endpoints."
            )
        return Caller(key_id, key.tenant, key.project, rules.models)

    def _check_address(self, networks: Networks, scope: Scope) -> None:
        peer = scope.get("client")
        forwarded = header_values(scope, b"x-forwarded-for")
        address = client_address(peer[0] if peer else "", forwarded, self._proxies)
        if address not in networks:
            client = "An unknown address" if address is None else f"The address {address}"
            raise AddressNotAllowed(
                f"{client} may not use this API key. Call from an allowed network, or ask an administrator "
                "of your tenant to change the key's networks."
            )


@dataclass(frozen=True, slots=True)
class _Rules:
    models: frozenset[str] | None
    endpoints: frozenset[str] | None
    networks: Networks | None


@lru_cache(maxsize=1 << 16)
def _rules(scope: KeyScope) -> _Rules:
    """Return a scope's restrictions as sets, built once per scope."""
    return _Rules(
        None if scope.models is None else frozenset(scope.models),
        None if scope.endpoints is None else frozenset(scope.endpoints),
        None if scope.networks is None else Networks(scope.networks),
    )


def _endpoint(path: str) -> str:
    name = path.removeprefix(_API)
    return "models" if name.startswith("models/") else name


def authenticate(table: RouteTable, bearer: str) -> tuple[str, KeyRoute]:
    """Return public id and entry of the API key in `bearer`.

    The secret is compared as a digest in constant time, with both secrets of a key that is being rotated. An
    unknown public id costs as much as a wrong secret.

    Raises:
        InvalidApiKey: unknown, wrong or expired: the message does not say which.
        TenantSuspended: the key is valid, but its tenant is suspended.
    """
    prefix, _, rest = bearer.partition("_")
    key_id, _, secret = rest.partition("_")
    key = table.keys.get(key_id, _NOBODY)
    digest = hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()
    right = hmac.compare_digest(digest, key.secret_sha256)
    if key.old is not None:
        right |= hmac.compare_digest(digest, key.old.sha256) & (time.time() < key.old.until)
    expired = key.expires_at is not None and key.expires_at <= time.time()
    if not right or expired or key is _NOBODY or prefix != KEY_PREFIX or key.tenant not in table.tenants:
        raise InvalidApiKey(
            # The text begins with OpenAI's own words, by which litellm recognises the refusal.
            "Incorrect API key provided, or a revoked or expired one. Send `Authorization: Bearer gw_...` "
            "with a key of your tenant; keys are made in the web UI under Keys."
        )
    if table.tenants[key.tenant].suspended:
        raise TenantSuspended(
            f"Tenant {key.tenant} of this API key is suspended, so calls are refused. Ask your operator; the "
            "tenant's pages in the web UI show the date and the reason."
        )
    return key_id, key
