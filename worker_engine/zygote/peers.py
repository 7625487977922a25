"""Who is at the other end of the zygote's socket, and what it is told."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Sequence


def same_user(connection: socket.socket) -> bool:
    """Whether the caller is this process's user; the socket's mode says so too, on systems that heed it."""
    told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return bool(struct.unpack("3i", told)[1] == os.getuid())


def answer(connection: socket.socket, *, descriptors: Sequence[int] = (), **fields: object) -> None:
    """One message. Raises OSError when the caller is gone."""
    message = json.dumps(fields).encode()
    if descriptors:
        socket.send_fds(connection, [message], descriptors)
    else:
        connection.send(message)
