"""Hundreds of adapters on two base models, through the whole product in front of the local SageMaker.

PostgreSQL, Redis, the web process, Celery, the publisher, a gateway and the local SageMaker are separate
processes, and so are the bundled workers behind it. Every adapter is registered over REST, placed as an
inference component, requested through the gateway all the time, updated to another version, and removed.
GRAFTWORK_TEST_POSTGRES_URL names the server where the database is created and dropped; `sqlite` uses a file.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks.chaos.database import fresh_database
from benchmarks.deployments.run import BASES, Outcome, life
from benchmarks.figure import Figure
from benchmarks.processes import POSTGRES

ADAPTERS: Final = 300
RATES: Final = {"CreateInferenceComponent": 5.0, "DeleteInferenceComponent": 5.0}
"""Calls per second, above which the account throttles."""
SPARE: Final = 10
"""Components beyond one per adapter, which an update needs temporarily: a tenth would be ample."""


def run(*, adapters: int = ADAPTERS) -> Iterator[Figure]:
    """Do one run and yield its figures."""
    limits = {"rates": RATES, "component_quota": adapters + len(BASES) + max(SPARE, adapters // 10)}
    with tempfile.TemporaryDirectory(prefix="graftwork-deployments-") as name:
        folder = Path(name)
        with fresh_database("" if POSTGRES == "sqlite" else POSTGRES, folder) as url:
            yield from figures(life(folder, url, adapters=adapters, sagemaker=limits, tell=_tell))


def figures(outcome: Outcome) -> Iterator[Figure]:
    """Yield the figures of a run, failed requests first."""
    tally, requests = outcome.tally, outcome.tally.requests
    for failure in tally.failures[:20]:
        _tell(f"FAILED {failure}")
    asked = f"of {requests.total()}, in every phase: {dict(requests)}"
    yield _figure("failed requests", len(tally.failures), "requests", goal=0, note=asked)
    brought = f"{outcome.adapters} adapters on {len(BASES)} bases, two versions each"
    served, wanted = outcome.served, 2 * outcome.adapters
    yield _figure("versions that came to serve", served, "versions", goal=wanted, note=brought)
    own = "of 8 tokens each: an adapter answers by its own weights"
    yield _figure("distinct first answers of those", outcome.answers, "answers", note=own)
    left = str(outcome.left or "no component, endpoint, configuration, model, file or worker")
    yield _figure("left in the account", sum(outcome.left.values()), "resources", goal=0, note=left)
    yield _figure("longest that an old version answered after its alias had moved", tally.lag, "s")
    for phase, seconds in outcome.seconds.items():
        yield _figure(f"phase: {phase}", seconds, "s")
    for kind, found in outcome.steps.items():
        yield _figure(f"journal: {kind}", sum(found.values()), "steps", note=str(found))


def _figure(metric: str, value: float, unit: str, *, goal: float | None = None, note: str = "") -> Figure:
    met = None if goal is None else value == goal
    return Figure("deployments", metric, round(value, 2), unit, goal=goal, met=met, note=note)


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
