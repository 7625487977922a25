"""Requests to URLs given by tenants, all sent through `outgoing_client`.

The guard sits where connections are made, so it covers redirects, retries and kept-alive connections of any
library that takes the client. A name is resolved once, all its addresses are checked, and the connection goes
to a checked address: a different second DNS answer has no effect. TLS still verifies the name.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Final

import certifi
import httpcore2
import httpx2
from django.conf import settings

from contracts.addresses import Address, Networks
from controlplane.errors import InvalidInputError, OutgoingRefusedError
from controlplane.platform.http.deadline import Deadline, DeadlinedStream, left
from controlplane.platform.open_endpoints import OpenEndpoints

_METADATA: Final = Networks(["168.63.129.16", "192.0.0.0/24"])
"""Public addresses where a cloud's metadata services answer (Azure's, Oracle's)."""
HEAD_S: Final = 60.0
"""Seconds until the response's head, including all redirects; a body may take longer."""
_GLOBAL_IPV6: Final = IPv6Network("2000::/3")
_IPV4_INSIDE: Final = tuple(ip_network(text) for text in ("2001::/32", "2002::/16"))
"""Teredo and 6to4 embed an unchecked IPv4 address. NAT64's prefixes lie outside of 2000::/3."""


def is_public(address: Address) -> bool:
    """Return True for a public internet address that is no cloud's metadata service."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return is_public(address.ipv4_mapped)
        if address not in _GLOBAL_IPV6 or any(address in network for network in _IPV4_INSIDE):
            return False
    return address.is_global and not address.is_multicast and address not in _METADATA


def check_outgoing_url(url: str, *, field: str) -> str:
    """Return the normalized URL. The host's addresses are checked when connecting, not here.

    Raises:
        InvalidInputError: not a URL, not https (unless the operator allows the endpoint), contains a user
            name or a fragment, or names a non-public address.
    """
    try:
        if not url.isascii() or not url.isprintable() or set(url) & set(' \\"<>^`{|}'):
            raise ValueError("it contains characters that are not valid in a URL")
        parsed = httpx2.URL(url)
        if parsed.fragment:
            raise ValueError("it contains a fragment")
        _check_target(parsed)
    except (ValueError, httpx2.InvalidURL, OutgoingRefusedError) as error:
        raise InvalidInputError(f"{url[:200]!r} cannot be called: {error}", field=field) from error
    return str(parsed)


def outgoing_client(
    *, total: float = 60, timeout: float = 30, follow_redirects: bool = False, **options: Any
) -> httpx2.Client:
    """Return an HTTP client that reaches only the public internet and GRAFTWORK_OUTGOING_ALLOW.

    Use one client for many requests and close it. It reads no proxy or password from the environment. Bodies
    are unbounded: stream them (`iter_raw()` without a size, which would wait for whole chunks) up to a limit.

    Args:
        total: seconds for a whole request with redirects and body; at most HEAD_S of them for the head.
        timeout: seconds for each connect, read and write.
        options: other arguments of httpx2.Client, such as `headers`; no transport and no proxy.

    Its requests raise, beside httpx2.HTTPError:
        OutgoingRefusedError: the URL, a redirect, or one of the name's addresses is not allowed.
    """
    return httpx2.Client(
        transport=_GuardedTransport(total),
        timeout=timeout,
        follow_redirects=follow_redirects,
        max_redirects=5,
        trust_env=False,
        **options,
    )


class _GuardedTransport(httpx2.HTTPTransport):
    """Checks the URL of each request and redirect, and connects through `_GuardedBackend`."""

    def __init__(self, total: float) -> None:
        super().__init__(verify=_tls(), trust_env=False)
        self._total = total
        # httpx has no argument for the network backend. test_outgoing.py fails if this has no effect.
        self._pool = httpcore2.ConnectionPool(
            ssl_context=_tls(), max_connections=20, keepalive_expiry=5, network_backend=_GuardedBackend()
        )

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        _check_target(request.url)
        deadline = Deadline.from_request(request, head=HEAD_S, total=self._total)
        response = super().handle_request(request)
        if not response.has_redirect_location:
            deadline.has_head()
        return response


class _GuardedBackend(httpcore2.SyncBackend):
    """Resolves a name once, checks all its addresses, and connects to one of them."""

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.NetworkStream:
        failed: Exception = httpcore2.ConnectError(f"{host} has no address")
        for address in _resolve(host, port):
            try:
                seconds = left(timeout, httpcore2.ConnectTimeout)
                return DeadlinedStream(
                    super().connect_tcp(address, port, seconds, local_address, socket_options)
                )
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failed = error
        raise failed

    def connect_unix_socket(self, *_: Any, **__: Any) -> httpcore2.NetworkStream:
        raise OutgoingRefusedError("a socket of this machine is not allowed")


def _resolve(host: str, port: int) -> list[str]:
    """Return the host's addresses. Raises OutgoingRefusedError if one is not allowed."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise httpcore2.ConnectError(f"{host} is not known to the DNS: {error}") from error
    opened = settings.GRAFTWORK.outgoing_allow
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    for address in map(ip_address, addresses):
        if not (opened.has_host(host, port) or _is_allowed(address, opened)):
            raise OutgoingRefusedError(
                f"{host} resolves to {address}, which is not a public internet address; an operator can "
                f"allow"
                " it in GRAFTWORK_OUTGOING_ALLOW"
            )
    return addresses


def _check_target(url: httpx2.URL) -> None:
    """Check the URL itself, without DNS. Raises OutgoingRefusedError."""
    opened, literal = settings.GRAFTWORK.outgoing_allow, _literal(url.host)
    port = {"https": 443, "http": 80}.get(url.scheme, 0) if url.port is None else url.port
    if url.scheme not in ("https", "http") or not url.host:
        raise OutgoingRefusedError("expected https://host/...")
    if not 0 < port < 65536:
        raise OutgoingRefusedError("a port must be from 1 to 65535")
    if url.userinfo:
        raise OutgoingRefusedError("a URL must not contain a user name or password")
    if opened.has_host(url.host, port):
        return
    if literal is not None and not _is_allowed(literal, opened):
        raise OutgoingRefusedError(f"{literal} is not a public internet address")
    if url.scheme == "http" and (literal is None or is_public(literal)):
        raise OutgoingRefusedError("only https:// is allowed")


def _is_allowed(address: IPv4Address | IPv6Address, opened: OpenEndpoints) -> bool:
    plain = getattr(address, "ipv4_mapped", None) or address
    return is_public(address) or opened.has_address(plain)


def _literal(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host.strip("[]"))
    except ValueError:
        return None


@lru_cache(maxsize=1)
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context(cafile=os.environ.get("SSL_CERT_FILE") or certifi.where())
