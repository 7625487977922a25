"""A local SageMaker as a process, in front of a real worker process with adapters."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import httpx
from botocore.config import Config

from tests.conftest import ROOT, free_port, stop
from tests.sagemaker_local.stand import ADMIN, ADMIN_TOKEN, answers
from tests.waiting import eventually
from tests.worker_process import TOKEN, Worker, run_worker

REGION = "eu-central-1"
KEY = {"access_key": "AKIDLOCAL", "secret_key": "local-secret"}
TEMPORARY = {"access_key": "ASIALOCAL", "secret_key": "short-lived", "session_token": "session/+=token"}
PART_BYTES = 100
"""Small and odd to the lines' lengths, so that lines straddle parts."""


@dataclass(frozen=True)
class LocalSageMaker:
    """A running local SageMaker; `worker` is its container."""

    port: int
    worker: Worker
    adapters: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def container(self) -> dict[str, str]:
        return {"url": f"http://127.0.0.1:{self.worker.port}", "token": TOKEN}

    def boto3(self, key: dict[str, str] = KEY, region: str = REGION) -> Any:
        return boto3.client(
            "sagemaker-runtime",
            endpoint_url=self.url,
            region_name=region,
            aws_access_key_id=key["access_key"],
            aws_secret_access_key=key["secret_key"],
            aws_session_token=key.get("session_token"),
            config=Config(retries={"total_max_attempts": 1}),
        )

    def put(self, path: str, body: Any) -> None:
        httpx.put(f"{self.url}/_local/{path}", json=body, headers=ADMIN).raise_for_status()

    def get(self, path: str) -> Any:
        return httpx.get(f"{self.url}/_local/{path}", headers=ADMIN).raise_for_status().json()

    def fault(self, kind: str, **fields: Any) -> None:
        self.put("faults", [{"kind": kind, **fields}])

    def last(self) -> dict[str, Any]:
        """Return the record of the latest invocation."""
        return dict(self.get("invocations")[-1])


@contextlib.contextmanager
def run_local(
    model: Path, adapters: dict[str, Path], folder: Path, components: dict[str, str]
) -> Iterator[LocalSageMaker]:
    """`components`: adapter components by name, each with the name of one of `adapters`."""
    root, port = folder / "adapters", free_port()
    for name in set(components.values()):
        shutil.copytree(adapters[name], root / name)
    with run_worker(model, folder, "--adapters-dir", str(root), "--memory-gib", "0.02") as worker:
        local = LocalSageMaker(port, worker, root)
        over_base = {name: {"base": "base", "adapter": adapter} for name, adapter in components.items()}
        config = {
            "region": REGION,
            "credentials": [KEY, TEMPORARY],
            "admin_token": ADMIN_TOKEN,
            "part_bytes": PART_BYTES,
            "endpoints": {
                "shared": {
                    "components": {
                        "base": {"container": local.container},
                        "asleep": {"container": local.container, "copies": 0},
                        **over_base,
                    }
                },
                "single": {"container": local.container},
            },
        }
        (folder / "config.json").write_text(json.dumps(config))
        command = [
            sys.executable,
            "-m",
            "sagemaker_local",
            "--config",
            str(folder / "config.json"),
            "--port",
            str(port),
        ]
        with (folder / "sagemaker.log").open("wb") as log:
            process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        try:
            eventually(lambda: process.poll() is not None or answers(local.url))
            assert process.poll() is None, (folder / "sagemaker.log").read_text()
            yield local
        finally:
            stop(process)
