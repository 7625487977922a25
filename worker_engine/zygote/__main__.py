"""`python -m worker_engine.zygote SOCKET`: imports all that a worker needs, then is forked for each one.

Only a process of one thread may be forked: a lock that another thread held would stay locked in the child. So
nothing here computes anything, which would start threads, and before each fork they are counted.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import json
import logging
import os
import pkgutil
import random
import selectors
import signal
import socket
import struct
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from worker_engine.startup import Startup
from worker_engine.zygote.order import MAX_BYTES, STREAMS, Order, code_digest, differing

log = logging.getLogger("worker_engine.zygote")

_NOT_LOADED: Final = ("__main__", "triton_kernels", "gpu", "variants", "tuning", "tune", "ahead_of_time")
"""Modules that a worker imports only with a GPU, or never: they bring Triton, which takes a second."""


class Zygote:
    """Takes orders on a socket; `serve` returns in each child with the order that it is to carry out."""

    def __init__(self, path: Path, environment: Mapping[str, str]) -> None:
        """`environment`: what the process was started with. Raises OSError when the socket cannot be made."""
        self._environment, self._code = environment, code_digest()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._path = path
        path.unlink(missing_ok=True)
        with _only_ours():
            self._listener.bind(str(path))
        self._listener.listen(64)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._children: dict[int, tuple[int, socket.socket]] = {}
        self._stopping = False

    def serve(self) -> tuple[Order, socket.socket] | None:
        """In a child, its order and its connection; None once it was told to stop and no child is left.

        SIGTERM takes no more orders and waits for the children: who stands in for them wants their status.
        """
        wake, woken = os.pipe()
        os.set_blocking(woken, False)
        signal.set_wakeup_fd(woken)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        self._selector.register(wake, selectors.EVENT_READ)
        while not self._stopping or self._children:
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    ordered = self._accept()
                    if ordered is not None:
                        os.close(wake)
                        os.close(woken)
                        return ordered
                elif key.fd == wake:
                    os.read(wake, 64)
                    self._stop_listening()
                else:
                    self._reap(key.fd)
        return None

    def _stop_listening(self) -> None:
        if not self._stopping:
            self._stopping = True
            self._selector.unregister(self._listener)
            self._listener.close()
            self._path.unlink(missing_ok=True)

    def _accept(self) -> tuple[Order, socket.socket] | None:
        connection, _ = self._listener.accept()
        connection.settimeout(5)
        descriptors: list[int] = []
        try:
            if not _same_user(connection):
                raise ValueError("it is another user's")
            message, descriptors, _, _ = socket.recv_fds(connection, MAX_BYTES, len(STREAMS))
            order = Order.decode(message)
            self._demand_alike(order)
            if len(descriptors) != len(STREAMS):
                raise ValueError("the standard streams did not come")
            return self._fork(order, connection, descriptors)
        except (OSError, ValueError) as error:
            log.warning("no worker: %s", error)
            with contextlib.suppress(OSError):
                _answer(connection, refused=str(error))
            connection.close()
            return None
        finally:
            for descriptor in descriptors:
                if descriptor not in STREAMS:
                    os.close(descriptor)

    def _demand_alike(self, order: Order) -> None:
        """Raises ValueError where a process of its own would come out otherwise."""
        if order.code != self._code:
            raise ValueError("the zygote runs other code: start it anew")
        if names := differing(self._environment, order.environment):
            raise ValueError(f"{', '.join(names)}: not as the zygote was started with, and read at load")
        if (threads := len(os.listdir("/proc/self/task"))) != 1:
            raise ValueError(f"the zygote has {threads} threads, and cannot be forked")

    def _fork(
        self, order: Order, connection: socket.socket, descriptors: list[int]
    ) -> tuple[Order, socket.socket] | None:
        child = os.fork()
        if child:
            process = os.pidfd_open(child)
            self._children[process] = (child, connection)
            self._selector.register(process, selectors.EVENT_READ)
            with contextlib.suppress(OSError):  # gone already: the child sees that by itself
                _answer(connection, descriptors=[process], pid=child)
            return None
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        self._selector.close()
        self._listener.close()
        for process, (_, other) in self._children.items():
            os.close(process)
            other.close()
        for stream, descriptor in zip(STREAMS, descriptors, strict=True):
            os.dup2(descriptor, stream)
        connection.settimeout(None)
        return order, connection

    def _reap(self, process: int) -> None:
        child, connection = self._children.pop(process)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        self._selector.unregister(process)
        os.close(process)
        with contextlib.suppress(OSError), connection:
            _answer(connection, status=status)


def _same_user(connection: socket.socket) -> bool:
    """Return True if the caller has this process's uid; not every system enforces the socket's mode."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return bool(struct.unpack("3i", credentials)[1] == os.getuid())


def _answer(connection: socket.socket, *, descriptors: Sequence[int] = (), **fields: object) -> None:
    """Send one message. Raises OSError when the caller has disconnected."""
    message = json.dumps(fields).encode()
    if descriptors:
        socket.send_fds(connection, [message], descriptors)
    else:
        connection.send(message)


@contextlib.contextmanager
def _only_ours() -> Iterator[None]:
    """Files made within are the user's alone."""
    held = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(held)


def become(order: Order, connection: socket.socket) -> None:
    """Makes this child what the caller would have been."""
    os.setsid()
    os.chdir(order.folder)
    os.umask(order.umask)
    os.sched_setaffinity(0, order.cores)
    os.environ.clear()
    os.environ.update(order.environment)
    random.seed()
    threading.Thread(target=_end_with, args=(connection,), name="caller", daemon=True).start()


def _end_with(connection: socket.socket) -> None:
    """The caller stands in for this process: killed, it takes this one with it."""
    with contextlib.suppress(OSError):
        while connection.recv(MAX_BYTES):
            pass
    os.kill(os.getpid(), signal.SIGKILL)


def load() -> None:
    """Imports the worker's modules and the libraries that they load on first use."""
    import kernels
    import worker_engine

    for package in (kernels, worker_engine):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if module.name.rpartition(".")[2] not in _NOT_LOADED:
                importlib.import_module(module.name)
    importlib.import_module("worker_engine.program")


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    parser = argparse.ArgumentParser(prog="python -m worker_engine.zygote", description=__doc__)
    parser.add_argument("socket", type=Path, help="where orders are taken")
    parser.add_argument(
        "--model",
        type=Path,
        action="append",
        default=[],
        help="a checkpoint whose tokenizer is read in advance",
    )
    flags = parser.parse_args()
    started_with = dict(os.environ)
    from worker_engine.program import calm_openmp, run

    calm_openmp()
    # Its threads would start with numpy. The worker multiplies nothing with it.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    startup = Startup()
    load()
    from worker_engine.zygote.tokenizers import Tokenizers

    tokenizers = Tokenizers(flags.model)
    gc.collect()
    gc.freeze()
    zygote = Zygote(flags.socket, started_with)
    startup.end("imports")
    log.info("taking orders on %s after %.2f s", flags.socket, startup.total)
    ordered = zygote.serve()
    if ordered is None:
        return 0
    order, connection = ordered
    become(order, connection)
    startup = Startup("template", began=order.began)
    return run(order.arguments, order.environment, startup, tokenizers.get)


if __name__ == "__main__":
    sys.exit(main())
