"""`python -m controlplane.web_server`: serves the web UI and the REST API by the gateway's HTTP server.

It refuses what the gateway refuses, and holds as many idle and slow connections: each costs a socket and a
few kilobytes, not a thread.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import socket
import sys
from typing import Any, Final

import uvloop

from gateway.http.server import Limits, Server, StartFailed, bind, raise_file_limit, run_processes

logger = logging.getLogger(__name__)

STOP_SECONDS: Final = 10.0
"""How long answers may go on once the process is told to stop; live pages are cut then, and ask again."""
_KILL_SECONDS: Final = 5.0
_CONNECTIONS: Final = 16_384
_HEAD_SECONDS: Final = 30.0


class Lifespan:
    """Gives Django, which knows requests alone, a start and an end."""

    def __init__(self, application: Any) -> None:
        self._application = application
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """The server was told to stop."""
        self._stopping.set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":
            await self._application(scope, receive, send)
            return
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await self._stopping.wait()
        # The server says so once no answer is on its way; what takes longer ends with this process.
        await asyncio.wait({asyncio.ensure_future(receive())}, timeout=STOP_SECONDS)
        await send({"type": "lifespan.shutdown.complete"})


def serve(listener: socket.socket) -> int:
    """Runs one serving process; returns its exit status."""
    # Each process builds its own Django, and with it its own connections to the database.
    from controlplane.asgi import application

    _warn_of_proxies()
    life = Lifespan(application)
    limits = Limits(connections=_CONNECTIONS, head_seconds=_HEAD_SECONDS)
    server = Server(life, listener, limits, on_stop=life.stop)
    try:
        uvloop.run(server.run())
    except StartFailed as failure:
        logger.critical("%s", failure)
        return 1
    return 0


def _warn_of_proxies() -> None:
    from django.conf import settings

    if settings.GRAFTWORK.web_url.startswith("https://") and not settings.GRAFTWORK.trusted_proxies:
        logger.warning(
            "GRAFTWORK_WEB_URL is https, but GRAFTWORK_TRUSTED_PROXIES names no proxy: all callers share "
            "its address in limits and the audit log. Name the proxy's network there."
        )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m controlplane.web_server", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--processes", type=int, default=1)
    arguments = parser.parse_args()
    raise_file_limit()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
    try:
        listeners = bind(arguments.host, arguments.port, arguments.processes)
    except OSError as error:
        sys.exit(f"web server: {arguments.host}:{arguments.port} cannot be listened on: {error}")
    sys.exit(run_processes(listeners, serve, kill_seconds=STOP_SECONDS + _KILL_SECONDS))


if __name__ == "__main__":
    main()
