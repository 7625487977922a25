"""Running gateways that tests share: one per environment, each with its own Redis database."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import redis

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.gateway.conftest import GatewayProcess

MOST: Final = 6
FIRST_DATABASE: Final = 2
"""Databases 0, 1 and 15 belong to the tests that start a gateway or the product themselves."""


class GatewayPool:
    """Start gateways on first use; end the least recently used one above `MOST`.

    Args:
        make: builds a gateway process, not started, from a Redis URL and a folder of its own.
        server: URL of the Redis server, without a database.
        folder: where write-ahead logs and logs of the processes go.
    """

    def __init__(
        self, make: Callable[[str, Path, dict[str, str]], GatewayProcess], server: str, folder: Path
    ) -> None:
        self._make, self._server, self._folder = make, server, folder
        self._running: dict[frozenset[tuple[str, str]], tuple[int, GatewayProcess]] = {}
        self._started = 0

    def __call__(self, environ: Mapping[str, str]) -> GatewayProcess:
        """Return the running gateway of `environ`, the settings that differ from the default."""
        key = frozenset(environ.items())
        running = self._running.pop(key) if key in self._running else self._start(dict(environ))
        self._running[key] = running
        return running[1]

    def close(self) -> None:
        for _, gateway in self._running.values():
            gateway.stop()
        self._running.clear()

    def _start(self, environ: dict[str, str]) -> tuple[int, GatewayProcess]:
        if len(self._running) == MOST:
            oldest = next(iter(self._running))
            self._running.pop(oldest)[1].stop()
        taken = {database for database, _ in self._running.values()}
        database = next(number for number in range(FIRST_DATABASE, 15) if number not in taken)
        self._started += 1
        folder = self._folder / str(self._started)
        folder.mkdir()
        url = f"{self._server}/{database}"
        # Routes that an ended gateway left there may be read before a test empties the database. They would
        # be newer than the test's own, and gateways refuse older routes.
        with redis.Redis.from_url(url) as client:
            client.flushdb()
        gateway = self._make(url, folder, environ)
        gateway.start(ready=False)
        return database, gateway
