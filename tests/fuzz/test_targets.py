"""A few cases of each fuzzer before every commit; `make fuzz` runs them for longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz import archives, grammars, http, http_servers, schemas, usage
from tests.fuzz.target import Target, run_cases


def test_grammars(tmp_path: Path) -> None:
    with grammars.open_target(tmp_path) as target:
        outcomes = run_cases(target, seed=1, count=12)
    assert {"refused", "complete"} <= {*outcomes}


def test_schemas(tmp_path: Path) -> None:
    with schemas.open_target(tmp_path) as target:
        outcomes = run_cases(target, seed=1, count=12)
    assert {"refused", "complete"} <= {*outcomes}


def test_usage(tmp_path: Path) -> None:
    with usage.open_target(tmp_path) as target:
        outcomes = run_cases(target, seed=1, count=200)
    assert {*outcomes} == {"reported", "estimated", "refused", "broken off"}


@pytest.mark.django_db
def test_archives(tmp_path: Path) -> None:
    with archives.open_target(tmp_path) as target:
        outcomes = run_cases(target, seed=1, count=30)
    assert {*outcomes} == {"ready", "refused", "refused at once"}


def test_http(tmp_path: Path) -> None:
    with http_servers.echo_server(tmp_path) as server:
        outcomes = run_cases(Target(http.HttpCases([server]).run), seed=1, count=60)
    assert {"echo 2xx", "echo 4xx"} <= {*outcomes}
