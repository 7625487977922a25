"""Server processes for the HTTP fuzzer, each on its own port."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import redis

from demo.valkey import server_command
from tests.conftest import ROOT, free_port, stop
from tests.gateway.conftest import ControlPlane, GatewayProcess, route_table
from tests.waiting import eventually


@dataclass(frozen=True, slots=True)
class HttpServer:
    """A process that serves HTTP.

    Attributes:
        kind: "echo", "gateway" or "web".
        health: path that answers 200.
    """

    kind: str
    port: int
    pid: int
    health: bytes

    def pids(self) -> list[int]:
        """The process and its children."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return [self.pid, *map(int, children)]


@contextmanager
def echo_server(folder: Path) -> Iterator[HttpServer]:
    """Start the gateway's HTTP server with an application that answers with the request it read."""
    with _process(folder / "echo.log", "-m", "tests.fuzz.echo_server") as (port, pid):
        yield HttpServer("echo", port, pid, b"/")


@contextmanager
def all_servers(folder: Path) -> Iterator[list[HttpServer]]:
    """An echo server, a gateway with its routes and backend, and a control plane's web server."""
    with ExitStack() as stack:
        port, log = free_port(), stack.enter_context((folder / "valkey.log").open("wb"))
        valkey = subprocess.Popen(server_command(port=port, folder=folder), stdout=log, stderr=log)
        stack.callback(stop, valkey)
        _wait_for(port, folder / "valkey.log")
        url = f"redis://127.0.0.1:{port}/0"
        yield [
            stack.enter_context(echo_server(folder)),
            stack.enter_context(_gateway(folder, url)),
            stack.enter_context(_web(folder, url)),
        ]


@contextmanager
def _gateway(folder: Path, redis_url: str) -> Iterator[HttpServer]:
    with (
        _process(folder / "upstream.log", "-m", "benchmarks.canned_upstream", "--port") as (upstream, _),
        redis.Redis.from_url(redis_url) as client,
    ):
        ControlPlane(client).publish(route_table(f"http://127.0.0.1:{upstream}"))
        gateway = GatewayProcess(redis_url, folder / "wal", folder / "gateway.log")
        gateway.start()
        try:
            assert gateway.process is not None
            yield HttpServer("gateway", gateway.port, gateway.process.pid, b"/healthz")
        finally:
            gateway.stop()


@contextmanager
def _web(folder: Path, redis_url: str) -> Iterator[HttpServer]:
    from tests.fuzz.archives import set_up_django

    set_up_django(folder)
    environ = {
        "GRAFTWORK_DATABASE_URL": f"sqlite://{folder / 'fuzz.db'}",
        "GRAFTWORK_REDIS_URL": redis_url,
        "GRAFTWORK_ARTIFACT_STORE": f"file://{folder / 'artifacts'}",
    }
    with _process(folder / "web.log", "-m", "controlplane.web_server", "--port", **environ) as (port, pid):
        yield HttpServer("web", port, pid, b"/login")


@contextmanager
def _process(log_path: Path, *arguments: str, **environ: str) -> Iterator[tuple[int, int]]:
    """Start `python <arguments> <port>`; yield the port and the process's id once it listens."""
    port = free_port()
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, *arguments, str(port)],
            cwd=ROOT,
            env={**os.environ, **environ},
            stdout=log,
            stderr=log,
        )
    try:
        _wait_for(port, log_path)
        yield port, process.pid
    finally:
        stop(process)


def _wait_for(port: int, log: Path) -> None:
    def listens() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    eventually(listens, message=log.read_text)
