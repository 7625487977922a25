"""HTTP sessions with the operator's identity provider, which end within a time limit.

requests limits only each read, so a slow provider could hold the web process's threads. Proxies and
certificates of the environment apply as usual: the provider is the operator's own choice.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Any, Final

import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

STEP_S: Final = 5.0
"""Seconds for each connect and read."""
TOTAL_S: Final = 15.0
"""Seconds from a session's first connection to its end; a session is one exchange."""

Watch = Callable[[socket.socket], None]


class ProviderSession(requests.Session):
    """A session whose connections are shut down after TOTAL_S, even during a read."""

    def __init__(self) -> None:
        super().__init__()
        self._handles: list[socket.socket] = []
        self._lock, self._over = threading.Lock(), False
        self._timer = threading.Timer(TOTAL_S, self._shut)
        self._timer.daemon = True
        for scheme in ("http://", "https://"):
            self.mount(scheme, _Adapter(self._watch))

    def request(self, *arguments: Any, **options: Any) -> requests.Response:
        return super().request(*arguments, **{"timeout": STEP_S, **options})

    def close(self) -> None:
        super().close()
        self._timer.cancel()
        with self._lock:
            self._over = True
            while self._handles:
                self._handles.pop().close()

    def _watch(self, connection: socket.socket) -> None:
        with self._lock:
            if self._over:
                connection.close()
                raise TimeoutError(f"the session is closed, or took longer than {TOTAL_S:.0f} s")
            # A duplicate handle, because TLS takes the connection's descriptor over.
            self._handles.append(connection.dup())
            if len(self._handles) == 1:
                self._timer.start()

    def _shut(self) -> None:
        with self._lock:
            self._over = True
            for handle in self._handles:
                with contextlib.suppress(OSError):
                    handle.shutdown(socket.SHUT_RDWR)


class _Adapter(HTTPAdapter):
    """Passes each new connection to `watch`."""

    def __init__(self, watch: Watch) -> None:
        self._pools = _pools(watch)
        super().__init__()

    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
        super().init_poolmanager(*arguments, **options)
        self.poolmanager.pool_classes_by_scheme = self._pools

    def proxy_manager_for(self, proxy: str, **options: Any) -> Any:
        manager = super().proxy_manager_for(proxy, **options)
        manager.pool_classes_by_scheme = self._pools
        return manager


def _pools(watch: Watch) -> dict[str, type[HTTPConnectionPool]]:
    class Plain(HTTPConnection):
        def _new_conn(self) -> socket.socket:
            connection = super()._new_conn()
            watch(connection)
            return connection

    class Tls(Plain, HTTPSConnection):
        pass

    class PlainPool(HTTPConnectionPool):
        ConnectionCls = Plain

    class TlsPool(HTTPSConnectionPool):
        ConnectionCls = Tls

    return {"http": PlainPool, "https": TlsPool}
