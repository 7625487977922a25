"""`python -m benchmarks.chaos.demo`: kills each process of the demo under streams and reads the bill.

The demo ends when one of its processes dies. It is started again, ships what was recorded, and then each
stream's usage events are read from its database.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from benchmarks.processes import family

_ROLES: Final = (
    "gateway",
    "worker",
    "valkey",
    "web",
    "celery",
    "celery_long",
    "beat",
    "ingest_usage",
    "publish_routes",
)
_MAX_TOKENS: Final = 300
_START_SECONDS: Final = 300
_BILLED_SECONDS: Final = 60


@dataclass(slots=True)
class Stream:
    """One client's view of its stream.

    Attributes:
        tokens: generated tokens by the last running usage that came.
        end: `whole`, `error <code>` (an error event) or `cut` (the connection broke).
    """

    request_id: str = ""
    tokens: int = 0
    end: str = "cut"


@dataclass(frozen=True, slots=True)
class Row:
    """One killed process: how its streams ended, and what was seen and billed of them."""

    role: str
    ends: Counter[str]
    demo: str
    seen: int
    billed: int
    once: int
    statuses: Counter[str]


@contextmanager
def _demo(var: Path, port: int) -> Iterator[dict[str, Any]]:
    """The running demo's demo.json."""
    log = (var / "out.log").open("ab")
    command = [sys.executable, "-m", "demo", "--no-sample", "--var", str(var), "--port-base", str(port)]
    process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + _START_SECONDS
        while not (var / "demo.json").exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the demo did not start: see {log.name}")
            time.sleep(0.2)
        yield json.loads((var / "demo.json").read_text()) | {"process": process}
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(60)
        log.close()


async def _stream(client: httpx.AsyncClient, demo: dict[str, Any], number: int) -> Stream:
    tenant = demo["tenants"][number % len(demo["tenants"])]
    models = tenant["adapters"] or [tenant["base_model"]]
    seen = Stream()
    body = {
        "model": models[number % len(models)],
        "messages": [{"role": "user", "content": f"Count from {number} upwards."}],
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "max_tokens": _MAX_TOKENS,
        "ignore_eos": True,
    }
    headers = {"Authorization": f"Bearer {tenant['api_key']}"}
    try:
        async with client.stream(
            "POST", f"{demo['gateway']}/chat/completions", json=body, headers=headers
        ) as answer:
            seen.request_id = answer.headers.get("x-request-id", "")
            if answer.status_code != 200:
                seen.end = f"HTTP {answer.status_code}"
            async for line in answer.aiter_lines():
                _read(line, seen)
    except httpx.HTTPError:
        pass
    return seen


def _read(line: str, seen: Stream) -> None:
    data = line.removeprefix("data: ")
    if data == line:
        return
    if data == "[DONE]":
        seen.end = "whole" if seen.end == "cut" else seen.end
        return
    chunk = json.loads(data)
    if "error" in chunk:
        seen.end = f"error {chunk['error'].get('code')}"
    if usage := chunk.get("usage"):
        seen.tokens = usage["completion_tokens"]


def _pid(demo: dict[str, Any], role: str) -> int:
    """The process with this name in the demo: its log is its standard output."""
    for pid in family(demo["process"].pid):
        if Path(os.readlink(f"/proc/{pid}/fd/1")).name == f"{role}.log":
            return pid
    raise RuntimeError(f"the demo has no process {role}")


async def _under_streams(demo: dict[str, Any], role: str, streams: int) -> list[Stream]:
    limits = httpx.Limits(max_connections=streams)
    async with httpx.AsyncClient(timeout=120, limits=limits) as client:
        running = [asyncio.create_task(_stream(client, demo, number)) for number in range(streams)]
        await asyncio.sleep(3)  # every stream has tokens by then
        os.kill(_pid(demo, role), signal.SIGKILL)
        return await asyncio.gather(*running)


def _billed(var: Path, streams: Sequence[Stream]) -> list[tuple[str, str, int]]:
    """Request id, status and generated tokens of the streams' usage events."""
    query = "SELECT request_id, status, completion_tokens FROM metering_usageeventrow"
    ids = {stream.request_id for stream in streams}
    with closing(sqlite3.connect(var / "demo" / "graftwork.db", timeout=30)) as database:
        return [row for row in database.execute(query) if row[0] in ids]


def kill(var: Path, port: int, role: str, streams: int) -> Row:
    """Kills one process under streams and reads the bill of the demo's next start."""
    with _demo(var, port) as demo:
        seen = asyncio.run(_under_streams(demo, role, streams))
        process = demo["process"]
        try:
            process.wait(60)
            ended = f"ended with {process.returncode}"
        except subprocess.TimeoutExpired:
            ended = "went on"
    with _demo(var, port):
        answered = [stream for stream in seen if stream.tokens]
        deadline = time.monotonic() + _BILLED_SECONDS
        while len(_billed(var, seen)) < len(answered) and time.monotonic() < deadline:
            time.sleep(1)
        rows = _billed(var, seen)
    times = Counter(request_id for request_id, _, _ in rows)
    return Row(
        role=role,
        ends=Counter(stream.end for stream in seen),
        demo=ended,
        seen=sum(stream.tokens for stream in seen),
        billed=sum(tokens for _, _, tokens in rows),
        once=sum(times[stream.request_id] == 1 for stream in answered),
        statuses=Counter(status for _, status, _ in rows),
    )


def main() -> int:
    """Prints one row for each process."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos.demo")
    parser.add_argument("--streams", type=int, default=10)
    parser.add_argument("--port-base", type=int, default=18600)
    parser.add_argument("--roles", nargs="+", choices=_ROLES, default=_ROLES)
    options = parser.parse_args()
    print("| killed | streams ended | demo | billed once | tokens seen | billed | statuses |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="graftwork-kill-") as folder:
        for role in options.roles:
            row = kill(Path(folder), options.port_base, role, options.streams)
            ends, statuses = (
                ", ".join(f"{n} {name}" for name, n in each.items()) for each in (row.ends, row.statuses)
            )
            print(
                f"| {row.role} | {ends} | {row.demo} | {row.once} of {options.streams} |"
                f" {row.seen} | {row.billed} | {statuses} |",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
