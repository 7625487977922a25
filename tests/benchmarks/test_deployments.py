"""A dozen adapters' whole life in front of the local SageMaker, with every process of the product."""

from __future__ import annotations

import os
from pathlib import Path

import psycopg
import pytest

from benchmarks.chaos.database import fresh_database
from benchmarks.deployments import figures
from benchmarks.deployments.run import life

pytestmark = pytest.mark.slow

POSTGRES = os.environ.get("GRAFTWORK_TEST_POSTGRES_URL", "postgresql://postgres@127.0.0.1:5432/postgres")
ADAPTERS = 12
LIMITS = {
    # Fewer calls than the control plane would make, and fewer components than an update at once would take.
    "rates": {"CreateInferenceComponent": 4, "DeleteInferenceComponent": 4},
    "component_quota": 2 + ADAPTERS + 7,
}


def server() -> str:
    """A PostgreSQL server; "", which is SQLite, where none is."""
    try:
        with psycopg.connect(POSTGRES, connect_timeout=3):
            return POSTGRES
    except psycopg.OperationalError:
        return ""


@pytest.mark.timeout(600)
def test_deployed_asked_updated_and_removed_without_a_failed_request(tmp_path: Path) -> None:
    with fresh_database(server(), tmp_path) as url:
        outcome = life(tmp_path, url, adapters=ADAPTERS, sagemaker=LIMITS, tell=print)
    tally = outcome.tally
    assert tally.failures == []
    for phase in ("deploy", "update", "remove"):
        assert tally.requests[phase] > 10, tally.requests
    assert outcome.served == 2 * ADAPTERS
    assert outcome.answers > ADAPTERS, "two adapters in a hundred may begin alike, not all of them"
    assert outcome.left == {}
    calls = outcome.steps["calls"]
    assert calls["create_inference_component"] == 2 + 2 * ADAPTERS, "nothing was made twice"
    assert calls["delete_inference_component"] == 2 + 2 * ADAPTERS
    assert {figure.metric: figure.met for figure in figures(outcome) if figure.met is not None} == {
        "failed requests": True,
        "versions that came to serve": True,
        "left in the account": True,
    }
