"""Runs a worker under mixed traffic for 20 minutes, to find resource leaks.

`python -m benchmarks.soak [--minutes 20]` does not measure speed. A few clients send chats, completions,
streams, hang-ups, adapters by Zipf's law, several choices, logprobs, grammars, tools, deadlines and bad
bodies to one worker process with one thread. Its memory is sampled throughout, and at the end it must be
idle.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final

import aiohttp

from benchmarks.engine.adapters import make_adapters
from benchmarks.figure import Figure, compared
from benchmarks.mixed_traffic import Traffic, Watch
from benchmarks.processes import DEMO_MODEL, end, free_port, memory_mib
from contracts.adapters.reference import AdapterRef

ADAPTERS: Final = 60
IDLE: Final = ("requests_running", "requests_waiting", "kv_pages_used", "adapter_pages")
GROWTH_GOAL: Final = 1.05
"""Resident memory in the last quarter relative to the second quarter; the first fills caches."""
TOOL_TEMPLATE: Final = """{% for tool in tools or [] %}{{ tool | tojson }}
{% endfor %}{% for m in messages %}{{ m.role }}: {{ m.content }}
{% endfor %}Answer, or call a tool in <tool_call></tool_call>.
assistant:"""
"""The demo model's own template does not support tools."""


async def soak(model: Path, adapters: Sequence[AdapterRef], folder: Path, *, seconds: float) -> Watch:
    """Start a worker on `model`, send traffic for `seconds`, and wait until it is idle again.

    Raises RuntimeError when the worker does not start, or ends.
    """
    async with _worker(model, folder) as (url, process):
        traffic = Traffic(url, adapters)
        sampling = asyncio.create_task(_sample(process.pid, traffic.watch, max(0.2, seconds / 200)))
        await traffic.run(seconds)
        sampling.cancel()
        for _ in range(100):
            traffic.watch.left = {name: await _metric(url, name) for name in IDLE}
            if not any(traffic.watch.left.values()):
                break
            await asyncio.sleep(0.1)
        if process.poll() is not None:
            raise RuntimeError(f"the worker ended: {(folder / 'log').read_text()[-3000:]}")
        return traffic.watch


@contextlib.asynccontextmanager
async def _worker(model: Path, folder: Path) -> AsyncIterator[tuple[str, subprocess.Popen[bytes]]]:
    port = free_port()
    process = _start(model, folder, port)
    try:
        url = f"http://127.0.0.1:{port}"
        for _ in range(600):
            with contextlib.suppress(aiohttp.ClientError):
                await _metric(url, "up")
                break
            if process.poll() is not None:
                raise RuntimeError(f"the worker did not start: {(folder / 'log').read_text()}")
            await asyncio.sleep(0.1)
        yield url, process
    finally:
        end(process, grace=120)


def _start(model: Path, folder: Path, port: int) -> subprocess.Popen[bytes]:
    """Start the worker with small memory tiers, so that evictions happen all the time."""
    limits = (
        "--num-threads 1 --memory-gib 0.1 --max-adapters-per-batch 4 --adapter-cache-gib 0.05 "
        "--adapter-disk-gib 0.1 --max-num-seqs 8 --max-waiting 16"
    )
    served = f"--served-model-name base --port {port} {limits}".split()
    command = [sys.executable, "-m", "worker_engine", "--model", str(model), *served]
    command += ["--adapter-cache-dir", str(folder / "cache")]
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=log, stderr=log)


async def _metric(url: str, name: str) -> int:
    async with aiohttp.ClientSession() as session, session.get(url + "/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return next(int(float(line.split()[1])) for line in lines if line.startswith(f"graftwork_worker_{name} "))


async def _sample(pid: int, watch: Watch, every: float) -> None:
    while True:
        watch.resident.append(memory_mib(pid, "VmRSS"))
        await asyncio.sleep(every)


def model_with_tools(model: Path, folder: Path) -> Path:
    """Link the checkpoint's files next to a chat template that supports tools."""
    folder.mkdir()
    for path in model.iterdir():
        if path.name not in ("chat_template.jinja", "adapters"):
            (folder / path.name).symlink_to(path)
    (folder / "chat_template.jinja").write_text(TOOL_TEMPLATE)
    return folder


def figures(watch: Watch) -> list[Figure]:
    """Return the figures: leak counts, which must be 0, and memory over time."""
    quarter = max(1, len(watch.resident) // 4)
    answers = ", ".join(f"{count} of {status}" for status, count in sorted(watch.statuses.items()))
    sent = watch.statuses.total() + watch.hang_ups
    leaks = (
        ("stuck", len(watch.stuck), "requests", ""),
        ("broken", len(watch.broken), "answers", "; ".join(watch.broken[:3])),
        ("left", sum(watch.left.values()), "pages and requests", json.dumps(watch.left)),
    )
    return [
        Figure("soak", "requests", sent, "requests", note=f"{answers}, {watch.hang_ups} hang-ups of ours"),
        *(
            Figure("soak", name, count, unit, goal=0, met=not count, note=note)
            for name, count, unit, note in leaks
        ),
        compared(
            "soak",
            "resident",
            statistics.median(watch.resident[-quarter:]),
            "MiB",
            baseline=statistics.median(watch.resident[-quarter:]) / watch.growth,
            goal=GROWTH_GOAL,
            less_is_better=True,
            note=f"last quarter by second; at most {max(watch.resident):.0f}",
        ),
    ]


def main() -> int:
    """Run the soak test; return exit status 1 when a goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0)
    seconds = parser.parse_args().minutes * 60
    with tempfile.TemporaryDirectory(prefix="graftwork-soak-") as name:
        folder = Path(name)
        refs = [item.ref for item in make_adapters(folder / "adapters", ADAPTERS)]
        watch = asyncio.run(
            soak(model_with_tools(DEMO_MODEL, folder / "model"), refs, folder, seconds=seconds)
        )
    found = figures(watch)
    for figure in found:
        print(figure.to_json(), flush=True)
    return int(any(figure.met is False for figure in found))


if __name__ == "__main__":
    sys.exit(main())
