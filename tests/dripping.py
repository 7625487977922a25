"""A real server on loopback that answers byte by byte."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

OK: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"


class Dripping:
    """Sends `prompt` at once and then a byte every `every` seconds, for ever; reads as slowly when told."""

    def __init__(self, prompt: bytes, *, every: float, drip: bytes = b"x", reads: bool = True) -> None:
        self.prompt, self.every, self.drip, self.reads = prompt, every, drip, reads
        self.context: ssl.SSLContext | None = None
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._over = threading.Event()
        self.port = int(self._listener.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._over.set()
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.connections += 1
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError):
            if self.context is not None:
                connection = self.context.wrap_socket(connection, server_side=True)
            with connection:
                if not self.reads:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                while not self.reads and not self._over.wait(self.every):
                    connection.recv(1)
                connection.recv(65536)
                connection.sendall(self.prompt)
                while not self._over.wait(self.every):
                    connection.sendall(self.drip)


@contextmanager
def dripping(
    prompt: bytes = b"", *, every: float = 1.0, drip: bytes = b"x", reads: bool = True
) -> Iterator[Dripping]:
    """The server, as long as the block lasts."""
    server = Dripping(prompt, every=every, drip=drip, reads=reads)
    try:
        yield server
    finally:
        server.close()


@contextmanager
def lasting(least: float) -> Iterator[None]:
    """Fails unless the block takes `least` seconds; that it ends proves a deadline: the server goes on."""
    began = time.monotonic()
    yield
    took = time.monotonic() - began
    assert took >= least, f"it took {took:.2f} s"
