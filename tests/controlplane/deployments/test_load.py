"""A real worker reports to the controller requests that began and ended between two readings."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from controlplane.catalog.models import BaseModel
from controlplane.deployments.autoscaler.load import copies_load, reading
from controlplane.deployments.scaling.policy import Metric
from tests.controlplane.deployments.conftest import TOKEN, drive, serving
from tests.controlplane.deployments.test_local import deploy, wait

pytestmark = pytest.mark.django_db


def test_a_burst_is_told_when_it_is_over(tiny: BaseModel, local_root: Path) -> None:
    deployment = drive(deploy(tiny), serving, pause=wait)
    url = deployment.copies.get().url
    body = {"model": "tiny", "prompt": "hello", "max_tokens": 32, "ignore_eos": True}
    headers = {"authorization": f"Bearer {TOKEN}"}

    def ask(_: int) -> float:
        answer = httpx.post(f"{url}/v1/completions", json=body, headers=headers, timeout=60)
        assert answer.status_code == 200, answer.text
        return answer.elapsed.total_seconds()

    def read(metric: Metric, window: dict[str, Any], at: float) -> float:
        loads = copies_load([url], fleet_token=TOKEN)
        assert loads[url].pending == 0
        return reading(metric, loads, 0, asked=[url], window=window, at=at).load

    window: dict[str, Any] = {}
    assert read(Metric.CONCURRENCY, window, 0) == 0
    with ThreadPoolExecutor(4) as pool:
        spent = sum(pool.map(ask, range(4)))
    found = read(Metric.CONCURRENCY, window, 10)
    assert 0 < found <= spent / 10, "as long as they were there, over ten seconds"
    assert found > spent / 40
    assert read(Metric.CONCURRENCY, window, 11) == 0
    age = copies_load([url], fleet_token=TOKEN)[url].age
    assert age is not None
    if age < 60:
        assert read(Metric.INVOCATIONS, {}, 1000) == pytest.approx(4), "all that a new copy has had"
