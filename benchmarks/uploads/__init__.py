"""An adapter of 2.1 GB by the command line, cut off twice: what arrives, and the memory that it takes.

A web process, a Celery worker, Redis and the command line `graftwork adapters push` as processes. At a third
of the file the command line is killed, at two thirds the web process; each time the same command is run
again. Beside it stands the same upload of one layer (66 MB), before: memory that does not grow with the file
is as much for both. GRAFTWORK_TEST_POSTGRES_URL names a PostgreSQL server; SQLite without it.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from benchmarks.chaos.database import fresh_database
from benchmarks.figure import Figure, compared
from benchmarks.uploads.course import Peaks, measured
from benchmarks.uploads.files import write_adapter, write_checkpoint
from benchmarks.uploads.plant import Plant, running
from contracts.adapters.reference import ADAPTER_FILES, adapter_digest

LAYERS: Final = 32
SMALL: Final = 1
QUICK: Final = 4
GOAL: Final = 1.25
"""Peak with the large file over peak with the small one."""
_FOLDER: Final = Path(__file__).resolve().parents[2] / "var"
_BLOCK: Final = 4 << 20


def run(*, quick: bool = False) -> Iterator[Figure]:
    """Yields peaks beside those of the small upload, what was lost, and times beside one pass of SHA-256."""
    layers = QUICK if quick else LAYERS
    with ExitStack() as stack:
        _FOLDER.mkdir(exist_ok=True)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="uploads-", dir=_FOLDER)))
        server = os.environ.get("GRAFTWORK_TEST_POSTGRES_URL", "")
        database = stack.enter_context(fresh_database(server, folder))
        bases = {
            "small": write_checkpoint(folder / "bases" / "small", layers=SMALL),
            "large": write_checkpoint(folder / "bases" / "large", layers=layers),
        }
        write_adapter(folder / "small", layers=SMALL)
        size = write_adapter(folder / "large", layers=layers)
        plant = stack.enter_context(running(folder, database, bases=bases))
        before = measured(plant, folder / "small", "small")[1]
        yield from _figures(plant, folder, size, before)


def _figures(plant: Plant, folder: Path, size: int, before: Peaks) -> Iterator[Figure]:
    course, peaks = measured(plant, folder / "large", "large", cuts=("client", "web"))
    gigabytes = f"{size / 1e9:.2f} GB"
    for name in ("web", "worker", "client"):
        yield compared(
            "uploads",
            f"{name}_peak",
            getattr(peaks, name),
            "MiB",
            baseline=getattr(before, name),
            goal=GOAL,
            less_is_better=True,
            note=f"{gigabytes} beside 0.07 GB; sum of high-water marks",
        )
    shares = ", ".join(f"{share:.2f}" for share in course.cuts)
    lost, note = course.lost, f"cut at {shares} of the file; the command was run {course.runs} times"
    yield Figure("uploads", "lost_after_cuts", lost, "byte", goal=0, met=lost == 0, note=note)
    hashed_s, digest = _hashed(folder / "large")
    version = plant.get("/adapters/large-tune/versions/1")
    arrived = version["status"] == "ready" and version["sha256"] == digest
    yield Figure("uploads", "arrived_exactly", float(arrived), "", goal=1, met=arrived, note="by its digest")
    kept = sum(path.stat().st_size for path in plant.store.rglob("*") if path.is_file())
    whole = sum(path.stat().st_size for name in ("small", "large") for path in (folder / name).iterdir())
    yield compared(
        "uploads",
        "kept_in_store",
        kept / 1e6,
        "MB",
        baseline=whole / 1e6,
        goal=1.0,
        less_is_better=True,
        note="of both adapters: no part, no staged copy stays",
    )
    beside = "beside one pass of SHA-256"
    note = f"{beside}; with both cuts, and starting the web process anew"
    yield compared("uploads", "sending", course.sent_s, "s", baseline=hashed_s, note=note)
    yield compared("uploads", "validating", course.ready_s, "s", baseline=hashed_s, note=beside)


def _hashed(folder: Path) -> tuple[float, str]:
    """Seconds to hash the files once, and the version's digest as it must be."""
    begun, digests = time.perf_counter(), {}
    for name in ADAPTER_FILES:
        digest = hashlib.sha256()
        with (folder / name).open("rb") as file:
            while block := file.read(_BLOCK):
                digest.update(block)
        digests[name] = digest.hexdigest()
    return time.perf_counter() - begun, adapter_digest(digests)
