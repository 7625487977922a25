"""Authenticates the peer of the zygote's socket, and sends it answers."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Sequence


def same_user(connection: socket.socket) -> bool:
    """Return True if the caller has this process's uid; not every system enforces the socket's mode."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return bool(struct.unpack("3i", credentials)[1] == os.getuid())


def answer(connection: socket.socket, *, descriptors: Sequence[int] = (), **fields: object) -> None:
    """Send one message. Raises OSError when the caller has disconnected."""
    message = json.dumps(fields).encode()
    if descriptors:
        socket.send_fds(connection, [message], descriptors)
    else:
        connection.send(message)
