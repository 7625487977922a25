"""The database-bound tests once more, on PostgreSQL: requests as the web process's role (see conftest)."""

from __future__ import annotations

import os
import subprocess
import sys

import psycopg
import pytest

from tests.conftest import ROOT

TESTS = (
    "adapters/test_hostile_files.py",
    "adapters/test_lifecycle.py",
    "adapters/test_lineage.py",
    "adapters/test_quotas.py",
    "adapters/test_races.py",
    "audit",
    "billing",
    "catalog",
    "console/test_account_events.py",
    "console/test_forms.py",
    "console/test_lifecycle_pages.py",
    "console/test_login.py",
    "console/test_pages.py",
    "console/test_seen.py",
    "deployments/test_autoscaling.py",
    "deployments/test_consolidation.py",
    "deployments/test_controller.py",
    "deployments/test_leases.py",
    "deployments/test_phases.py",
    "deployments/test_rollout_pages.py",
    "deployments/test_scale_to_zero.py",
    "deployments/test_scaling_api.py",
    "http",
    "limits",
    "members",
    "metering",
    "operations",
    "optimization/test_api.py",
    "optimization/test_artifacts.py",
    "optimization/test_endings.py",
    "optimization/test_metered.py",
    "optimization/test_pages.py",
    "reports",
    "rollouts/test_rollouts.py",
    "routes",
    "row_security",
    "sign_up",
    "tenants",
    "test_admin.py",
    "test_isolation.py",
    "uploads/test_uploads.py",
    "webhooks",
)


@pytest.fixture
def postgres_url() -> str:
    """GRAFTWORK_TEST_POSTGRES_URL, else a local server that trusts `postgres`; else the test is skipped."""
    if url := os.environ.get("GRAFTWORK_TEST_POSTGRES_URL"):
        return url
    url = "postgresql://postgres@127.0.0.1:5432/postgres"
    try:
        psycopg.connect(url, connect_timeout=2).close()
    except psycopg.OperationalError as error:
        absent = pytest.fail if os.environ.get("CI") else pytest.skip
        absent(f"no PostgreSQL: set GRAFTWORK_TEST_POSTGRES_URL ({error})")
    return url


@pytest.mark.timeout(2700)
def test_routes_ingest_and_report_on_postgresql(postgres_url: str, pytestconfig: pytest.Config) -> None:
    folders = [str(ROOT / "tests" / "controlplane" / name) for name in TESTS]
    assert pytestconfig.cache is not None
    remembered = ["-o", f"cache_dir={pytestconfig.cache.mkdir('postgresql')}"]
    if pytestconfig.getoption("lf"):  # this test failed before: so did some of these
        remembered.append("--last-failed")
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--create-db", *remembered, *folders],
        # No test is about a crash of the server, so no commit waits for the disk.
        env=os.environ | {"GRAFTWORK_DATABASE_URL": postgres_url, "PGOPTIONS": "-c synchronous_commit=off"},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout[-8000:] + result.stderr[-2000:]
    assert "passed" in result.stdout
