"""A parent process that forks and supervises the serving processes.

Each has its own listening socket on the same port, and the kernel divides connections among them. If one ends
unexpectedly, all end, and the parent's supervisor starts them again.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable
from types import FrameType
from typing import Final, NoReturn

logger = logging.getLogger(__name__)

_PR_SET_PDEATHSIG: Final = 1
_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_SIGNALS: Final = (*_STOP_SIGNALS, signal.SIGALRM)


def bind(host: str, port: int, count: int) -> list[socket.socket]:
    """Bind `count` sockets without listening. Raises OSError, also if another process has the port."""
    family, _, _, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    # Unshared, the first bind fails if another program listens; shared sockets would join that program.
    first = _bound(family, address, shared=False)
    if count == 1:
        return [first]
    address = first.getsockname()
    first.close()
    return [_bound(family, address, shared=True) for _ in range(count)]


def raise_file_limit() -> None:
    """Raise the soft limit of open files to the hard one: each connection is a file, and 1,024 is usual."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _bound(family: int, address: object, *, shared: bool) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind(address)  # type: ignore[arg-type]
    except OSError:
        bound.close()
        raise
    return bound


def run_processes(
    listeners: list[socket.socket], serve: Callable[[socket.socket], int], *, kill_seconds: float
) -> int:
    """Run `serve` in a process for each listener, until SIGTERM, SIGINT or SIGHUP; return the exit status.

    Args:
        serve: runs in the child and returns its exit status; SIGTERM asks it to stop.
        kill_seconds: time to stop before the process is killed.
    """
    return _Parent(kill_seconds).run(listeners, serve)


class _Parent:
    def __init__(self, kill_seconds: float) -> None:
        self._kill_seconds = kill_seconds
        self._children: set[int] = set()
        self._stopping = False

    def run(self, listeners: list[socket.socket], serve: Callable[[socket.socket], int]) -> int:
        for number in _STOP_SIGNALS:
            # Under nohup, SIGHUP is ignored and the process outlives its terminal.
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._on_stop_signal)
        signal.signal(signal.SIGALRM, self._late)
        # Signals are blocked, or one in between would be lost, or a child would handle it as the parent.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        parent = os.getpid()
        for listener in listeners:
            pid = os.fork()
            if pid == 0:
                _become_child(parent, listener, listeners, serve)
            self._children.add(pid)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        for listener in listeners:
            listener.close()
        return self._wait()

    def _wait(self) -> int:
        failed = False
        while self._children:
            pid, status = os.waitpid(-1, 0)
            if pid not in self._children:
                continue
            self._children.discard(pid)
            code = os.waitstatus_to_exitcode(status)
            if not self._stopping:
                logger.error("serving process %d exited with status %d; stopping all", pid, code)
                failed = True
                self._stop()
            failed = failed or code > 0
        signal.setitimer(signal.ITIMER_REAL, 0)
        # While Python exits, handled signals have their defaults again: a second one would kill it.
        for number in _STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        return 1 if failed else 0

    def _on_stop_signal(self, number: int, frame: FrameType | None) -> None:
        # Pass only the first signal on: supervisors signal whole groups, and people press Ctrl-C again.
        if not self._stopping:
            self._stop()

    def _stop(self) -> None:
        self._stopping = True
        self._signal(signal.SIGTERM)
        signal.setitimer(signal.ITIMER_REAL, self._kill_seconds)

    def _late(self, number: int, frame: FrameType | None) -> None:
        logger.error(
            "killed %d serving processes: no exit within %g s", len(self._children), self._kill_seconds
        )
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        for pid in self._children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def _become_child(
    parent: int, own: socket.socket, listeners: list[socket.socket], serve: Callable[[socket.socket], int]
) -> NoReturn:
    status = 1
    try:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN if number == signal.SIGHUP else signal.SIG_DFL)
        # Ctrl-C is for the parent, which signals this process once.
        os.setpgrp()
        if sys.platform == "linux":
            # If the parent is killed, this process must not go on without a supervisor.
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        for listener in listeners:
            if listener is not own:
                listener.close()
        if os.getppid() == parent:
            status = serve(own)
    except BaseException:
        logger.critical("a serving process has failed", exc_info=True)
    finally:
        logging.shutdown()
        # Skip the clean-up that the fork inherited from the parent.
        os._exit(status)
