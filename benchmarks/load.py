"""A closed loop of HTTP requests: `wrk` if installed, else a small built-in one."""

from __future__ import annotations

import asyncio
import re
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

_UNITS = {"us": 0.001, "ms": 1.0, "s": 1000.0}


@dataclass(frozen=True, slots=True)
class Load:
    """A closed loop's answers per second and median latency."""

    per_second: float
    p50_ms: float
    generator: str


def run(
    url: str,
    body: bytes,
    key: str,
    *,
    connections: int,
    seconds: int,
    headers: Mapping[str, str] | None = None,
) -> Load:
    """POST `body` to `url` over `connections` kept-alive connections for `seconds`.

    Raises:
        RuntimeError: an answer was not a 200.
    """
    every = {"content-type": "application/json", "authorization": f"Bearer {key}", **(headers or {})}
    if wrk := shutil.which("wrk"):
        return _wrk(wrk, url, body, every, connections, seconds)
    return asyncio.run(_loop(url, body, every, connections, seconds))


def _wrk(wrk: str, url: str, body: bytes, headers: Mapping[str, str], connections: int, seconds: int) -> Load:
    script = f"wrk.method = 'POST'\nwrk.body = [==[{body.decode()}]==]\n"
    script += "".join(f"wrk.headers['{name}'] = '{value}'\n" for name, value in headers.items())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "post.lua"
        path.write_text(script)
        size = [f"-c{connections}", "-t1", f"-d{seconds}s", "--latency", "--timeout", "30s"]
        out = subprocess.run([wrk, *size, "-s", path, url], capture_output=True, text=True, check=True).stdout
    rate, median = re.search(r"Requests/sec:\s*([\d.]+)", out), re.search(r"50%\s+([\d.]+)(us|ms|s)", out)
    if "Non-2xx" in out or "Socket errors" in out or rate is None or median is None:
        raise RuntimeError(f"the load on {url} failed:\n{out}")
    return Load(float(rate[1]), float(median[1]) * _UNITS[median[2]], "wrk")


async def _loop(url: str, body: bytes, headers: Mapping[str, str], connections: int, seconds: int) -> Load:
    parts = urlsplit(url)
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = f"POST {parts.path} HTTP/1.1\r\nhost: {parts.netloc}\r\n{lines}"
    request = f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
    deadline = time.perf_counter() + seconds
    latencies: list[float] = []

    async def client() -> None:
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        while time.perf_counter() < deadline:
            started = time.perf_counter()
            writer.write(request)
            await _answer(reader, url)
            latencies.append(time.perf_counter() - started)
        writer.close()

    await asyncio.gather(*(client() for _ in range(connections)))
    return Load(len(latencies) / seconds, statistics.median(latencies) * 1000, "own loop")


async def _answer(reader: asyncio.StreamReader, url: str) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    if b" 200 " not in head.partition(b"\r\n")[0]:
        raise RuntimeError(f"the load on {url} failed: {head!r}")
    if match := re.search(rb"content-length:\s*(\d+)", head):
        await reader.readexactly(int(match[1]))
        return
    while size := int(await reader.readline(), 16):
        await reader.readexactly(size + 2)
    await reader.readline()
