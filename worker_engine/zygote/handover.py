"""Starts a worker through a zygote, and represents it: `python -m worker_engine` where a zygote answers.

For its parent this process is the worker: it forwards signals, ends when the worker does and with its status,
and the worker ends with it. Stdlib only, so that it starts at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Final

from worker_engine.startup import process_began
from worker_engine.zygote.order import MAX_BYTES, STREAMS, Order, code_digest

VARIABLE: Final = "GRAFTWORK_WORKER_ZYGOTE"
"""The environment variable with the path of the zygote's socket."""
_PASSED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def hand_over(path: str, arguments: Sequence[str]) -> int | None:
    """Return the worker's exit status once it has ended; None if no zygote took it, with the reason on
    stderr.
    """
    order = Order(
        arguments=list(arguments),
        environment=dict(os.environ),
        folder=os.getcwd(),
        cores=sorted(os.sched_getaffinity(0)),
        umask=_umask(),
        code=code_digest(),
        began=process_began(),
    )
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        try:
            connection.connect(path)
            socket.send_fds(connection, [order.encode()], STREAMS)
            message, descriptors, _, _ = socket.recv_fds(connection, MAX_BYTES, 1)
        except OSError as error:
            return _alone(f"{path}: {error}")
        answer = json.loads(message) if message else {"refused": "it broke off"}
        if "refused" in answer or not descriptors:
            return _alone(str(answer.get("refused")))
        return _stand_in(connection, descriptors[0])


def _alone(reason: str) -> int | None:
    print(f"worker_engine: starts without the zygote: {reason}", file=sys.stderr)
    return None


def _stand_in(connection: socket.socket, worker: int) -> int:
    """Forward signals and wait for the worker. `worker` is a pidfd, which never refers to another process."""

    def pass_on(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has ended, and its status will arrive
            signal.pidfd_send_signal(worker, number)

    for number in _PASSED:
        signal.signal(number, pass_on)
    message = connection.recv(MAX_BYTES)
    if not message:
        # The zygote was killed; the worker continues, but its exit status cannot be known.
        select.select([worker], [], [])
        print("worker_engine: ended; the zygote that knew its status is gone", file=sys.stderr)
        return 1
    status: int = json.loads(message)["status"]
    if status >= 0:
        return status
    signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
    return 128 - status


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
