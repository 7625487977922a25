"""Where a request comes from."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_network

from django.conf import settings
from django.http import HttpRequest
from rest_framework.request import Request

from contracts.addresses import Address, Network, Networks, client_address


def request_client(request: Request | HttpRequest) -> Address | Network | None:
    """Whom to count: of IPv6 the /64, all of which one client has."""
    address = request_address(request)
    return ip_network((address, 64), strict=False) if isinstance(address, IPv6Address) else address


def request_address(request: Request | HttpRequest) -> Address | None:
    """The client's address, as GRAFTWORK_TRUSTED_PROXIES and nobody else may tell it; None if unknown."""
    forwarded = request.headers.get("X-Forwarded-For", "")
    proxies = settings.GRAFTWORK.trusted_proxies
    return client_address(request.META.get("REMOTE_ADDR", ""), [forwarded] if forwarded else [], proxies)


def peer_is_trusted(request: Request | HttpRequest) -> bool:
    """Whether the request came through a proxy of ours, whose headers are believed."""
    return (
        client_address(request.META.get("REMOTE_ADDR", ""), [], Networks())
        in settings.GRAFTWORK.trusted_proxies
    )
