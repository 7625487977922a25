"""Start a worker as a process and call it over HTTP."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai

from tests.conftest import free_port, stop

TOKEN = "fleet-secret"


@dataclass(frozen=True)
class Worker:
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

    def complete(self, **body: object) -> tuple[int, Any]:
        values: dict[str, object] = {"model": "tiny", "prompt": "hello", "max_tokens": 5, "ignore_eos": True}
        return self.call("/v1/completions", values | body)

    def metric(self, name: str) -> int:
        lines = self.call("/metrics")[1].splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(f"graftwork_worker_{name} "))

    @property
    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"http://127.0.0.1:{self.port}/v1", api_key=TOKEN, max_retries=0)


@contextlib.contextmanager
def run_worker(
    model: Path,
    folder: Path,
    *flags: str,
    program: Sequence[str] = ("-m", "worker_engine"),
    variables: Mapping[str, str] | None = None,
) -> Iterator[Worker]:
    """Its log is `folder / "log"`, its adapter cache `folder / "cache"`."""
    port = free_port()
    command = [
        sys.executable, *program, "--model", str(model), "--served-model-name", "tiny",
        "--port", str(port), "--adapter-cache-dir", str(folder / "cache"), "--num-threads", "1", *flags,
    ]  # fmt: skip
    environment = (
        os.environ | {"GRAFTWORK_FLEET_TOKEN": TOKEN, "OMP_NUM_THREADS": "1"} | dict(variables or {})
    )
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    worker = Worker(port, process)
    for _ in range(600):
        with contextlib.suppress(OSError):
            if worker.call("/health")[0] == 200:
                break
        if process.poll() is not None:
            break
        time.sleep(0.1)
    else:
        stop(process)
    if process.poll() is not None:
        raise RuntimeError(f"the worker did not start: {(folder / 'log').read_text()}")
    yield worker
    stop(process)
