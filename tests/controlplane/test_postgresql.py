"""The database-bound tests once more, on PostgreSQL."""

from __future__ import annotations

import os
import subprocess
import sys

import psycopg
import pytest

from tests.conftest import ROOT

TESTS = ("routes", "metering", "billing", "adapters/test_races.py")


@pytest.fixture
def postgres_url() -> str:
    """GRAFTWORK_TEST_POSTGRES_URL, else a local server that trusts `postgres`; else the test is skipped."""
    if url := os.environ.get("GRAFTWORK_TEST_POSTGRES_URL"):
        return url
    url = "postgresql://postgres@127.0.0.1:5432/postgres"
    try:
        psycopg.connect(url, connect_timeout=2).close()
    except psycopg.OperationalError as error:
        pytest.skip(f"no PostgreSQL: set GRAFTWORK_TEST_POSTGRES_URL ({error})")
    return url


def test_routes_ingest_and_report_on_postgresql(postgres_url: str) -> None:
    folders = [str(ROOT / "tests" / "controlplane" / name) for name in TESTS]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--create-db", "-p", "no:cacheprovider", *folders],
        env=os.environ | {"GRAFTWORK_DATABASE_URL": postgres_url},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout[-8000:] + result.stderr[-2000:]
    assert "passed" in result.stdout
