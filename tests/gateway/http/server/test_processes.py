"""A parent and its serving processes, as real ones."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gateway.http.server import bind
from tests.conftest import ROOT
from tests.waiting import eventually

PROGRAM = """
import os, signal, sys
from gateway.http.server import bind, run_processes

def serve(listener):
    if sys.argv[2] == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    listener.listen()
    try:
        os.write(1, b"up" + bytes([10]))
        while True:
            signal.pause()
    except SystemExit:
        return 0

if sys.argv[2] == "told again at exit":
    class Last:
        def __del__(self):
            os.kill(os.getpid(), signal.SIGTERM)

    sys.modules["last"] = Last()  # modules are cleared after signals have their defaults again

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests that run under nohup have it ignored
sys.exit(run_processes(bind("127.0.0.1", 0, int(sys.argv[1])), serve, kill_seconds=1))
"""


@contextmanager
def parent(count: int, manner: str = "well") -> Iterator[tuple[subprocess.Popen[bytes], list[int]]]:
    """The parent and its children, which have begun."""
    command = [sys.executable, "-c", PROGRAM, str(count), manner]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            for _ in range(count):
                assert process.stdout.readline() == b"up\n"
            text = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
            yield process, [int(pid) for pid in text.split()]
        finally:
            process.kill()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_all_end_with_the_parent_and_are_told_once(number: signal.Signals) -> None:
    with parent(3) as (process, children):
        assert len(children) == 3
        assert all(os.getpgid(child) == child for child in children)
        process.send_signal(number)
        process.send_signal(number)
        assert process.wait(60) == 0
        assert not any(map(alive, children))


def test_a_signal_at_the_very_end_does_not_change_the_exit_status() -> None:
    """Python's own end takes a while, in which a supervisor or a person may signal again."""
    with parent(1, "told again at exit") as (process, _):
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_one_that_dies_ends_all() -> None:
    with parent(2) as (process, children):
        os.kill(children[0], signal.SIGKILL)
        assert process.wait(60) == 1
        assert not any(map(alive, children))


def test_one_that_does_not_stop_is_killed() -> None:
    with parent(2, "deaf") as (process, children):
        started = time.monotonic()
        process.terminate()
        assert process.wait(60) == 0
        assert time.monotonic() - started > 0.9
        assert not any(map(alive, children))


@pytest.mark.skipif(sys.platform != "linux", reason="a parent's death is told by Linux")
def test_a_killed_parent_leaves_nobody_behind() -> None:
    with parent(2) as (process, children):
        process.kill()
        process.wait(60)
        eventually(lambda: not any(map(alive, children)))


@pytest.mark.parametrize("count", [1, 2])
def test_a_port_that_somebody_has_is_refused(count: int) -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(OSError, match="in use"):
            bind("127.0.0.1", other.getsockname()[1], count)


def test_sockets_share_a_port() -> None:
    listeners = bind("127.0.0.1", 0, 3)
    assert len({listener.getsockname() for listener in listeners}) == 1
    for listener in listeners:
        listener.close()
