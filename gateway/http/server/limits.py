"""Limits on the memory and time that a client may take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

HEAD_BYTES: Final = 64 << 10
HEADERS: Final = 100
BUFFER_BYTES: Final = 64 << 10
"""Most unread bytes of a body, or of pipelined requests, before the client has to wait."""
LINGER_SECONDS: Final = 1.0
"""How long a client may go on sending a request that is not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of connections and waits.

    Attributes:
        connections: most open connections; more wait to be accepted.
        head_seconds: longest wait for a request's head, and so for a connection's next request.
        stall_seconds: longest wait for a client to take more of an answer (by the kernel; Linux only).
    """

    connections: int = 16_384
    head_seconds: float = 30
    stall_seconds: float = 60
