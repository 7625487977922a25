"""A gateway before real worker processes: adapters stay where they are, and workers go one by one."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from contracts.base_routes import BaseRoute, CopyRoute
from contracts.route_table import AdapterRoute
from tests.gateway.conftest import ACME, ControlPlane, GatewayProcess, route_table
from tests.waiting import eventually
from tests.worker_engine.tiny_adapter import adapter_ref
from tests.worker_process import TOKEN, Worker, run_worker


def complete(gateway: GatewayProcess, model: str, **rest: Any) -> httpx.Response:
    body = {"model": model, "prompt": "hello", "max_tokens": 3, "ignore_eos": True, **rest}
    headers = {"authorization": f"Bearer {ACME}"}
    return httpx.post(gateway.url + "/v1/completions", json=body, headers=headers, timeout=60)


def load(worker: Worker) -> dict[str, Any]:
    status, answer = worker.call("/load")
    assert status == 200
    return dict(answer)


@pytest.mark.slow
def test_adapters_stay_on_one_worker_and_follow_when_it_drains(
    own_gateway: GatewayProcess,
    control_plane: ControlPlane,
    tiny_model: Path,
    tiny_adapters: dict[str, Path],
    tmp_path: Path,
) -> None:
    refs = {name: adapter_ref(folder, name=name) for name, folder in tiny_adapters.items()}
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    with run_worker(tiny_model, folders[0]) as one, run_worker(tiny_model, folders[1]) as two:
        assert one.call("/load", token="wrong")[0] == 401
        assert load(one) == {"status": "ok", "pending": 0, "adapters": []}
        copies = tuple(
            CopyRoute(f"copy-{number}", "worker", f"http://127.0.0.1:{worker.port}")
            for number, worker in enumerate((one, two))
        )
        adapters = {name: AdapterRoute("tiny", 1, {1: ref}) for name, ref in refs.items()}
        table = replace(
            route_table(), bases={"tiny": BaseRoute("tiny", 256, copies)}, adapters={"acme": adapters}
        )
        control_plane.publish(table)
        own_gateway.environ["GRAFTWORK_FLEET_TOKEN"] = TOKEN
        own_gateway.start()
        for _ in range(4):
            for name in refs:
                assert complete(own_gateway, name).status_code == 200
        held = [set(load(worker)["adapters"]) for worker in (one, two)]
        assert held[0] | held[1] == {ref.sha256[:12] for ref in refs.values()}
        assert not held[0] & held[1], "each adapter is on one worker alone"

        with ThreadPoolExecutor() as pool:
            leaving, staying = (one, two) if held[0] else (two, one)
            [name, *_] = [name for name, ref in refs.items() if ref.sha256[:12] in load(leaving)["adapters"]]
            stream = pool.submit(complete, own_gateway, name, max_tokens=200, stream=True)
            eventually(lambda: load(leaving)["pending"] == 1)
            leaving.process.terminate()
            # From the first moment on: what a worker refuses because it drains, the other takes.
            for _ in range(10):
                assert complete(own_gateway, name).status_code == 200
                time.sleep(0.02)
            assert stream.result().text.endswith("data: [DONE]\n\n")
        assert leaving.process.wait(20) == 0
        for name in refs:
            assert complete(own_gateway, name).status_code == 200
        assert set(load(staying)["adapters"]) == held[0] | held[1]

        staying.process.kill()
        staying.process.wait()
        refused = complete(own_gateway, "tiny")
        assert refused.status_code in (502, 503)
        assert refused.headers["retry-after"]

    # A worker that has just started knows no adapter: each request brings what it needs.
    (tmp_path / "three").mkdir()
    with run_worker(tiny_model, tmp_path / "three") as fresh:
        copy = CopyRoute("copy-2", "worker", f"http://127.0.0.1:{fresh.port}")
        bases = {"tiny": BaseRoute("tiny", 256, (copy,))}
        control_plane.publish(replace(table, version=table.version + 1, bases=bases))
        own_gateway.wait_version(table.version + 1)
        assert load(fresh)["adapters"] == []
        for name in refs:
            assert complete(own_gateway, name).status_code == 200
        assert set(load(fresh)["adapters"]) == held[0] | held[1]
    answered = [event for event in control_plane.events() if event.status == "ok"]
    assert len(answered) == 4 * len(refs) + 1 + 10 + 2 * len(refs)
    assert all(event.completion_tokens in (3, 200) for event in answered)
