"""Access checks: requests must address the server by an allowed name, and `/_local` needs a token."""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Collection
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

ADMIN: Final = "/_local/"
HEALTH: Final = "/_local/health"
_HOST: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9_.-]+))(?::\d{1,5})?")


def check_callers(allowed_hosts: Collection[str], admin_token: str | None) -> Middleware:
    """Return the middleware that refuses foreign `Host` headers and admin requests without the token.

    A page whose name was rebound to this server's address (DNS rebinding) sends that name as `Host`.

    Args:
        allowed_hosts: names besides `localhost` and IP addresses; their subdomains are allowed too, since
            S3 clients put a bucket's name before the host.
        admin_token: None switches the admin routes off.
    """
    names = ("localhost", *(name.lower() for name in allowed_hosts))

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        hosts = request.headers.getall("Host", [])
        if len(hosts) != 1 or not _is_own(hosts[0], names):
            raise web.HTTPForbidden(
                text=f"this server is not {', '.join(hosts)[:200]!r}: add the name to allowed_hosts"
            )
        resource = request.match_info.route.resource
        if resource is not None and resource.canonical.startswith(ADMIN) and resource.canonical != HEALTH:
            _check_token(request, admin_token)
        return await handler(request)

    return check


def _is_own(host: str, names: Collection[str]) -> bool:
    match = _HOST.fullmatch(host)
    if match is None:
        return False
    name = (match[1] or match[2]).lower()
    try:
        # A page served from an IP address has no name that could be rebound.
        ipaddress.ip_address(name)
    except ValueError:
        return match[1] is None and any(name == own or name.endswith(f".{own}") for own in names)
    return True


def _check_token(request: web.Request, token: str | None) -> None:
    if token is None:
        raise web.HTTPForbidden(
            text="the admin routes are off: set admin_token or SAGEMAKER_LOCAL_ADMIN_TOKEN"
        )
    given = request.headers.get("Authorization", "").encode(errors="surrogateescape")
    if not hmac.compare_digest(given, f"Bearer {token}".encode()):
        raise web.HTTPUnauthorized(
            text="admin routes take `Authorization: Bearer <admin token>`",
            headers={"WWW-Authenticate": 'Bearer realm="sagemaker_local"'},
        )
