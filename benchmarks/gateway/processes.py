"""Processes of a benchmark: started, waited for, their CPU time and memory read, ended."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Target:
    """Something to put load on; `pid` is the parent of all its processes."""

    url: str
    pid: int
    headers: Mapping[str, str] = field(default_factory=dict)
    """What it needs on each request besides the key."""
    streams: bool = True
    """Whether it passes this backend's streams on."""

    def cpu_seconds(self) -> float:
        """User and system time of its processes so far; 0 where there is no /proc."""
        ticks = sum(_ticks(pid) for pid in tree(self.pid))
        return ticks / os.sysconf("SC_CLK_TCK")

    def resident_mib(self) -> float:
        """Memory of its processes, what they share counted once."""
        return sum(_proportional_kib(pid) for pid in tree(self.pid)) / 1024


def tree(pid: int) -> Iterator[int]:
    """A process and all that it has started."""
    yield pid
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from tree(int(child))


def spawn(
    stack: contextlib.ExitStack, module: str, *arguments: str, environ: Mapping[str, str] | None = None
) -> int:
    """Starts `python -m module`; its process id."""
    return start(stack, [sys.executable, "-m", module, *arguments], environ or {})


def start(stack: contextlib.ExitStack, command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Starts a program that ends with `stack`; its process id."""
    process = subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, **environ}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    stack.callback(_stop, process)
    return process.pid


def disk() -> Path:
    """A folder on a real disk: on a memory file system a synchronous write costs nothing."""
    folder = ROOT / "var" / "benchmarks"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def memory_disk() -> Path | None:
    """A folder on a memory file system, to tell the disk's part by; None where there is none."""
    folder = Path("/dev/shm")
    return folder if os.access(folder, os.W_OK) else None


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def wait(url: str, path: str = "", *, seconds: float = 30) -> str:
    """`url`, once it answers with 200 (or, without a path, accepts connections). Raises TimeoutError."""

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

    until(answers, seconds=seconds)
    return url


def wait_post(target: Target, body: bytes, key: str, *, seconds: float = 60) -> Target:
    """`target`, once it answers a chat with 200. Raises TimeoutError."""
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}", **target.headers}

    def answers() -> bool:
        request = urllib.request.Request(target.url + "/v1/chat/completions", body, headers)
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False

    until(answers, seconds=seconds)
    return target


def until(what: Callable[[], bool], *, seconds: float = 30) -> None:
    """Returns once `what` is true. Raises TimeoutError."""
    deadline = time.monotonic() + seconds
    while not what():
        if time.monotonic() > deadline:
            raise TimeoutError("a process of the benchmark did not come up")
        time.sleep(0.05)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _ticks(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])


def _proportional_kib(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)
