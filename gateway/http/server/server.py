"""Accepts connections, runs the application's lifespan, and stops without cutting an answer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final

from gateway.http.server.connection import Connection
from gateway.http.server.exchange import Application, Exchange, Message
from gateway.http.server.limits import LINGER_SECONDS, Limits
from gateway.http.timeouts import Timeouts

logger = logging.getLogger(__name__)

_BACKLOG: Final = 1024
_AT_ONCE: Final = 64
"""Connections accepted before the event loop runs other work."""
_NO_DESCRIPTOR_SECONDS: Final = 0.1


class StartFailed(Exception):
    """The application cannot start; the text is the application's."""


class Server:
    """Serves `application` to the clients of one listening socket, until SIGTERM or SIGINT.

    Args:
        listener: bound, not listening yet, so that connections before the application's start are refused.
        on_stop: called first when the server is asked to stop.

    Attributes:
        stopping: True after the server was asked to stop.
        heads, lingering: timeouts of connections that wait for a next head, or for their end.
    """

    def __init__(
        self,
        application: Application,
        listener: socket.socket,
        limits: Limits,
        *,
        tls: ssl.SSLContext | None = None,
        on_stop: Callable[[], None],
    ) -> None:
        self._application, self._listener, self._limits, self._tls = application, listener, limits, tls
        self._on_stop = on_stop
        self._connections: set[Connection] = set()
        self._opening: set[asyncio.Task[None]] = set()
        self._exchanges: set[Exchange] = set()
        """Holds exchanges whose client has gone: nothing else may refer to them."""
        self._stop_requested = asyncio.Event()
        self._empty = asyncio.Event()
        self._accepts = False
        self.stopping = False
        self.scheme = "http" if tls is None else "https"
        self.heads: Timeouts[Connection] = Timeouts(limits.head_seconds, Connection.head_is_late)
        self.lingering: Timeouts[Connection] = Timeouts(LINGER_SECONDS, Connection.linger_is_over)

    async def run(self) -> None:
        """Serve until the application has shut down.

        Raises:
            StartFailed: the application could not start.
        """
        self._loop = loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        life = _Lifespan(self._application)
        await life.start()
        self._listen()
        await self._stop_requested.wait()
        self._stop()
        empty = asyncio.ensure_future(self._empty.wait())
        await asyncio.wait({empty, life.task}, return_when=asyncio.FIRST_COMPLETED)
        empty.cancel()
        await life.end()
        # The remaining clients do not read the end of their answers.
        for connection in self._connections:
            connection.abort()
        await asyncio.sleep(0)

    def stop(self) -> None:
        """Stop accepting, and wait for the open connections; `on_stop` runs first."""
        self._stop_requested.set()

    # Called by connections.

    def opened(self, connection: Connection) -> None:
        self._connections.add(connection)
        if self.stopping:
            connection.stop()

    def closed(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._check_empty()
        if not self._accepts and not self.stopping:
            self._accept_again()

    def serve(self, exchange: Exchange, scope: Message) -> None:
        """Run the application for one request."""
        exchange.task = self._loop.create_task(exchange.run(self._application, scope))
        self._exchanges.add(exchange)

    def finished(self, exchange: Exchange) -> None:
        self._exchanges.discard(exchange)

    # Internal.

    def _listen(self) -> None:
        listener = self._listener
        listener.setblocking(False)
        # Connections inherit both options. The kernel closes those whose client reads nothing any more.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            milliseconds = int(self._limits.stall_seconds * 1000)
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
        listener.listen(_BACKLOG)
        self._accept_again()
        host, port = listener.getsockname()[:2]
        logger.info("listening on %s://%s:%d", self.scheme, f"[{host}]" if ":" in host else host, port)

    def _accept_again(self) -> None:
        if not self.stopping:
            self._accepts = True
            self._loop.add_reader(self._listener, self._accept)

    def _accept_no_more(self) -> None:
        if self._accepts:
            self._accepts = False
            self._loop.remove_reader(self._listener)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            if len(self._connections) + len(self._opening) >= self._limits.connections:
                self._accept_no_more()
                return
            try:
                accepted, _address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                logger.error("cannot accept connections: %s", error)
                self._accept_no_more()
                self._loop.call_later(_NO_DESCRIPTOR_SECONDS, self._accept_again)
                return
            accepted.setblocking(False)
            task = self._loop.create_task(self._open(accepted))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(self, accepted: socket.socket) -> None:
        patience = None if self._tls is None else self._limits.head_seconds
        # The client does not use TLS, has no certificate, or has gone.
        with contextlib.suppress(OSError, EOFError):
            await self._loop.connect_accepted_socket(
                lambda: Connection(self, self._loop), accepted, ssl=self._tls, ssl_handshake_timeout=patience
            )

    def _stop(self) -> None:
        self._on_stop()
        self._accept_no_more()
        self.stopping = True
        self._listener.close()
        for connection in list(self._connections):
            connection.stop()
        self._check_empty()

    def _check_empty(self) -> None:
        if self.stopping and not self._connections:
            self._empty.set()


class _Lifespan:
    """The application's startup and shutdown."""

    def __init__(self, application: Application) -> None:
        self._inbox: asyncio.Queue[Message] = asyncio.Queue()
        self._started: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        scope: Message = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": {}}
        self.task = asyncio.ensure_future(application(scope, self._inbox.get, self._send))

    async def start(self) -> None:
        """Start the application. Raises StartFailed."""
        await self._inbox.put({"type": "lifespan.startup"})
        ends: set[asyncio.Future[Any]] = {self._started, self.task}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if not self._started.done():
            self.task.result()
            raise StartFailed("the application ended before it had started")
        if reason := self._started.result():
            raise StartFailed(reason)

    async def end(self) -> None:
        await self._inbox.put({"type": "lifespan.shutdown"})
        await self.task

    async def _send(self, message: Message) -> None:
        if message["type"] == "lifespan.startup.complete":
            self._started.set_result("")
        elif message["type"] == "lifespan.startup.failed":
            self._started.set_result(message.get("message") or "the application cannot start")
