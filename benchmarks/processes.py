"""Processes of a benchmark: started, waited for, their CPU time and memory read, killed, ended."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Final
from urllib.parse import urlsplit

import httpx
import psycopg
from psycopg import sql

from demo.model import model_folder
from demo.valkey import server_command

ROOT: Final = Path(__file__).resolve().parents[1]
DEMO_MODEL: Final = model_folder()
POSTGRES: Final = os.environ.get(
    "GRAFTWORK_TEST_POSTGRES_URL", "postgresql://postgres@127.0.0.1:5432/postgres"
)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def start(
    stack: contextlib.ExitStack,
    command: Sequence[str],
    environ: Mapping[str, str] = os.environ,
    *,
    output: int | IO[bytes] = subprocess.DEVNULL,
) -> subprocess.Popen[bytes]:
    """Start a program that ends with `stack`."""
    process = subprocess.Popen(command, cwd=ROOT, env=environ, stdout=output, stderr=output)
    stack.callback(end, process)
    return process


def end(process: subprocess.Popen[bytes], grace: float = 10.0) -> None:
    """Send SIGTERM, then SIGKILL if it does not end in time."""
    process.terminate()
    try:
        process.wait(grace)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def start_valkey(stack: contextlib.ExitStack, folder: Path) -> int:
    """Start a Redis-compatible server with its data in `folder`; return its port once it serves."""
    port = free_port()
    start(stack, server_command(port=port, folder=folder))
    wait_until(partial(accepts, port), name="the Redis-compatible server")
    return port


def product_environ(
    database_url: str, folder: Path, *, web: int, gateway: int, valkey: int
) -> dict[str, str]:
    """Return the variables of the control plane and a gateway, with their ports; files are in `folder`."""
    return {
        "DJANGO_SETTINGS_MODULE": "controlplane.settings",
        "GRAFTWORK_DATABASE_URL": database_url,
        "GRAFTWORK_REDIS_URL": f"redis://127.0.0.1:{valkey}/0",
        "GRAFTWORK_SECRET_KEY": "bench",
        "GRAFTWORK_FLEET_TOKEN": "bench",
        "GRAFTWORK_API_RATE": "999999",
        "GRAFTWORK_GATEWAY_PORT": str(gateway),
        "GRAFTWORK_GATEWAY_URL": f"http://127.0.0.1:{gateway}/v1",
        "GRAFTWORK_WEB_URL": f"http://127.0.0.1:{web}",
        "GRAFTWORK_WAL_DIR": str(folder / "wal"),
        "GRAFTWORK_ARTIFACT_STORE": f"file://{folder / 'store'}",
    }


@contextlib.contextmanager
def new_database(server: str) -> Iterator[str]:
    """Create an empty database on a PostgreSQL server; yield its URL, and drop it afterwards."""
    name = f"graftwork_bench_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            yield urlsplit(server)._replace(path=f"/{name}").geturl()
        finally:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def run_python(environ: Mapping[str, str], *arguments: str) -> str:
    """Run Python with these arguments and return what it prints."""
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environ, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout


def wait_until(what: Callable[[], object], *, name: str, seconds: float = 30.0, pause: float = 0.05) -> None:
    """Wait until `what` is true. A server that does not answer yet is waited for, too.

    Raises:
        TimeoutError: it did not become true; the text has `name`.
    """
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(OSError, httpx.TransportError):
            if what():
                return
        if time.monotonic() > deadline:
            raise TimeoutError(f"{name}: not within {seconds:g} s")
        time.sleep(pause)


def accepts(port: int) -> bool:
    """Return True once the port of this machine accepts connections. Raises OSError before."""
    socket.create_connection(("127.0.0.1", port), 1).close()
    return True


def status_of(url: str) -> int:
    """Return the status of a GET. Raises httpx.TransportError when nothing answers."""
    return httpx.get(url, timeout=10, trust_env=False).status_code


def family(pid: int) -> Iterator[int]:
    """Yield a process and all that it has started."""
    yield pid
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from family(int(child))


def memory_mib(pid: int, field: str, file: str = "status") -> float:
    """Return a memory figure from a file of /proc, 0 once the process has ended.

    Fields are VmRSS and VmHWM of `status`, and Pss of `smaps_rollup`.
    """
    try:
        lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{field}:")), 0.0)


def cpu_ticks(pid: int) -> int:
    """Return user and system time in clock ticks, 0 once the process has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])


@dataclass(slots=True)
class Killable:
    """A process that is killed and restarted repeatedly.

    Attributes:
        environ: variables added to this process's environment.
        deaths: `time.monotonic()` just before each SIGKILL.
    """

    name: str
    command: Sequence[str]
    environ: Mapping[str, str]
    log: Path
    port: int = 0
    deaths: list[float] = field(default_factory=list)
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, cwd=ROOT, env={**os.environ, **self.environ}, stdout=log, stderr=log
            )

    def kill(self, rng: random.Random) -> None:
        """Send SIGKILL to it and its child processes, in random order, and wait until all are dead."""
        if self.process is None or self.process.poll() is not None:
            return
        members = list(family(self.process.pid))
        rng.shuffle(members)
        self.deaths.append(time.monotonic())
        for pid in members:
            # A process that just ended by itself is also dead.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        while any(map(_lives, members)):
            time.sleep(0.005)

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            end(self.process, grace=60.0)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
