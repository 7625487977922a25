"""The client address of a request."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_network

from django.conf import settings
from django.http import HttpRequest
from rest_framework.request import Request

from contracts.addresses import Address, Network, Networks, client_address


def request_client(request: Request | HttpRequest) -> Address | Network | None:
    """Return the client for rate limits: the address, or its /64 for IPv6, which one client controls."""
    address = request_address(request)
    return ip_network((address, 64), strict=False) if isinstance(address, IPv6Address) else address


def request_address(request: Request | HttpRequest) -> Address | None:
    """Return the client's address, past GRAFTWORK_TRUSTED_PROXIES only; None if unknown."""
    forwarded = request.headers.get("X-Forwarded-For", "")
    proxies = settings.GRAFTWORK.trusted_proxies
    return client_address(request.META.get("REMOTE_ADDR", ""), [forwarded] if forwarded else [], proxies)


def peer_is_trusted(request: Request | HttpRequest) -> bool:
    """Return True if the request came through a trusted proxy, whose headers may be used."""
    return (
        client_address(request.META.get("REMOTE_ADDR", ""), [], Networks())
        in settings.GRAFTWORK.trusted_proxies
    )
