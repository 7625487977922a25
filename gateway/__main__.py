"""`python -m gateway`: serves the gateway by granian on uvloop, in GRAFTWORK_GATEWAY_PROCESSES processes."""

from __future__ import annotations

import ctypes
import logging.config
import os
import resource
import signal
import ssl
import sys
from typing import Any, Final

from granian import Granian
from granian.constants import HTTPModes, Interfaces, Loops, SSLProtocols
from granian.http import HTTP1Settings
from granian.log import LogLevels

from gateway import logs
from gateway.app import Gateway
from gateway.drain import KILL_SECONDS
from gateway.settings import Settings, SettingsError, Tls

_PR_SET_PDEATHSIG = 1
_BUFFER_BYTES: Final = 64 << 10
"""Of a connection, each way: what its headers may be, and what a client that does not read holds."""


def application() -> Gateway:
    """What each serving process runs."""
    if sys.platform == "linux":
        # A killed parent must not leave a gateway behind that nobody supervises.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # Ctrl-C is for the parent, which tells this process once; more signals than two hang the server.
    os.setpgrp()
    # The thread that makes usage durable takes the interpreter back within 0.5 ms instead of 5 ms.
    sys.setswitchinterval(0.0005)
    settings = Settings.from_env(os.environ)
    logging.config.dictConfig(logs.configuration(settings.log_format, settings.log_level))
    return Gateway(settings)


def main() -> None:
    try:
        settings = Settings.from_env(os.environ)
    except SettingsError as error:
        sys.exit(f"gateway: {error}")
    # A connection is a file, and the usual limit of 1,024 was made for programs without any.
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        server = Granian(
            "gateway.__main__:application",
            address=settings.host,
            port=settings.port,
            interface=Interfaces.ASGI,
            workers=settings.processes,
            loop=Loops.uvloop,
            http=HTTPModes.http1,
            http1_settings=HTTP1Settings(
                pipeline_flush=False,
                header_read_timeout=settings.header_seconds * 1000,
                max_buffer_size=_BUFFER_BYTES,
            ),
            backpressure=settings.connections,
            websockets=False,
            factory=True,
            workers_kill_timeout=settings.drain_seconds + KILL_SECONDS,
            log_access=False,
            log_level=LogLevels(settings.log_level.lower()),
            log_dictconfig=logs.configuration(settings.log_format, settings.log_level),
            **_tls(settings.tls),
        )
    except (OSError, ValueError) as error:
        sys.exit(f"gateway: GRAFTWORK_GATEWAY_TLS_CERT, _KEY or _CLIENT_CA cannot be used: {error}")
    server.serve()


def _tls(tls: Tls | None) -> dict[str, Any]:
    """Granian's arguments. Raises OSError when a file does not hold what it should."""
    if tls is None:
        return {}
    # Said here, since the server would ask the terminal for an encrypted key's password.
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tls.certificate, tls.key, password="")
    if tls.client_ca is not None:
        ssl.create_default_context(cafile=tls.client_ca)  # the server would only warn of what it cannot read
    return {
        "ssl_cert": tls.certificate,
        "ssl_key": tls.key,
        "ssl_protocol_min": SSLProtocols.tls12 if tls.minimum == "1.2" else SSLProtocols.tls13,
        "ssl_ca": tls.client_ca,
        "ssl_client_verify": tls.client_ca is not None,
    }


if __name__ == "__main__":
    main()
