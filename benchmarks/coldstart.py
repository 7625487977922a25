"""Time until a worker serves: cold, from an image with its caches, and forked from a warm template.

Three kinds of start alternate, each measured to the first token, on the demo model:

- `cold`: a new process; nothing of the checkpoint, Python's packages and the product's code is in the page
  cache; no compiled loops and no packed weights.
- `image`: the same, with both caches as an image ships them.
- `warm`: a copy next to another one, forked from a template, with everything in the page cache. It takes less
  than a second, so each round takes several, and counts the median.

Phases are the worker's own report (`/health`). The total is by this process's clock, from process start to
first token. Files mapped by other processes stay in the page cache regardless.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.figure import Figure, compared
from benchmarks.processes import DEMO_MODEL as MODEL
from benchmarks.processes import ROOT, end, free_port, memory_mib, start
from controlplane.deployments.phases.prediction import FEWEST, held_out_errors, of_startup
from worker_engine.startup import PHASES

KINDS: Final = ("cold", "image", "warm")
ROUNDS: Final = 9
WARM_STARTS: Final = 15
"""Per round."""
RATIO_GOAL: Final = 0.44
"""Warm relative to cold: the best published figure of a hosting service, 166 of 379 s, its image cached."""
SECONDS_GOAL: Final = 1.5
PREDICTION_GOAL: Final = 0.15
_PATIENCE: Final = 300.0


@dataclass(frozen=True, slots=True)
class Start:
    """One start: seconds to the first token, and the worker's report of its phases."""

    seconds: float
    phases: Mapping[str, float]


class Copy:
    """A worker process, from its start to its first token."""

    def __init__(self, variables: Mapping[str, str], model: Path | None = None) -> None:
        """`model` is a checkpoint's folder; None takes the demo's."""
        self.port = free_port()
        flags = f"--served-model-name demo --device cpu --port {self.port}".split()
        command = [sys.executable, "-m", "worker_engine", "--model", str(model or MODEL), *flags]
        began = time.monotonic()
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=os.environ | dict(variables), stderr=subprocess.PIPE
        )
        self._wait(began)
        self.ask(1)
        seconds = time.monotonic() - began
        report = self._call("GET", "/health")["startup"]
        self.start = Start(seconds, report["seconds"] | {"first_token": report["first_token"]})

    def ask(self, tokens: int) -> None:
        body = {"model": "demo", "prompt": "The sea", "max_tokens": tokens, "ignore_eos": True}
        self._call("POST", "/v1/completions", body)

    def stop(self) -> None:
        end(self.process, grace=60)
        self._log_tail()

    def _wait(self, began: float) -> None:
        """Wait until it serves. Raises RuntimeError with its log if it ends or takes too long."""
        while time.monotonic() - began < _PATIENCE and self.process.poll() is None:
            with contextlib.suppress(OSError):
                if self._call("GET", "/health").get("status") == "ok":
                    return
            time.sleep(0.005)
        self.process.kill()
        raise RuntimeError(f"the worker did not start: {self._log_tail()}")

    def _log_tail(self) -> str:
        """Return the end of the process's stderr, which is short enough to fit the pipe."""
        return self.process.communicate()[1].decode(errors="replace")[-2000:]

    def _call(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_PATIENCE)
        with contextlib.closing(connection):
            connection.request(method, path, None if body is None else json.dumps(body))
            answer: dict[str, Any] = json.loads(connection.getresponse().read())
        return answer


def run() -> Iterator[Figure]:
    """Yield each phase's median by kind of start, the totals and goals, and a second copy's memory."""
    with tempfile.TemporaryDirectory(prefix="graftwork-start-") as folder:
        caches = Path(folder) / "caches"
        plain = {"GRAFTWORK_WORKER_CACHE_DIR": str(caches), "GRAFTWORK_WORKER_ZYGOTE": ""}
        _fill(plain)
        starts = _rounds(Path(folder), plain)
        yield from _phases(starts)
        yield from _wholes(starts)
        yield from _predicted(starts)
        with _template(Path(folder) / "template.sock", plain) as warm:
            yield from _memory(warm)


def _fill(variables: Mapping[str, str]) -> None:
    """Fill the caches as an image's build does: compiled loops and packed weights."""
    Copy(variables).stop()


@contextlib.contextmanager
def _template(path: Path, variables: Mapping[str, str]) -> Iterator[Mapping[str, str]]:
    """Yield the variables that make a worker a fork of the template."""
    command = [sys.executable, "-m", "worker_engine.zygote", str(path), "--model", str(MODEL)]
    with contextlib.ExitStack() as stack:
        process = start(stack, command, os.environ | dict(variables))
        until = time.monotonic() + _PATIENCE
        while not path.exists():
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError("the template did not start")
            time.sleep(0.05)
        yield dict(variables) | {"GRAFTWORK_WORKER_ZYGOTE": str(path)}


def _rounds(folder: Path, plain: Mapping[str, str]) -> dict[str, list[Start]]:
    """Run all rounds. The template runs for its own starts only, since its mapped files stay cached."""
    starts: dict[str, list[Start]] = {kind: [] for kind in KINDS}
    for number in range(ROUNDS):
        empty = folder / f"empty-{number}"
        drop_page_cache(folder)
        starts["cold"].append(once(dict(plain) | {"GRAFTWORK_WORKER_CACHE_DIR": str(empty)}))
        shutil.rmtree(empty, ignore_errors=True)
        drop_page_cache(folder)
        starts["image"].append(once(plain))
        with _template(folder / "template.sock", plain) as warm:
            beside = Copy(warm)
            try:
                several = sorted((once(warm) for _ in range(WARM_STARTS)), key=lambda start: start.seconds)
                starts["warm"].append(several[WARM_STARTS // 2])
            finally:
                beside.stop()
    return starts


def once(variables: Mapping[str, str], model: Path | None = None) -> Start:
    """Start a copy, stop it, and return its start."""
    copy = Copy(variables, model)
    copy.stop()
    return copy.start


def drop_page_cache(folder: Path) -> None:
    """Drop the checkpoint, Python, its packages, the product's code and `folder` from the page cache."""
    roots = {MODEL, folder, ROOT / "contracts", ROOT / "kernels", ROOT / "worker_engine"}
    roots |= {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib", "stdlib")}
    os.sync()
    for root in roots:
        for name, _, files in os.walk(root.resolve()):
            for file in files:
                with contextlib.suppress(OSError):
                    _drop(Path(name) / file)


def _drop(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def _phases(starts: Mapping[str, list[Start]]) -> Iterator[Figure]:
    for kind, each in starts.items():
        for phase in (*PHASES, "first_token"):
            value = statistics.median(start.phases.get(phase, 0.0) for start in each)
            yield Figure("coldstart", f"{kind}_{phase}_s", round(value, 3), "s")


def _wholes(starts: Mapping[str, list[Start]]) -> Iterator[Figure]:
    whole = {kind: statistics.median(start.seconds for start in each) for kind, each in starts.items()}
    note = f"to the first token, median of {ROUNDS}"
    yield Figure("coldstart", "cold_s", round(whole["cold"], 3), "s", note=note)
    for kind, goal in (("image", None), ("warm", RATIO_GOAL)):
        yield compared(
            "coldstart",
            f"{kind}_s",
            whole[kind],
            "s",
            baseline=whole["cold"],
            goal=goal,
            less_is_better=True,
            note=f"{note}; baseline: cold",
        )
    yield compared(
        "coldstart",
        "another_copy_s",
        whole["warm"],
        "s",
        baseline=SECONDS_GOAL,
        goal=1.0,
        less_is_better=True,
        note="baseline: the goal",
    )


def _predicted(starts: Mapping[str, list[Start]]) -> Iterator[Figure]:
    """Predict each round's total from the phases of previous rounds; yield mean and worst error by kind."""
    for kind, each in starts.items():
        if len(each) <= FEWEST:
            continue
        errors = held_out_errors([_row(start) for start in each])
        wholes = " ".join(f"{start.seconds:.2f}" for start in each)
        yield compared(
            "coldstart",
            f"{kind}_prediction_error",
            statistics.mean(errors),
            "share",
            baseline=PREDICTION_GOAL,
            goal=1.0,
            less_is_better=True,
            note=f"mean of {len(errors)} rounds, each by those before it; the worst {max(errors):.3f}; "
            f"rounds in s: {wholes}; baseline: the goal",
        )


def _row(start: Start) -> dict[str, float]:
    """Return a start's predictor phases; time not in the worker's report counts as provisioning."""
    own = of_startup(start.phases)
    return own | {"provision": max(0.0, start.seconds - sum(own.values()))}


def _memory(warm: Mapping[str, str]) -> Iterator[Figure]:
    """Yield a copy's memory alone and with a second one, where shared pages count half."""
    first = Copy(warm)
    try:
        first.ask(32)
        alone = proportional_mib(first.port)
        second = Copy(warm)
        try:
            second.ask(32)
            each = [proportional_mib(copy.port) for copy in (first, second)]
        finally:
            second.stop()
    finally:
        first.stop()
    note = "each of two copies, shared pages by halves; baseline: one copy alone"
    shared = statistics.mean(each)
    yield compared("coldstart", "copy_pss_mib", shared, "MiB", baseline=alone, less_is_better=True, note=note)


def proportional_mib(port: int) -> float:
    """Return the PSS of the process that listens on `port`."""
    inodes = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
            inodes.add(f"socket:[{fields[9]}]")
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if any(os.readlink(link) in inodes for link in (process / "fd").iterdir()):
                return memory_mib(int(process.name), "Pss", "smaps_rollup")
    raise RuntimeError(f"no process listens on port {port}")
