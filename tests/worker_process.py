"""Run worker processes, forked from one zygote per test process, and call them over HTTP."""

from __future__ import annotations

import atexit
import contextlib
import http.client
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai

from tests.budget import METER
from tests.conftest import ROOT, free_port, stop
from tests.waiting import eventually
from worker_engine.zygote.handover import VARIABLE
from worker_engine.zygote.order import READ_AT_LOAD

TOKEN = "fleet-secret"


@dataclass(frozen=True)
class Worker:
    """A worker that runs, and its HTTP interface on the loopback interface."""

    port: int
    process: subprocess.Popen[bytes]

    def call(
        self, path: str, body: object = None, *, token: str = TOKEN, raw: bytes | None = None
    ) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        data = raw if raw is not None else None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {token}", "x-request-id": "r-1"}
        with contextlib.closing(connection):
            connection.request("GET" if data is None else "POST", path, data, headers)
            answer = connection.getresponse()
            content = answer.read()
        return answer.status, json.loads(content) if content[:1] == b"{" else content.decode()

    def is_healthy(self) -> bool:
        """Return True once the worker answers its health check."""
        with contextlib.suppress(OSError):
            return self.call("/health")[0] == 200
        return False

    def start_kind(self) -> str:
        """Return "template" for a fork of the zygote, "fresh" for a process of its own."""
        return str(self.call("/health")[1]["startup"]["kind"])

    def complete(self, **body: object) -> tuple[int, Any]:
        values: dict[str, object] = {"model": "tiny", "prompt": "hello", "max_tokens": 5, "ignore_eos": True}
        return self.call("/v1/completions", values | body)

    def metric(self, name: str) -> int:
        lines = self.call("/metrics")[1].splitlines()
        return next(
            int(float(line.split()[1])) for line in lines if line.startswith(f"graftwork_worker_{name} ")
        )

    @property
    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"http://127.0.0.1:{self.port}/v1", api_key=TOKEN, max_retries=0)


class WorkerZygote:
    """The zygote of a test process (`python -m worker_engine.zygote`), started on first need."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = Path()

    def socket(self) -> Path:
        """Return the socket on which the zygote takes orders; the first call starts the server."""
        if self._process is None:
            # All tests of this process share the zygote, so the first one to need it does not pay for it.
            with METER.uncharged():
                self._folder = Path(tempfile.mkdtemp(prefix="worker-zygote-"))
                self._process = self._start()
                atexit.register(self.stop)
                eventually(lambda: self._path.exists() or self._process_ended())
            if self._process_ended():
                raise RuntimeError(f"the zygote did not start: {(self._folder / 'log').read_text()}")
        return self._path

    def stop(self) -> None:
        """End the zygote, if it runs."""
        if self._process is not None:
            stop(self._process)
            self._process = None
            shutil.rmtree(self._folder)

    def _start(self) -> subprocess.Popen[bytes]:
        # The tether ends the zygote with this process, even when this process is killed.
        command = [
            sys.executable,
            "-m",
            "sagemaker_local.copies.tether",
            str(os.getpid()),
            sys.executable,
            "-m",
            "worker_engine.zygote",
            str(self._path),
        ]
        with (self._folder / "log").open("wb") as log:
            return subprocess.Popen(command, cwd=ROOT, env=_environment(), stdout=log, stderr=log)

    @property
    def _path(self) -> Path:
        return self._folder / "socket"

    def _process_ended(self) -> bool:
        return self._process is None or self._process.poll() is not None


ZYGOTE = WorkerZygote()
INHERITED = ("GRAFTWORK_WORKER_CACHE_DIR", "GRAFTWORK_WORKER_NATIVE", "LANG", "LD_LIBRARY_PATH", "PYTHONPATH")
"""Variables of READ_AT_LOAD that reach tests' workers: those that the local provisioner passes on too."""


def _environment() -> dict[str, str]:
    """Return this process's environment with the same READ_AT_LOAD variables for every worker."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in INHERITED or not name.startswith(READ_AT_LOAD)
    }
    kept.pop(VARIABLE, None)
    return kept | {"OMP_NUM_THREADS": "1"}


def worker_environment(*, from_cold: bool = False) -> dict[str, str]:
    """Return the environment with which a process starts its worker from the zygote.

    Args:
        from_cold: leave the zygote out, so that the worker imports everything itself.
    """
    return _environment() | ({} if from_cold else {VARIABLE: str(ZYGOTE.socket())})


def assert_forked(folder: Path) -> None:
    """Fail if a worker that has its log under `folder` had to start without the zygote."""
    for path in folder.rglob("*log*"):
        if path.is_file():
            text = path.read_text(errors="replace")
            assert "starts without the zygote" not in text, f"{path}: {text}"


@contextlib.contextmanager
def run_worker(
    model: Path,
    folder: Path,
    *flags: str,
    program: Sequence[str] = ("-m", "worker_engine"),
    variables: Mapping[str, str] | None = None,
    from_cold: bool = False,
) -> Iterator[Worker]:
    """Run a worker that serves `model` as `tiny`, until the context ends.

    Its log is `folder / "log"`, its adapter cache `folder / "cache"`.

    Args:
        program: what Python runs in place of the module `worker_engine`; always from cold.
        variables: added to the environment; one that libraries read at load needs `from_cold`.
        from_cold: start a process of its own in place of a fork of the session's zygote.
    """
    from_cold = from_cold or program != ("-m", "worker_engine")
    port = free_port()
    command = [
        sys.executable,
        *program,
        "--model",
        str(model),
        "--served-model-name",
        "tiny",
        "--port",
        str(port),
        "--adapter-cache-dir",
        str(folder / "cache"),
        "--num-threads",
        "1",
        *flags,
    ]
    environment = worker_environment(from_cold=from_cold) | {"GRAFTWORK_FLEET_TOKEN": TOKEN}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, env={**environment, **(variables or {})}, stdout=log, stderr=log)
    worker = Worker(port, process)
    try:
        eventually(lambda: process.poll() is not None or worker.is_healthy())
        if process.poll() is not None:
            raise RuntimeError(f"the worker did not start: {(folder / 'log').read_text()}")
        if not from_cold:
            assert worker.start_kind() == "template", (folder / "log").read_text()
        yield worker
    finally:
        stop(process)
