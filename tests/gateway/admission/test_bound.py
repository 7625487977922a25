"""Never above a limit, in any span of its window, whatever four processes do; never below 95 % of it."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gateway.admission import clock
from gateway.admission.script import QUARANTINE_MS
from tests.conftest import ROOT

pytestmark = pytest.mark.slow
PROCESSES = 4
SECONDS = 3.0
"""Length of the windows here: sixty slices of 50 ms, as a minute has sixty of a second."""


@dataclass(frozen=True)
class Admitted:
    """One admitted request; times by `clock`."""

    asked: float
    at: float
    ended: float
    tokens: int


@dataclass
class Fleet:
    """Processes that draw on the same limits."""

    redis_url: str
    folder: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def add(self, seconds: float, limits: list[dict[str, Any]], **config: Any) -> subprocess.Popen[bytes]:
        """Starts a process that will ask until `seconds` after the start."""
        number = len(self.processes)
        config = {
            "redis": self.redis_url,
            "slot": f"slot-{number}",
            "limits": limits,
            "seconds": seconds,
            "ready": str(self.folder / f"{number}.ready"),
            **config,
        }
        with (self.folder / f"{number}.out").open("wb") as out, (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.gateway.admission.drawer", json.dumps(config)],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=log,
                env={**os.environ},
            )
        self.processes.append(process)
        return process

    def start(self) -> float:
        """Return the common start time, when all processes know Redis and an emptied server grants again."""
        deadline = clock.now() + 60
        while len(list(self.folder.glob("*.ready"))) < len(self.processes):
            assert clock.now() < deadline, (self.folder / "log").read_text()
            time.sleep(0.02)
        start = clock.now() + QUARANTINE_MS / 1000 + 0.5
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(f"{start}\n".encode())
            process.stdin.close()
        time.sleep(max(0.0, start - clock.now()))
        return start

    def admitted(self) -> list[Admitted]:
        """Waits for the end; everything admitted, by time."""
        for process in self.processes:
            process.wait(120)
        assert not (text := (self.folder / "log").read_text()), text
        lines = []
        for number in range(len(self.processes)):
            text = (self.folder / f"{number}.out").read_text()
            lines += [line.split() for line in text[: text.rfind("\n") + 1].splitlines()]
        found = [Admitted(float(a), float(b), float(c), int(d)) for a, b, c, d in lines]
        return sorted(found, key=lambda item: item.at)


@pytest.fixture
def fleet(redis_url: str, tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(redis_url, tmp_path)
    yield fleet
    for process in fleet.processes:
        process.kill()
        process.wait()


def fullest(admitted: list[Admitted], amount: Callable[[Admitted], int]) -> int:
    """The most in any span of SECONDS."""
    most = total = first = 0
    for item in admitted:
        total += amount(item)
        while admitted[first].at <= item.at - SECONDS:
            total -= amount(admitted[first])
            first += 1
        most = max(most, total)
    return most


def one(_: Admitted) -> int:
    return 1


def tokens(item: Admitted) -> int:
    return item.tokens


def reached(admitted: list[Admitted], limit: int, amount: Callable[[Admitted], int], since: float) -> float:
    """Share of the limit's rate in SECONDS that was reached from `since` to the last window's beginning."""
    later = [item for item in admitted if item.at >= since]
    # A greedy fleet takes all at once and waits: whole periods are measured, from burst to burst.
    last = later[-1].at - SECONDS / 2
    last = next(item.at for item in later if item.at > last)
    total = sum(amount(item) for item in later if item.at < last)
    return total / limit * SECONDS / (last - later[0].at)


REQUESTS = {"kind": "requests", "amount": 300, "seconds": SECONDS}


def test_greedy_processes(fleet: Fleet) -> None:
    for _ in range(PROCESSES):
        fleet.add(4.5 * SECONDS, [REQUESTS], tasks=4)
    start = fleet.start()
    admitted = fleet.admitted()
    assert fullest(admitted, one) <= 300
    assert reached(admitted, 300, one, start) >= 0.95


def test_steady_load_at_the_limit(fleet: Fleet) -> None:
    # A little more than the limit: a generator that a busy machine holds up asks for less than it should.
    for _ in range(PROCESSES):
        fleet.add(12.5, [REQUESTS], tasks=2, rate=1.02 * 300 / SECONDS / PROCESSES)
    start = fleet.start()
    admitted = fleet.admitted()
    steady = [item for item in admitted if start + SECONDS <= item.at < start + 12.0]
    assert fullest(admitted, one) <= 300
    assert len(steady) >= 0.95 * 300 * (12.0 - SECONDS) / SECONDS


def test_bursts_idleness_and_a_kill(fleet: Fleet) -> None:
    fleet.add(14.0, [REQUESTS], rate=20)
    fleet.add(14.0, [REQUESTS], tasks=20, after=4.0)
    fleet.add(2.0, [REQUESTS], tasks=20)
    victim = fleet.add(14.0, [REQUESTS], tasks=4, rate=60)
    start = fleet.start()
    time.sleep(start + 5.0 - clock.now())
    victim.kill()
    admitted = fleet.admitted()
    assert fullest(admitted, one) <= 300
    # Only the current window lacks the requests that the victim held.
    assert reached(admitted, 300, one, start + 5.0 + SECONDS) >= 0.95


def test_stopped_processes(fleet: Fleet) -> None:
    """A process that slept neither spends an old grant nor treats Redis as down."""
    seconds = 6 * SECONDS
    for _ in range(PROCESSES):
        fleet.add(seconds, [REQUESTS], tasks=4)
    until = fleet.start() + seconds - 3.0
    rng = random.Random(3)
    stops = [
        threading.Thread(target=stop_now_and_then, args=(process, rng, until)) for process in fleet.processes
    ]
    for stop in stops:
        stop.start()
    for stop in stops:
        stop.join()
    admitted = fleet.admitted()
    assert fullest(admitted, one) <= 300
    assert len(admitted) >= 300 * 4


def stop_now_and_then(process: subprocess.Popen[bytes], rng: random.Random, until: float) -> None:
    """Pause the process for less than a lease, for longer, and for longer than the Redis timeout."""
    while clock.now() < until:
        time.sleep(rng.uniform(0.05, 0.6))
        process.send_signal(signal.SIGSTOP)
        time.sleep(rng.choice((0.02, 0.06, 0.3, 1.3)))
        process.send_signal(signal.SIGCONT)


def test_tokens_are_settled_to_what_was_used(fleet: Fleet) -> None:
    limit = {"kind": "tokens", "amount": 30_000, "seconds": SECONDS}
    for _ in range(PROCESSES):
        fleet.add(4.5 * SECONDS, [limit], tasks=4, tokens=100, used=40, hold=0.02)
    start = fleet.start()
    admitted = fleet.admitted()
    assert fullest(admitted, tokens) <= 30_000
    assert reached(admitted, 30_000, tokens, start) >= 0.95


def most_at_once(admitted: list[Admitted]) -> int:
    changes = sorted([(i.at, 1) for i in admitted] + [(i.ended, -1) for i in admitted])
    return max(itertools.accumulate(change for _, change in changes))


def test_places(fleet: Fleet) -> None:
    limit = {"kind": "concurrency", "amount": 10}
    for _ in range(PROCESSES - 1):
        fleet.add(8.0, [limit], tasks=6, hold=0.2, queue=5.0)
    victim = fleet.add(8.0, [limit], tasks=6, hold=0.2, queue=5.0)
    start = fleet.start()
    time.sleep(start + 4.0 - clock.now())
    victim.kill()
    admitted = fleet.admitted()
    assert most_at_once(admitted) == 10
    busy = sum(i.ended - i.at for i in admitted if start + 0.5 <= i.at < start + 3.5)
    assert busy >= 0.95 * 10 * 3.0


def test_places_held_ahead(fleet: Fleet) -> None:
    """Some processes hold spare places and use few, while another asks for all of them and is killed."""
    limit = {"kind": "concurrency", "amount": 40}
    for _ in range(PROCESSES - 2):
        fleet.add(7.0, [limit], tasks=4, rate=100, hold=0.02)
    fleet.add(7.0, [limit], tasks=60, hold=0.1, after=1.0)
    victim = fleet.add(7.0, [limit], tasks=60, hold=0.3, after=2.0, queue=5.0)
    start = fleet.start()
    time.sleep(start + 4.0 - clock.now())
    victim.kill()
    assert 30 <= most_at_once(fleet.admitted()) <= 40
