"""A connection pool by origin: connections open on demand, and are reused while they are fresh."""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import socket
import ssl
from collections.abc import Mapping
from typing import Final, cast
from urllib.parse import urlsplit

import aiohappyeyeballs

from gateway.http.client.connection import Connection, Origin
from gateway.http.client.errors import Refused
from gateway.http.timeouts import Timeouts

CONNECT_SECONDS: Final = 3.0
"""Longest time for name resolution, connection and TLS together."""
KEEP_SECONDS: Final = 4.0
"""How long an idle connection is kept: shorter than servers do, which might close it during its next use.
vLLM and others on uvicorn close after 5 s."""
RESOLVED_SECONDS: Final = 10.0
_FAMILY_DELAY: Final = 0.25
_PORTS: Final = {"http": 80, "https": 443}

AddressInfo = tuple[int, int, int, str, tuple[str, int] | tuple[str, int, int, int]]


class HttpClient:
    """Sends requests.

    Args:
        tls: context that verifies `https://` servers; None for the system's authorities.
    """

    def __init__(self, *, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self._idle: dict[Origin, list[Connection]] = {}
        self._resolved: dict[Origin, tuple[float, list[AddressInfo]]] = {}
        self._resolving: dict[Origin, asyncio.Task[list[AddressInfo]]] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self._silences: dict[float, Timeouts[Connection]] = {}
        """By length in seconds, of which backends have a few."""
        self._closed = False

    async def post(self, url: str, data: bytes, headers: Mapping[str, str], *, silence: float) -> Connection:
        """Send a POST; see `send`."""
        return await self.send("POST", url, data, headers, silence=silence)

    async def send(
        self, method: str, url: str, data: bytes, headers: Mapping[str, str], *, silence: float
    ) -> Connection:
        """Send a request; return the connection on which the answer has begun. `release` must follow.

        Args:
            method: `POST` or `GET`, whose answers have a body.
            url: `http` or `https`, percent-encoded, sent as it is.
            silence: seconds to wait for each next piece of the answer.

        Raises:
            ValueError: a header is malformed.
            Refused, Broken, TimedOut: see `errors`.
        """
        try:
            origin, start = _target(method, url)
        except ValueError as error:
            raise Refused(str(error)) from error
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        if lines.count("\r") != len(headers) or lines.count("\n") != len(headers):
            raise ValueError("a header holds a line break")
        head = f"{start}{lines}content-length: {len(data)}\r\n\r\n".encode("latin-1")
        connection = self._take_idle(origin) or await self._connect(origin)
        try:
            connection.send(head + data, silence=silence, silences=self._timeouts(silence))
            await connection.head()
        except BaseException:
            connection.finish()
            raise
        return connection

    def release(self, connection: Connection) -> None:
        """End the exchange: keep the connection if its answer has been read, else cut it."""
        if not connection.finish():
            return
        if self._closed:
            connection.abort()
            return
        loop = asyncio.get_running_loop()
        connection.idle_since = loop.time()
        self._idle.setdefault(connection.origin, []).append(connection)
        if self._sweep is None:
            self._sweep = loop.call_later(KEEP_SECONDS, self._drop_old)

    def _timeouts(self, silence: float) -> Timeouts[Connection]:
        if (timeouts := self._silences.get(silence)) is None:
            timeouts = self._silences[silence] = Timeouts(silence, Connection.check_silence)
        return timeouts

    async def close(self) -> None:
        """Close idle connections; those in use close when they are released."""
        self._closed = True
        if self._sweep is not None:
            self._sweep.cancel()
        for connections in self._idle.values():
            for connection in connections:
                connection.abort()
        self._idle.clear()

    def _take_idle(self, origin: Origin) -> Connection | None:
        idle = self._idle.get(origin)
        oldest = asyncio.get_running_loop().time() - KEEP_SECONDS
        while idle:
            connection = idle.pop()
            if connection.usable and connection.idle_since > oldest:
                return connection
            connection.abort()
        return None

    def _drop_old(self) -> None:
        loop = asyncio.get_running_loop()
        before = loop.time() - KEEP_SECONDS
        for origin, kept in list(self._idle.items()):
            stay = [one for one in kept if one.usable and one.idle_since > before]
            for connection in set(kept) - set(stay):
                connection.abort()
            if stay:
                self._idle[origin] = stay
            else:
                del self._idle[origin]
        self._sweep = loop.call_later(KEEP_SECONDS / 2, self._drop_old) if self._idle else None

    async def _connect(self, origin: Origin) -> Connection:
        loop = asyncio.get_running_loop()
        addresses: list[AddressInfo] = []
        context = (self._tls or _system_tls()) if origin.secure else None
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                addresses = await self._resolve(origin)
                opened = await aiohappyeyeballs.start_connection(
                    addresses, happy_eyeballs_delay=_FAMILY_DELAY, loop=loop
                )
                opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                try:
                    _, connection = await loop.create_connection(
                        functools.partial(Connection, loop, origin),
                        sock=opened,
                        ssl=context,
                        server_hostname=origin.host if context else None,
                    )
                except BaseException:
                    opened.close()
                    raise
        except (OSError, TimeoutError, UnicodeError) as error:
            if self._resolved.get(origin, (0.0, None))[1] is addresses:
                del self._resolved[origin]
            raise Refused(f"{origin.host}:{origin.port} cannot be reached: {error}") from error
        return connection

    async def _resolve(self, origin: Origin) -> list[AddressInfo]:
        """Return the host's addresses, cached for a moment; a look-up takes a thread and is shared."""
        loop = asyncio.get_running_loop()
        if (known := self._resolved.get(origin)) is not None and known[0] > loop.time():
            return known[1]
        if (task := self._resolving.get(origin)) is None:
            task = self._resolving[origin] = loop.create_task(self._look_up(origin))
            task.add_done_callback(functools.partial(self._looked_up, origin))
        return await asyncio.shield(task)

    def _looked_up(self, origin: Origin, task: asyncio.Task[list[AddressInfo]]) -> None:
        del self._resolving[origin]
        # The error is read, so that asyncio reports none for a look-up that all waiters gave up.
        if not task.cancelled():
            task.exception()

    async def _look_up(self, origin: Origin) -> list[AddressInfo]:
        loop = asyncio.get_running_loop()
        flags = socket.AI_NUMERICHOST if _is_address(origin.host) else 0
        found = await loop.getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM, flags=flags)
        addresses = cast(list[AddressInfo], found)
        self._resolved[origin] = (loop.time() + RESOLVED_SECONDS, addresses)
        return addresses


@functools.lru_cache(maxsize=4096)
def _target(method: str, url: str) -> tuple[Origin, str]:
    """Return the origin, and the request's first two lines. Raises ValueError."""
    parts = urlsplit(url)
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError(f"{url!r} is no http or https URL")
    port = parts.port or _PORTS[parts.scheme]
    name = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    place = name if port == _PORTS[parts.scheme] else f"{name}:{port}"
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    start = f"{method} {path} HTTP/1.1\r\nhost: {place}\r\n"
    if start.count("\n") != 2 or path.count(" "):
        raise ValueError(f"{url!r} is not percent-encoded")
    return Origin(parts.hostname, port, parts.scheme == "https"), start


@functools.cache
def _system_tls() -> ssl.SSLContext:
    return ssl.create_default_context()


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
