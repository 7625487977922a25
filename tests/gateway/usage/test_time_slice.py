"""The kernel's time slice of a thread that others wait for."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import threading
from collections.abc import Callable

import pytest

from gateway.usage.time_slice import take_short_slices

SCHED_GETATTR = {"x86_64": 315, "aarch64": 275}.get(platform.machine())
KERNEL = tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2])
linux = pytest.mark.skipif(
    platform.system() != "Linux" or SCHED_GETATTR is None, reason="Linux on x86-64 or arm64 alone has them"
)


def in_a_thread(work: Callable[[], None]) -> None:
    failures: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    for failure in failures:
        raise failure


def attributes() -> tuple[int, int, int]:
    """Policy, nice value and slice in nanoseconds of the calling thread."""
    buffer = ctypes.create_string_buffer(48)
    assert ctypes.CDLL(None).syscall(SCHED_GETATTR, 0, buffer, 48, 0) == 0
    _, policy, _, nice, _, runtime, _, _ = struct.unpack("=IIQiIQQQ", buffer.raw)
    return policy, nice, runtime


@linux
def test_the_slice_is_the_calling_threads_alone_and_its_nice_value_stays() -> None:
    def work() -> None:
        os.setpriority(os.PRIO_PROCESS, 0, 7)
        assert take_short_slices()
        policy, nice, runtime = attributes()
        assert (policy, nice) == (os.SCHED_OTHER, 7)
        if KERNEL >= (6, 12):
            assert runtime == 100_000

    before = attributes()
    in_a_thread(work)
    assert attributes() == before


@linux
def test_a_thread_with_another_policy_keeps_it() -> None:
    def work() -> None:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        assert not take_short_slices()
        assert attributes()[0] == os.SCHED_BATCH

    in_a_thread(work)
