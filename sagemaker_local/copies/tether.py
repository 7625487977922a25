"""`python -m sagemaker_local.copies.tether PARENT COMMAND...`: becomes COMMAND, and dies with PARENT.

A killed server cannot end its copies; the kernel does (prctl(2), PR_SET_PDEATHSIG, which survives
execve(2)). This works on Linux only; elsewhere copies outlive a killed server.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


async def start_tethered(
    command: Sequence[str], environment: Mapping[str, str], log: Path
) -> asyncio.subprocess.Process:
    """Start a process that ends with this one; its output goes to the file `log`."""
    tether = [sys.executable, "-m", "sagemaker_local.copies.tether", str(os.getpid())]
    with log.open("wb") as output:
        # A new session, so that Ctrl-C reaches only the server, which ends its copies in order.
        return await asyncio.create_subprocess_exec(
            *tether, *command, stdout=output, stderr=output, env=environment, start_new_session=True
        )


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The parent may have died before the prctl call.
    if os.getppid() != parent:
        sys.exit("the server has gone")
    os.execvp(command[0], command)  # noqa: S606


if __name__ == "__main__":
    main()
