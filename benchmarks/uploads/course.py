"""One upload by the command line: started, cut off, gone on with, and what that cost."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from benchmarks.processes import wait_until
from benchmarks.uploads.memory import PeakMemory
from benchmarks.uploads.plant import Plant
from contracts.adapters.reference import ADAPTER_FILES

Cut = Literal["client", "web"]
_SECONDS: Final = 1800.0
_RUNS: Final = 8


@dataclass(slots=True)
class Peaks:
    """MiB that each process and its children held at most."""

    web: float
    worker: float
    client: float


@dataclass(slots=True)
class Course:
    """How one upload went.

    Attributes:
        lost: bytes that had been acknowledged before a cut and were not there after it.
        runs: how often the command was run.
        sent_s: until all bytes were there; ready_s: from then until the version was ready.
        cuts: shares of the file at which it was cut off.
    """

    lost: int = 0
    runs: int = 0
    sent_s: float = 0.0
    ready_s: float = 0.0
    cuts: list[float] = field(default_factory=list)


def measured(plant: Plant, folder: Path, name: str, *, cuts: Sequence[Cut] = ()) -> tuple[Course, Peaks]:
    """Pushes `folder` as `<name>-tune` of the base `name`, killing what `cuts` names, evenly over the file.

    Raises:
        RuntimeError: the command was refused, or did not get through; the text is its log's end.
    """
    push = _Push(plant, folder, name)
    with (
        PeakMemory(lambda: plant.web.process.pid if plant.web.process else None) as web,
        PeakMemory(lambda: plant.worker.process.pid if plant.worker.process else None) as worker,
        PeakMemory(lambda: push.client.pid) as client,
    ):
        for number, what in enumerate(cuts, 1):
            push.cut(what, at=number / (len(cuts) + 1))
        push.finish()
    return push.course, Peaks(web.mib, worker.mib, client.mib)


class _Push:
    def __init__(self, plant: Plant, folder: Path, name: str) -> None:
        self._plant, self._folder, self._name = plant, folder, name
        self._size = (folder / ADAPTER_FILES[1]).stat().st_size
        self.course, self._begun = Course(), time.perf_counter()
        self.client = self._run()

    def cut(self, what: Cut, *, at: float) -> None:
        """Kills it once that share of the file is there; what is lost counts once it goes on."""
        wait_until(lambda: self._offset() >= at * self._size, seconds=_SECONDS, name=f"{at:.0%}", pause=0.05)
        reached = self._offset()
        if what == "client":
            self.client.kill()
            self.client.wait()
            self.client = self._run()
        else:
            self._plant.restart_web()
        self.course.cuts.append(reached / self._size)
        self.course.lost += max(0, reached - self._offset())

    def finish(self) -> None:
        """Until the version is ready, or refused; that raises RuntimeError."""
        wait_until(self._registered, seconds=_SECONDS, name="the registration")
        sent = time.perf_counter()
        self.course.sent_s = sent - self._begun
        if self.client.wait(_SECONDS):
            raise RuntimeError(self._log())
        self.course.ready_s = time.perf_counter() - sent

    def _registered(self) -> bool:
        self._again()
        adapters = self._plant.get("/adapters")["results"]
        return any(item["name"] == f"{self._name}-tune" for item in adapters)

    def _offset(self) -> int:
        self._again()
        uploads = self._plant.get("/uploads")["results"]
        return sum(item["offset"] for item in uploads if item["size"] == self._size)

    def _again(self) -> None:
        """Runs the command anew where it has given up, as its user would."""
        if self.client.poll():
            self.client = self._run()

    def _run(self) -> subprocess.Popen[bytes]:
        self.course.runs += 1
        if self.course.runs > _RUNS:
            raise RuntimeError(f"not done after {_RUNS} runs: {self._log()}")
        return self._plant.push(self._folder, name=f"{self._name}-tune", base_model=self._name)

    def _log(self) -> str:
        return self._plant.log.read_text()[-3000:]
