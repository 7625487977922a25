"""`python -m gateway`: serves the gateway by granian on uvloop, in GRAFTWORK_GATEWAY_PROCESSES processes."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys

from granian import Granian
from granian.constants import HTTPModes, Interfaces, Loops
from granian.http import HTTP1Settings

from gateway.app import Gateway, create
from gateway.settings import Settings, SettingsError

_PR_SET_PDEATHSIG = 1


def application() -> Gateway:
    """What each serving process runs."""
    if sys.platform == "linux":
        # A killed parent must not leave a gateway behind that nobody supervises.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The thread that makes usage durable takes the interpreter back within 0.5 ms instead of 5 ms.
    sys.setswitchinterval(0.0005)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    return create()


def main() -> None:
    try:
        settings = Settings.from_env(os.environ)
    except SettingsError as error:
        sys.exit(f"gateway: {error}")
    Granian(
        "gateway.__main__:application",
        address=settings.host,
        port=settings.port,
        interface=Interfaces.ASGI,
        workers=settings.processes,
        loop=Loops.uvloop,
        http=HTTPModes.http1,
        http1_settings=HTTP1Settings(pipeline_flush=False),
        websockets=False,
        factory=True,
        workers_kill_timeout=30,
        log_access=False,
    ).serve()


if __name__ == "__main__":
    main()
