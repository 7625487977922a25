"""What every test may ask for: free ports, a real Valkey server, the demo model's folder."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from demo.valkey import server_command

ROOT = Path(__file__).resolve().parent.parent
DEMO_MODEL = Path(os.environ.get("GRAFTWORK_DEMO_MODEL", ROOT / "var" / "models" / "smollm2-135m-instruct"))


def free_port() -> int:
    """A loopback TCP port that nobody listens on at this moment."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def stop(process: subprocess.Popen[bytes], *, grace: float = 10.0) -> None:
    """Ends a process that a test started: SIGTERM, then SIGKILL after `grace` seconds."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(grace)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a real Valkey server of this test session's own."""
    port, folder = free_port(), tmp_path_factory.mktemp("valkey")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(server_command(port=port, folder=folder), stdout=log, stderr=log)
    client = redis.Redis(port=port)
    for _ in range(200):
        try:
            client.ping()
            break
        except redis.exceptions.ConnectionError:
            time.sleep(0.05)
    else:
        stop(process)
        raise RuntimeError(f"valkey did not start: {(folder / 'log').read_text()}")
    client.close()
    yield f"redis://127.0.0.1:{port}/0"
    stop(process)


@pytest.fixture
def redis_url(redis_server: str) -> str:
    """The session's Valkey server, emptied before the test."""
    with redis.Redis.from_url(redis_server) as client:
        client.flushall()
    return redis_server


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """Folder of the demo model in Hugging Face form; made by `make setup`."""
    if not (DEMO_MODEL / "model.safetensors").exists():
        pytest.fail(f"the demo model is not at {DEMO_MODEL}: run `make setup`")
    return DEMO_MODEL
