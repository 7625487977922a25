"""What the gateway costs: requests and streams a second, and added latency, beside its ceiling.

Targets, each before the same instant backend: none (direct), a bare pass-through under the same server
and client library (the ceiling in Python), our gateway with key check and durable metering on, and a
LiteLLM proxy where GRAFTWORK_LITELLM_BIN names its program or `.venv-litellm/bin/litellm` exists.
Rounds alternate between the targets, so that a busy machine slows all of them; medians are reported.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import redis

from benchmarks import load
from benchmarks.figure import Figure, compared
from demo.valkey import server_command
from gateway.wire import (
    ROUTES_SNAPSHOT,
    ROUTES_VERSION,
    BaseRoute,
    CopyRoute,
    KeyRoute,
    RouteTable,
    TenantRoute,
)

ROOT: Final = Path(__file__).resolve().parent.parent
KEY: Final = "gw_bench_secret"
ROUNDS: Final = 3
SECONDS: Final = 3
CONNECTIONS: Final = 16
GOAL_OF_CEILING: Final = 0.6
GOAL_OVER_LITELLM: Final = 30.0
_MESSAGES: Final = [{"role": "user", "content": "Say what you can do in 64 words."}]
PLAIN: Final = json.dumps({"model": "base", "messages": _MESSAGES}).encode()
STREAM: Final = json.dumps({"model": "base", "messages": _MESSAGES, "stream": True}).encode()


@dataclass(frozen=True, slots=True)
class Measured:
    """Medians of one target."""

    requests: float
    streams: float
    p50_ms: float
    generator: str


def run() -> Iterator[Figure]:
    """Measures every target and yields the figures."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=_disk())))
        port = _free_port()
        _spawn(stack, "benchmarks.instant_upstream", "--port", str(port))
        direct = _wait(f"http://127.0.0.1:{port}")
        targets = {
            "direct": direct,
            "ceiling": _passthrough(stack, direct),
            "gateway": _gateway(stack, folder, direct),
        }
        measured = _rounds(targets, ROUNDS)
        yield from _against_ceiling(measured)
        if program := _litellm_program():
            proxy = _litellm(stack, program, folder, direct)
            yield from _against_litellm(measured["gateway"], _rounds({"litellm": proxy}, 1)["litellm"])


def _against_ceiling(measured: Mapping[str, Measured]) -> Iterator[Figure]:
    ours, bare, direct = measured["gateway"], measured["ceiling"], measured["direct"]
    note = f"{ours.generator}, {CONNECTIONS} connections; direct to the backend: "
    yield compared(
        "gateway", "requests", ours.requests, "1/s", baseline=bare.requests, goal=GOAL_OF_CEILING,
        note=f"{note}{direct.requests:.0f}; baseline: bare pass-through",
    )  # fmt: skip
    yield compared(
        "gateway", "streams of 64 events", ours.streams, "1/s", baseline=bare.streams, goal=GOAL_OF_CEILING,
        note=f"{note}{direct.streams:.0f}; baseline: bare pass-through",
    )  # fmt: skip
    yield compared(
        "gateway", "added p50 at 1 connection", ours.p50_ms - direct.p50_ms, "ms",
        baseline=bare.p50_ms - direct.p50_ms,
        note=f"one synchronous write a request; direct: {direct.p50_ms:.3f} ms; baseline: bare pass-through",
    )  # fmt: skip


def _against_litellm(ours: Measured, litellm: Measured) -> Iterator[Figure]:
    note = f"{ours.generator}, {CONNECTIONS} connections; baseline: LiteLLM proxy, 1 worker, no database"
    yield compared(
        "gateway", "requests beside LiteLLM", ours.requests, "1/s",
        baseline=litellm.requests, goal=GOAL_OVER_LITELLM, note=note,
    )  # fmt: skip
    yield compared(
        "gateway", "streams beside LiteLLM", ours.streams, "1/s", baseline=litellm.streams, note=note
    )
    yield Figure("gateway", "p50 of LiteLLM at 1 connection", round(litellm.p50_ms, 3), "ms", note=note)


def _rounds(targets: Mapping[str, str], rounds: int) -> dict[str, Measured]:
    seen: dict[str, list[tuple[load.Load, load.Load, load.Load]]] = {name: [] for name in targets}
    for number in range(rounds + 1):
        for name, base in targets.items():
            url = base + "/v1/chat/completions"
            seconds = SECONDS if number else 1  # the first round warms up
            shape = [(PLAIN, CONNECTIONS), (STREAM, CONNECTIONS), (PLAIN, 1)]
            plain, stream, single = (
                load.run(url, body, KEY, connections=size, seconds=seconds) for body, size in shape
            )
            if number:
                seen[name].append((plain, stream, single))
    return {
        name: Measured(
            statistics.median(item[0].per_second for item in loads),
            statistics.median(item[1].per_second for item in loads),
            statistics.median(item[2].p50_ms for item in loads),
            loads[0][0].generator,
        )
        for name, loads in seen.items()
    }


def _passthrough(stack: contextlib.ExitStack, upstream: str) -> str:
    port = _free_port()
    _spawn(stack, "benchmarks.passthrough", "--port", str(port), "--upstream", upstream)
    return _wait(f"http://127.0.0.1:{port}")


def _gateway(stack: contextlib.ExitStack, folder: Path, upstream: str) -> str:
    valkey, port = _free_port(), _free_port()
    (folder / "valkey").mkdir()
    _start(stack, server_command(port=valkey, folder=folder / "valkey"), {})
    digest = hashlib.sha256(b"secret").hexdigest()
    table = RouteTable(
        version=1,
        keys={"bench": KeyRoute("acme", digest)},
        tenants={"acme": TenantRoute("Acme", "00ff")},
        bases={"base": BaseRoute("base", 2048, (CopyRoute("copy", "worker", upstream),))},
    )
    client = redis.Redis(port=valkey)
    _until(lambda: _publishes(client, table))
    client.close()
    environ = {
        "GRAFTWORK_REDIS_URL": f"redis://127.0.0.1:{valkey}/0",
        "GRAFTWORK_FLEET_TOKEN": "fleet",
        "GRAFTWORK_GATEWAY_PORT": str(port),
        "GRAFTWORK_GATEWAY_ID": "bench",
        "GRAFTWORK_WAL_DIR": str(folder / "wal"),
    }
    _spawn(stack, "gateway", environ=environ)
    return _wait(f"http://127.0.0.1:{port}", "/readyz")


def _litellm_program() -> str | None:
    named = os.environ.get("GRAFTWORK_LITELLM_BIN")
    beside = ROOT / ".venv-litellm" / "bin" / "litellm"
    return named or (str(beside) if beside.exists() else None)


def _litellm(stack: contextlib.ExitStack, program: str, folder: Path, upstream: str) -> str:
    port = _free_port()
    model = {"model": "openai/base", "api_base": upstream + "/v1", "api_key": "none"}
    config = {
        "model_list": [{"model_name": "base", "litellm_params": model}],
        "general_settings": {"master_key": KEY},
    }
    path = folder / "litellm.yaml"
    path.write_text(json.dumps(config))
    command = [
        program,
        "--config",
        str(path),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--num_workers",
        "1",
    ]
    _start(stack, command, {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_TELEMETRY": "False"})
    return _wait(f"http://127.0.0.1:{port}", "/health/liveliness", seconds=120)


def _publishes(client: redis.Redis, table: RouteTable) -> bool:
    try:
        client.set(ROUTES_SNAPSHOT, json.dumps(table.to_dict()))
        client.set(ROUTES_VERSION, table.version)
    except redis.exceptions.ConnectionError:
        return False
    return True


def _spawn(
    stack: contextlib.ExitStack, module: str, *arguments: str, environ: Mapping[str, str] | None = None
) -> None:
    _start(stack, [sys.executable, "-m", module, *arguments], environ or {})


def _start(stack: contextlib.ExitStack, command: Sequence[str], environ: Mapping[str, str]) -> None:
    process = subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, **environ}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    stack.callback(_stop, process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _disk() -> Path:
    """A folder on a real disk: on a memory file system a synchronous write costs nothing."""
    folder = ROOT / "var" / "benchmarks"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _wait(url: str, path: str = "", *, seconds: float = 30) -> str:
    """`url`, once it answers with 200 (or, without a path, accepts connections)."""

    def answers() -> bool:
        host, _, port = url.removeprefix("http://").partition(":")
        try:
            if not path:
                socket.create_connection((host, int(port)), 1).close()
                return True
            with urllib.request.urlopen(url + path, timeout=2) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False

    _until(answers, seconds=seconds)
    return url


def _until(what: Callable[[], bool], *, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        if time.monotonic() > deadline:
            raise TimeoutError("a process of the benchmark did not come up")
        time.sleep(0.05)
