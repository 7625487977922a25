"""`python -m tests.gateway.uvicorn_server`: serves the gateway by uvicorn instead of its own HTTP server.

`make test-slow` runs the gateway's tests with it, so that the application depends on ASGI alone.
"""

from __future__ import annotations

import contextlib
import logging.config
import os
import signal
import socket
import sys
from collections.abc import Iterator

import uvicorn

from gateway.app import Gateway
from gateway.observability import logs
from gateway.settings import Settings


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop at a signal, and exit with status 0: uvicorn would raise the signal again at the end."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.handle_exit)
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let the application drain while uvicorn waits for the open connections."""
        application = self.config.app
        if isinstance(application, Gateway):
            application.stop()
        await super().shutdown(sockets)


def main() -> None:
    settings = Settings.from_env(os.environ)
    logging.config.dictConfig(logs.configuration(settings.log_format, settings.log_level))
    server = _Server(
        uvicorn.Config(
            Gateway(settings),
            settings.host,
            settings.port,
            lifespan="on",
            access_log=False,
            log_config=None,
            server_header=False,
            proxy_headers=False,
        )
    )
    server.run()
    if not server.started:
        sys.exit(1)


if __name__ == "__main__":
    main()
