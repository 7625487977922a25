"""`python -m gateway`: serves the gateway on uvloop, in GRAFTWORK_GATEWAY_PROCESSES processes."""

from __future__ import annotations

import gc
import logging.config
import os
import socket
import ssl
import sys

import uvloop

from contracts.environment import SettingsError
from gateway.app import Gateway
from gateway.http.server import (
    Limits,
    Server,
    StartFailed,
    bind,
    raise_file_limit,
    run_processes,
    server_context,
)
from gateway.lifecycle.drain import KILL_SECONDS
from gateway.observability import logs
from gateway.settings import Settings, Tls

logger = logging.getLogger(__name__)


def serve(settings: Settings, listener: socket.socket, tls: ssl.SSLContext | None) -> int:
    """Run one serving process, and return its exit status."""
    # A short switch interval lets the thread that makes usage durable take the GIL within 0.5 ms, not 5 ms.
    sys.setswitchinterval(0.0005)
    # Answered requests leave no reference cycles. At the default threshold the collector runs thirty times a
    # second in a burst, for up to 2 ms each, and finds nothing.
    gc.set_threshold(10_000, 20, 20)
    application = Gateway(settings)
    limits = Limits(
        connections=settings.connections,
        head_seconds=settings.header_seconds,
        stall_seconds=settings.stall_seconds,
    )
    server = Server(application, listener, limits, tls=tls, on_stop=application.stop)
    try:
        uvloop.run(server.run())
    except StartFailed as failure:
        logger.critical("%s", failure)
        return 1
    return 0


def main() -> None:
    try:
        settings = Settings.from_env(os.environ)
    except SettingsError as error:
        sys.exit(f"gateway: {error}")
    raise_file_limit()
    tls = _tls(settings.tls)
    try:
        listeners = bind(settings.host, settings.port, settings.processes)
    except OSError as error:
        sys.exit(f"gateway: {settings.host}:{settings.port} cannot be listened on: {error}")
    logging.config.dictConfig(logs.configuration(settings.log_format, settings.log_level))
    sys.exit(
        run_processes(
            listeners,
            lambda listener: serve(settings, listener, tls),
            kill_seconds=settings.drain_seconds + KILL_SECONDS,
        )
    )


def _tls(tls: Tls | None) -> ssl.SSLContext | None:
    if tls is None:
        return None
    try:
        return server_context(tls.certificate, tls.key, minimum=tls.minimum, client_ca=tls.client_ca)
    except (OSError, ValueError) as error:
        sys.exit(f"gateway: GRAFTWORK_GATEWAY_TLS_CERT, _KEY or _CLIENT_CA cannot be used: {error}")


if __name__ == "__main__":
    main()
