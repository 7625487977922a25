"""AWS Signature Version 4, byte for byte as botocore writes it.

Source: "Authenticating Requests (AWS Signature Version 4)", AWS General Reference.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final
from urllib.parse import quote, urlsplit

_ALGORITHM: Final = "AWS4-HMAC-SHA256"
_UNSIGNED: Final = frozenset(
    {
        "baggage",
        "connection",
        "expect",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "traceparent",
        "tracestate",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "user-agent",
        "x-amzn-trace-id",
    }
)
"""Headers that proxies change, and so are not signed."""
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Credentials:
    """An access key; `token` is None for a permanent key. Secrets stay out of its repr."""

    access_key: str
    secret_key: str = field(repr=False)
    token: str | None = field(default=None, repr=False)


class Signer:
    """Signs requests to one service in one region."""

    __slots__ = ("_key", "_key_of", "_region", "_service")

    def __init__(self, service: str, region: str) -> None:
        self._service = service
        self._region = region
        self._key_of: tuple[str, str] | None = None
        self._key = b""

    def headers(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes,
        credentials: Credentials,
        *,
        now: float | None = None,
    ) -> dict[str, str]:
        """Return the headers to add to `headers`: X-Amz-Date, Authorization, X-Amz-Security-Token.

        Args:
            url: as it will be sent, percent-encoded.
            headers: all other sent headers except Host; no name twice in any case.
            now: Unix seconds; None reads the clock.
        """
        timestamp = _timestamp(time.time() if now is None else now)
        host, path, query = _canonical_url(url)
        added = {"X-Amz-Date": timestamp}
        if credentials.token:
            added["X-Amz-Security-Token"] = credentials.token
        signed = {"host": host}
        for name, value in (*headers.items(), *added.items()):
            if (lower := name.lower()) not in _UNSIGNED:
                signed[lower] = " ".join(value.split())
        names, lines = _canonical_headers(signed)
        digest = hashlib.sha256(body).hexdigest()
        canonical = f"{method.upper()}\n{path}\n{query}\n{lines}\n{names}\n{digest}"
        scope = self._scope(timestamp)
        added["Authorization"] = (
            f"{_ALGORITHM} Credential={credentials.access_key}/{scope}, SignedHeaders={names}, "
            f"Signature={self._signature(timestamp, scope, canonical, credentials)}"
        )
        return added

    def presigned(
        self, method: str, url: str, credentials: Credentials, *, expires: int, now: float | None = None
    ) -> str:
        """Return `url` signed for `expires` seconds, for a request without body or other headers."""
        timestamp = _timestamp(time.time() if now is None else now)
        scope = self._scope(timestamp)
        parameters = {
            "X-Amz-Algorithm": _ALGORITHM,
            "X-Amz-Credential": f"{credentials.access_key}/{scope}",
            "X-Amz-Date": timestamp,
            "X-Amz-Expires": str(expires),
            "X-Amz-SignedHeaders": "host",
        }
        if credentials.token is not None:
            parameters["X-Amz-Security-Token"] = credentials.token
        encoded = "&".join(f"{name}={quote(value, safe='-._~')}" for name, value in parameters.items())
        url += ("&" if urlsplit(url).query else "?") + encoded
        host, path, query = _canonical_url(url)
        empty = hashlib.sha256().hexdigest()
        canonical = f"{method.upper()}\n{path}\n{query}\nhost:{host}\n\nhost\n{empty}"
        return f"{url}&X-Amz-Signature={self._signature(timestamp, scope, canonical, credentials)}"

    def _scope(self, timestamp: str) -> str:
        return f"{timestamp[:8]}/{self._region}/{self._service}/aws4_request"

    def _signature(self, timestamp: str, scope: str, canonical: str, credentials: Credentials) -> str:
        digest = hashlib.sha256(canonical.encode()).hexdigest()
        text = f"{_ALGORITHM}\n{timestamp}\n{scope}\n{digest}"
        return hmac.digest(
            self._day_key(timestamp[:8], credentials.secret_key), text.encode(), "sha256"
        ).hex()

    def _day_key(self, day: str, secret: str) -> bytes:
        """Return the day's signing key, cached: it takes four of a signature's five keyed digests."""
        if self._key_of != (day, secret):
            key = f"AWS4{secret}".encode()
            for part in (day, self._region, self._service, "aws4_request"):
                key = hmac.digest(key, part.encode(), "sha256")
            self._key, self._key_of = key, (day, secret)
        return self._key


@lru_cache(maxsize=2)
def _format(second: int) -> str:
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(second))


def _timestamp(now: float) -> str:
    return _format(int(now))


def _canonical_headers(signed: Mapping[str, str]) -> tuple[str, str]:
    names = sorted(signed)
    return ";".join(names), "".join(f"{name}:{signed[name]}\n" for name in names)


@lru_cache(maxsize=1024)
def _canonical_url(url: str) -> tuple[str, str, str]:
    """Return host header, path and query as signed: the path encoded once more, the query sorted."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if ":" in host:
        host = f"[{host}]"
    if parts.port is not None and parts.port != _DEFAULT_PORTS.get(parts.scheme):
        host = f"{host}:{parts.port}"
    pairs = sorted(pair.partition("=")[::2] for pair in parts.query.split("&")) if parts.query else []
    query = "&".join(f"{name}={value}" for name, value in pairs)
    return host, quote(_without_dots(parts.path), safe="/~"), query


def _without_dots(path: str) -> str:
    """Resolve dots by RFC 3986, 5.2.4, and merge consecutive slashes, as AWS does."""
    kept: list[str] = []
    for segment in path.split("/"):
        if segment == "..":
            del kept[-1:]
        elif segment not in ("", "."):
            kept.append(segment)
    head = "/" if path.startswith("/") or not path else ""
    tail = "/" if path.endswith("/") and kept else ""
    return head + "/".join(kept) + tail
