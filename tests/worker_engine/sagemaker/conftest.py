"""A worker process with adapters that are there from the start, and a way to call it as SageMaker does."""

from __future__ import annotations

import http.client
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.worker_process import TOKEN, Worker, run_worker

HEADER = "X-Amzn-SageMaker-Adapter-Identifier"


@dataclass(frozen=True)
class Container:
    """A worker, and the folder that its local adapters may come from: `plain` and `all` at the start."""

    worker: Worker
    root: Path

    def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        raw: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        token: str = TOKEN,
    ) -> tuple[int, str, Any]:
        """Status, content type, and the body: parsed when it is JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.worker.port, timeout=60)
        data = raw if raw is not None else None if body is None else json.dumps(body).encode()
        connection.request(method, path, data, {"Authorization": f"Bearer {token}", **(headers or {})})
        answer = connection.getresponse()
        content, kind = answer.read(), answer.headers.get("Content-Type", "")
        connection.close()
        return answer.status, kind, json.loads(content) if "application/json;" in kind else content.decode()

    def invoke(self, body: object, **headers: str) -> Any:
        """The answer to an invocation that must succeed."""
        status, _, answer = self.call("POST", "/invocations", body, headers=headers)
        assert status == 200, answer
        return answer


@pytest.fixture(scope="module")
def container(
    tiny_model: Path, tiny_adapters: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Container]:
    folder = tmp_path_factory.mktemp("container")
    root = folder / "adapters"
    for name in ("plain", "all"):
        shutil.copytree(tiny_adapters[name], root / name)
    with run_worker(tiny_model, folder, "--adapters-dir", str(root), "--memory-gib", "0.01") as worker:
        yield Container(worker, root)
