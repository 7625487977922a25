"""Clients that do not read: the kernel ends their connections.

The server passes whole answers to the kernel by itself and cannot be told to give up, and a connection that
it cannot flush stays open even when its request has ended. So the listening socket gets TCP_USER_TIMEOUT,
which Linux hands down to every connection: one whose other end has taken nothing for so long is reset. The
request that streams to it sees a hang-up.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Iterator
from typing import Final

logger = logging.getLogger(__name__)

STALL_SECONDS: Final = 60
_TRIES: Final = 200
_PAUSE_SECONDS: Final = 0.05


async def limit_stalls(port: int, seconds: float) -> None:
    """Bounds how long a client of this process' listening socket may take nothing; the server opens that
    socket a moment after the application has started."""
    for _ in range(_TRIES):
        found = False
        for listener in _listeners(port):
            found = True
            with listener:
                listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000))
        if found:
            return
        await asyncio.sleep(_PAUSE_SECONDS)
    logger.warning("clients that do not read are not bounded: this needs Linux")


def _listeners(port: int) -> Iterator[socket.socket]:
    try:
        descriptors = os.listdir("/proc/self/fd")
    except OSError:
        return
    for descriptor in descriptors:
        try:
            copy = os.dup(int(descriptor))
        except OSError:
            continue  # closed meanwhile
        try:
            found = socket.socket(fileno=copy)
        except OSError:
            os.close(copy)  # no socket
            continue
        if found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) and _port(found) == port:
            yield found
        else:
            found.close()


def _port(listener: socket.socket) -> int | None:
    return int(listener.getsockname()[1]) if listener.family in (socket.AF_INET, socket.AF_INET6) else None
