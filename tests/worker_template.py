"""A template process that forks a test run's workers: a start takes a tenth of a fresh worker's CPU time."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from tests.conftest import stop
from tests.waiting import eventually
from worker_engine.template.handover import VARIABLE

_ONE_THREAD: Final = {"OMP_NUM_THREADS": "1"}
"""Libraries read the number of threads as they load: a worker must have the template's."""


@contextlib.contextmanager
def worker_template(folder: Path, environment: Mapping[str, str] = os.environ) -> Iterator[dict[str, str]]:
    """Yield the environment variables by which `python -m worker_engine` asks the template for its worker.

    Args:
        environment: of the template. A worker whose loaded libraries would see another one starts afresh.
    """
    path, log_path = folder / "socket", folder / "template.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "worker_engine.template", str(path)],
            env={**environment, **_ONE_THREAD},
            stdout=log,
            stderr=log,
        )

    def takes_orders() -> bool:
        assert process.poll() is None, log_path.read_text()
        return path.exists()

    try:
        eventually(takes_orders, seconds=240)
        yield {VARIABLE: str(path), **_ONE_THREAD}
    finally:
        stop(process)
