"""A caller that hangs up ends the worker's request behind every family's front."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controlplane.deployments.containers.options import LmiOptions
from controlplane.deployments.containers.triton import triton_environment, triton_repository
from tests.conftest import ROOT, free_port, stop
from tests.sagemaker_local.containers.test_tgi import TGI
from tests.sagemaker_local.containers.test_triton import ENGINE, IMAGE, VLLM, WEIGHTS
from tests.waiting import eventually
from tests.worker_process import Worker, worker_environment

LONG = 8000
"""Tokens of an answer, for which the worker needs seconds: it must still run when the caller hangs up."""
LENGTH = 8192
ASKS: dict[str, Any] = {
    "tgi": {"inputs": "hello", "stream": True, "parameters": {"max_new_tokens": LONG, "details": True}},
    "triton-chat": {
        "text_input": json.dumps({"prompt": "hello", "sampling": {"max_tokens": LONG, "ignore_eos": True}})
    },
    "triton": {"text_input": "hello", "stream": True, "parameters": {"max_tokens": LONG, "ignore_eos": True}},
}


@pytest.fixture
def long_model(tiny_model: Path, tmp_path: Path) -> Path:
    """The tiny model with room for long answers, and no token that ends them."""
    model = tmp_path / "model"
    shutil.copytree(tiny_model, model)
    config = json.loads((model / "config.json").read_text())
    config |= {"max_position_embeddings": LENGTH, "eos_token_id": None}
    (model / "config.json").write_text(json.dumps(config))
    return model


@pytest.fixture(params=sorted(ASKS))
def front(
    request: pytest.FixtureRequest, long_model: Path, tmp_path: Path
) -> Iterator[tuple[str, int, subprocess.Popen[bytes]]]:
    """A running container of the family: its name, its port and its process."""
    kind, port = str(request.param), free_port()
    family = kind.partition("-")[0]
    repository, folders = tmp_path / "repository", {"/opt/ml/model": long_model}
    variables = {"HF_MODEL_ID": "/opt/ml/model", "SAGEMAKER_TRITON_INFERENCE_TYPE": "generate_stream"}
    if family == "triton":
        files = {
            "engine/config.pbtxt": VLLM,
            "engine/1/model.json": json.dumps({**ENGINE, "max_model_len": LENGTH}),
        }
        if kind == "triton-chat":
            options = LmiOptions(enable_lora=False, max_model_len=LENGTH)
            files = triton_repository(options, model=WEIGHTS, revision="", accelerators=1, adapters={})
            variables = triton_environment()
        for path, text in files.items():
            (repository / path).parent.mkdir(parents=True, exist_ok=True)
            (repository / path).write_text(text)
        folders = {"/opt/ml/model": repository, WEIGHTS: long_model}
    (tmp_path / "adapters").mkdir()
    command = [sys.executable, "-m", "sagemaker_local.containers", family, "--port", str(port)]
    command += ["--image", TGI if family == "tgi" else IMAGE]
    command += ["--adapters-dir", str(tmp_path / "adapters"), "--cache-dir", str(tmp_path / "cache")]
    command += [f"--folder={name}={folder}" for name, folder in folders.items()]
    small = {"GRAFTWORK_WORKER_FLAG_MEMORY_GIB": "0.02", "GRAFTWORK_WORKER_FLAG_NUM_THREADS": "1"}
    environment = {**worker_environment(), **small, **variables, "GRAFTWORK_TRUST_NETWORK": "yes"}
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, env=environment)
    try:
        eventually(lambda: process.poll() is not None or pings(Worker(port, process)))
        yield kind, port, process
    finally:
        stop(process, grace=30)


def pings(container: Worker) -> bool:
    with contextlib.suppress(OSError):
        return container.call("/ping")[0] == 200
    return False


def worker_port(front: subprocess.Popen[bytes]) -> int:
    """Port of the front's worker, from its command line."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        words = path.read_bytes().split(b"\0")
        parent = (path.parent / "stat").read_text().rpartition(")")[2].split()[1]
        if parent == str(front.pid) and b"worker_engine" in words:
            return int(words[words.index(b"--port") + 1])
    raise AssertionError("the front has no worker")


@pytest.mark.costly("a front and its worker")
def test_a_hang_up_ends_the_workers_request(front: tuple[str, int, subprocess.Popen[bytes]]) -> None:
    kind, port, process = front
    worker = Worker(worker_port(process), process)
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("POST", "/invocations", json.dumps(ASKS[kind]))
        with connection.getresponse() as answer:
            assert answer.status == 200
            assert answer.readline().startswith(b"data:")
            assert worker.metric("requests_running") == 1
    eventually(lambda: worker.metric("requests_running") == 0)
