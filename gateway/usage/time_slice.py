"""How soon Linux lets a thread run that has just been woken."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from typing import Final

_SCHED_SETATTR: Final = {"x86_64": 314, "aarch64": 274}
"""Number of the system call, which the C library does not wrap."""
_ATTRIBUTES: Final = struct.Struct("=IIQiIQQQ")
"""`struct sched_attr` of sched_setattr(2), its first version: size, policy, flags, nice, priority, then
runtime, deadline and period in nanoseconds."""
_SLICE_NS: Final = 100_000


def take_short_slices() -> bool:
    """For the calling thread, whose work is short and waited for; whether the kernel was told.

    The kernel puts a woken thread on the waker's processor even where another one is idle, and there it
    waits until the waker rests or has used up its slice of some milliseconds. One whose own slice is shorter
    goes first. From Linux 6.12 on; needs no privilege.
    """
    number = _SCHED_SETATTR.get(platform.machine())
    if number is None or platform.system() != "Linux" or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return False
    # The nice value is set along with the slice: it stays what it is.
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_OTHER, 0, nice, 0, _SLICE_NS, 0, 0)
    return bool(ctypes.CDLL(None).syscall(number, 0, attributes, 0) == 0)
