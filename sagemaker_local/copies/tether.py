"""`python -m sagemaker_local.copies.tether PARENT COMMAND...`: becomes COMMAND, and dies with PARENT.

A killed server cannot end its copies; the kernel does (prctl(2), PR_SET_PDEATHSIG, which survives
execve(2)). This works on Linux only; elsewhere copies outlive a killed server.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


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
