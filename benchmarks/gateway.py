"""What the gateway costs: requests and streams a second, and added latency, beside its ceiling.

Targets, each before the same instant backend: none (direct), a bare pass-through under the same server
and client library (the ceiling in Python), our gateway with key check and durable metering on, and a
LiteLLM proxy where GRAFTWORK_LITELLM_BIN names its program or `.venv-litellm/bin/litellm` exists.
Every round runs every target once, LiteLLM's too, so that a busy machine slows all of them alike; medians
are reported. Beside the rates stands the CPU time that each target's own processes spent on a request:
it tells what a proxy costs even where other work on the machine slows the clock.
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
    request_cpu_us: float
    stream_cpu_us: float
    generator: str


@dataclass(frozen=True, slots=True)
class Target:
    """Something to put load on; `pid` is the parent of all its processes."""

    url: str
    pid: int

    def cpu_seconds(self) -> float:
        """User and system time of its processes so far; 0 where there is no /proc."""
        ticks = sum(_ticks(pid) for pid in _tree(self.pid))
        return ticks / os.sysconf("SC_CLK_TCK")


def run() -> Iterator[Figure]:
    """Measures every target and yields the figures."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=_disk())))
        port = _free_port()
        pid = _spawn(stack, "benchmarks.instant_upstream", "--port", str(port))
        direct = Target(_wait(f"http://127.0.0.1:{port}"), pid)
        targets = {
            "direct": direct,
            "ceiling": _passthrough(stack, direct.url),
            "gateway": _gateway(stack, folder, direct.url),
        }
        if program := _litellm_program():
            targets["litellm"] = _litellm(stack, program, folder, direct.url)
        measured = _rounds(targets)
        yield from _against_ceiling(measured)
        if "litellm" in measured:
            yield from _against_litellm(measured["gateway"], measured["litellm"])


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
    for metric, value, baseline in (
        ("CPU of a request", ours.request_cpu_us, bare.request_cpu_us),
        ("CPU of a stream", ours.stream_cpu_us, bare.stream_cpu_us),
    ):
        yield compared(
            "gateway", metric, value, "us", baseline=baseline, goal=round(1 / GOAL_OF_CEILING, 2),
            less_is_better=True, note="user and system time of its processes; baseline: bare pass-through",
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


def _rounds(targets: Mapping[str, Target]) -> dict[str, Measured]:
    seen: dict[str, list[tuple[_Run, _Run, _Run]]] = {name: [] for name in targets}
    for number in range(ROUNDS + 1):
        for name, target in targets.items():
            seconds = SECONDS if number else 1  # the first round warms up
            plain = _load(target, PLAIN, CONNECTIONS, seconds)
            stream = _load(target, STREAM, CONNECTIONS, seconds)
            single = _load(target, PLAIN, 1, seconds)
            if number:
                seen[name].append((plain, stream, single))
    median = statistics.median
    return {
        name: Measured(
            requests=median(plain.load.per_second for plain, _, _ in runs),
            streams=median(stream.load.per_second for _, stream, _ in runs),
            p50_ms=median(single.load.p50_ms for _, _, single in runs),
            request_cpu_us=median(plain.cpu_us for plain, _, _ in runs),
            stream_cpu_us=median(stream.cpu_us for _, stream, _ in runs),
            generator=runs[0][0].load.generator,
        )
        for name, runs in seen.items()
    }


@dataclass(frozen=True, slots=True)
class _Run:
    load: load.Load
    cpu_us: float
    """CPU time of the target per answer."""


def _load(target: Target, body: bytes, connections: int, seconds: int) -> _Run:
    before = target.cpu_seconds()
    seen = load.run(target.url + "/v1/chat/completions", body, KEY, connections=connections, seconds=seconds)
    spent = target.cpu_seconds() - before
    return _Run(seen, spent / max(1.0, seen.per_second * seconds) * 1e6)


def _tree(pid: int) -> Iterator[int]:
    yield pid
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from _tree(int(child))


def _ticks(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])


def _passthrough(stack: contextlib.ExitStack, upstream: str) -> Target:
    port = _free_port()
    pid = _spawn(stack, "benchmarks.passthrough", "--port", str(port), "--upstream", upstream)
    return Target(_wait(f"http://127.0.0.1:{port}"), pid)


def _gateway(stack: contextlib.ExitStack, folder: Path, upstream: str) -> Target:
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
    pid = _spawn(stack, "gateway", environ=environ)
    return Target(_wait(f"http://127.0.0.1:{port}", "/readyz"), pid)


def _litellm_program() -> str | None:
    named = os.environ.get("GRAFTWORK_LITELLM_BIN")
    beside = ROOT / ".venv-litellm" / "bin" / "litellm"
    return named or (str(beside) if beside.exists() else None)


def _litellm(stack: contextlib.ExitStack, program: str, folder: Path, upstream: str) -> Target:
    port = _free_port()
    model = {"model": "openai/base", "api_base": upstream + "/v1", "api_key": "none"}
    config = {
        "model_list": [{"model_name": "base", "litellm_params": model}],
        "general_settings": {"master_key": KEY},
    }
    path = folder / "litellm.yaml"
    path.write_text(json.dumps(config))
    address = ["--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"]
    environ = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_TELEMETRY": "False"}
    pid = _start(stack, [program, "--config", str(path), *address], environ)
    return Target(_wait(f"http://127.0.0.1:{port}", "/health/liveliness", seconds=120), pid)


def _publishes(client: redis.Redis, table: RouteTable) -> bool:
    try:
        client.set(ROUTES_SNAPSHOT, json.dumps(table.to_dict()))
        client.set(ROUTES_VERSION, table.version)
    except redis.exceptions.ConnectionError:
        return False
    return True


def _spawn(
    stack: contextlib.ExitStack, module: str, *arguments: str, environ: Mapping[str, str] | None = None
) -> int:
    return _start(stack, [sys.executable, "-m", module, *arguments], environ or {})


def _start(stack: contextlib.ExitStack, command: Sequence[str], environ: Mapping[str, str]) -> int:
    process = subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, **environ}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    stack.callback(_stop, process)
    return process.pid


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
