"""`/openapi.json` documents every route; requests generated from it never get a 5xx."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.worker_process import TOKEN, Worker, run_worker
from worker_engine.openai.embeddings import PARAMETERS
from worker_engine.openai.schema import CHAT, COMPLETION
from worker_engine.server import ROUTES

ROUNDS = 6


@pytest.fixture(scope="module")
def worker(
    tiny_model: Path, tiny_adapters: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Worker]:
    folder = tiny_adapters["plain"].parent
    with run_worker(
        tiny_model, tmp_path_factory.mktemp("worker"), "--adapters-dir", str(folder), "--max-model-len", "64"
    ) as worker:
        yield worker


@pytest.fixture(scope="module")
def document(worker: Worker) -> dict[str, Any]:
    status, document = worker.call("/openapi.json")
    assert status == 200
    found: dict[str, Any] = document
    return found


def test_every_route_and_parameter_is_told(worker: Worker, document: dict[str, Any]) -> None:
    told = {(method.upper(), path) for path, item in document["paths"].items() for method in item}
    assert told == {(route.method, route.template) for route in ROUTES}
    for path, parameters in (
        ("/v1/chat/completions", CHAT),
        ("/v1/completions", COMPLETION),
        ("/v1/embeddings", PARAMETERS),
    ):
        body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert set(body["properties"]) == set(parameters)
        assert body["properties"].get("temperature", {"maximum": 2.0})["maximum"] == 2.0
        for name in body["properties"]:
            answer = worker.call(path, {name: 1})[1]
            assert "not a known parameter" not in answer["error"]["message"]
    # Every test process collects this module: half a second.
    import schemathesis

    schemathesis.openapi.from_dict(document).validate()
    assert worker.call("/openapi.json", token="wrong")[0] == 401


def test_nothing_is_served_without_the_fleets_token(worker: Worker) -> None:
    """A client without the token can neither compute, nor load an adapter, nor stop the worker."""
    open_to_all = set()
    for route in ROUTES:
        url = f"http://127.0.0.1:{worker.port}" + route.template.replace("{", "").replace("}", "")
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}):
            status = httpx.request(route.method, url, headers=headers).status_code
            if route.open:
                open_to_all.add(route.path)
            else:
                assert status == 401, f"{route.method} {route.path}"
    assert open_to_all == {"/health", "/ping"}


@pytest.mark.slow
def test_what_is_made_up_from_it_meets_no_server_error(worker: Worker, document: dict[str, Any]) -> None:
    """Every operation but the one that ends the service, with valid and invalid bodies.

    Rounds of each in turn, so that none is left out; the worker answers afterwards.
    """
    import schemathesis
    from schemathesis.checks import not_a_server_error

    schema = schemathesis.openapi.from_dict(document)
    everything: list[Any] = [found.ok() for found in cast(Any, schema.get_all_operations())]
    operations = [operation for operation in everything if operation.path != "/drain"]
    assert len(operations) == len(ROUTES) - 1
    calls, statuses = 0, set()
    for _ in range(ROUNDS):
        for operation in operations:
            cases = st.one_of(
                operation.as_strategy(generation_mode=schemathesis.GenerationMode.POSITIVE),
                operation.as_strategy(generation_mode=schemathesis.GenerationMode.NEGATIVE),
            )

            @settings(
                max_examples=10,
                deadline=None,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @given(case=cases)
            def call(case: Any) -> None:
                nonlocal calls
                calls += 1
                response = case.call(
                    base_url=f"http://127.0.0.1:{worker.port}", headers={"Authorization": f"Bearer {TOKEN}"}
                )
                statuses.add(response.status_code)
                case.validate_response(response, checks=[not_a_server_error])

            call()
    # An operation without a body or parameters has fewer than ten cases to a round.
    assert calls >= 5 * len(operations) * ROUNDS
    assert {200, 400, 404, 424} <= statuses
    assert worker.complete()[0] == 200
    assert worker.metric("requests_running") == 0
