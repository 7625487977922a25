"""`GET /metrics` of real gateway processes."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count

import httpx
import pytest

from contracts.base_routes import BaseRoute
from contracts.limits import Limit, LimitsRoute
from contracts.route_table import RouteTable
from tests.conftest import free_port
from tests.gateway.conftest import ControlPlane, GatewayProcess, reference, route_table
from tests.gateway.observability.conftest import TOKEN, scrape
from tests.gateway.test_app import ask, post
from tests.gateway.test_operation import serving
from tests.waiting import eventually

pytestmark = pytest.mark.costly("starts gateways of its own")

BOT = {"model": "bot@prod", "messages": ask(tokens=5)}


@pytest.fixture
def gateway_environ() -> dict[str, str]:
    return {"GRAFTWORK_GATEWAY_METRICS_TOKEN": TOKEN}


@pytest.fixture
def observed(own_gateway: GatewayProcess, control_plane: ControlPlane, upstream: str) -> GatewayProcess:
    """A gateway of the test's own with metrics that knows `route_table(upstream)`; not started."""
    control_plane.publish(route_table(upstream))
    own_gateway.environ["GRAFTWORK_GATEWAY_METRICS_TOKEN"] = TOKEN
    return own_gateway


def test_metrics_are_for_whoever_has_their_token(gateway: GatewayProcess) -> None:
    assert httpx.get(gateway.url + "/metrics").status_code == 404
    for token in ("wrong", "fleet-token", "gw_k1_secret1"):
        headers = {"authorization": f"Bearer {token}"}
        assert httpx.get(gateway.url + "/metrics", headers=headers).status_code == 404
    assert "routes_version" in scrape(gateway).text


@pytest.mark.parametrize("gateway_environ", [{}], ids=["no token"])
def test_without_a_token_there_are_none(gateway: GatewayProcess) -> None:
    assert httpx.get(gateway.url + "/metrics").status_code == 404
    assert httpx.get(gateway.url + "/metrics", headers={"authorization": "Bearer"}).status_code == 404


def test_requests_tokens_and_times(gateway: GatewayProcess) -> None:
    before = scrape(gateway)
    name = reference("acme", "bot", 2).name
    for _ in range(3):
        assert (
            post(gateway, {**BOT, "messages": ask(tokens=5, delay=0.02), "stream": True}).status_code == 200
        )
    assert post(gateway, BOT).status_code == 200
    assert post(gateway, {**BOT, "messages": ask(fail=400)}).status_code == 400
    assert post(gateway, {**BOT, "messages": ask(fail="event"), "stream": True}).status_code == 200
    assert post(gateway, BOT, key="gw_k1_wrong").status_code == 401
    assert post(gateway, {**BOT, "model": "none"}).status_code == 404
    current = scrape(gateway)
    found = current.since(before)
    chat = {"endpoint": "/v1/chat/completions", "model": "base"}
    assert found.sum("requests_total", **chat, status="200", outcome="ok") == 4
    assert found.sum("requests_total", **chat, status="400", outcome="error") == 1
    assert found.sum("requests_total", **chat, status="200", outcome="error") == 1, "broken after its 200"
    assert found.sum("requests_total", status="401", model="") == 1
    assert found.sum("requests_total", status="404", model="") == 1
    assert found.sum("errors_total", code="upstream_refused") == 1
    assert found.sum("errors_total", code="upstream_error") == 1
    assert found.sum("errors_total", code="invalid_api_key") == 1
    # 11 prompt tokens, of which 5 cached, and 5 completion tokens each; the broken stream had sent 32 of 64.
    assert found.sum("tokens_total", model="base", kind="prompt") == 5 * 11
    assert found.sum("tokens_total", model="base", kind="cached") == 5 * 5
    assert found.sum("tokens_total", model="base", kind="completion") == 4 * 5 + 32
    assert found.sum("adapter_requests_total", adapter=name, status="ok") == 4
    assert found.sum("adapter_requests_total", adapter=name, status="failed") == 1, (
        "not the client's own error"
    )
    assert found.sum("adapter_tokens_total", adapter=name, kind="completion") == 52
    # Requests that never came to admission have no times.
    assert found.sum("request_seconds_count", **chat) == 6
    assert found.sum("overhead_seconds_count") == found.sum("queue_seconds_count") == 6
    assert found.sum("ttft_seconds_count", model="base") == 5, "also of the answer that was sent whole"
    assert found.sum("itl_seconds_count", model="base") >= 3 * 4, "and gaps between the others"
    assert found.sum("itl_seconds_sum", model="base") >= 3 * 4 * 0.02
    assert current.sum("requests_in_flight") == 0
    assert found.sum("attempts_total") == 6
    eventually(lambda: scrape(gateway).since(before).sum("usage_shipped_total") == 6)
    eventually(lambda: scrape(gateway).sum("usage_log_backlog_bytes") == 0)
    assert current.sum("usage_log_writable") == 1
    assert current.sum("redis_away") == 0
    assert current.sum("routes_version") == gateway.routes_version()


def test_own_time_leaves_out_backend_and_client(gateway: GatewayProcess) -> None:
    before = scrape(gateway)
    slow = {**BOT, "messages": ask(tokens=10, delay=0.1)}
    assert post(gateway, slow).status_code == 200
    assert post(gateway, {**slow, "stream": True}).status_code == 200
    found = scrape(gateway).since(before)
    assert found.sum("request_seconds_sum") >= 2.0
    assert 0 < found.sum("overhead_seconds_sum") <= found.sum("request_seconds_sum") - 2.0


def test_what_is_under_way_and_who_left(gateway: GatewayProcess) -> None:
    before = scrape(gateway)
    slow = {**BOT, "messages": ask(tokens=500, delay=0.05), "stream": True}
    headers = {"authorization": "Bearer gw_k1_secret1"}
    with httpx.stream("POST", gateway.url + "/v1/chat/completions", json=slow, headers=headers) as answer:
        chunks = answer.iter_bytes()
        next(chunks)
        found = scrape(gateway)
        assert found.sum("requests_in_flight") == 1
        assert found.sum("copy_requests_in_flight", copy="copy-1") == 1
    eventually(lambda: scrape(gateway).sum("requests_in_flight") == 0)
    gone = {"outcome": "cancelled", "status": "499"}
    assert scrape(gateway).since(before).sum("requests_total", **gone) == 1


@pytest.mark.costly("kills a process of a gateway")
def test_any_process_tells_of_all_and_nothing_is_lost_with_one(observed: GatewayProcess) -> None:
    observed.environ["GRAFTWORK_GATEWAY_PROCESSES"] = "2"
    observed.start()
    eventually(lambda: scrape(observed).values("start_time_seconds", "process") == {"000", "001"})
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda _: post(observed, BOT), range(60)))
    assert {answer.status_code for answer in replies} == {200}
    counts = []
    for _ in range(20):
        # Each on a connection of its own: the kernel gives them to either process.
        found = scrape(observed)
        counts.append(found.sum("requests_total", status="200"))
        assert found.sum("adapter_requests_total") == 60
        assert found.sum("tokens_total", kind="completion") == 300
    assert counts == [60] * 20
    served = [value for _, value in scrape(observed).series("adapter_requests_total", status="ok")]
    assert len(served) == 2, "both served"
    os.kill(serving(observed)[0], signal.SIGKILL)
    # The parent ends the other process too; after a restart by a supervisor the counters go on.
    assert observed.process is not None
    observed.process.wait(30)
    observed.start()
    assert scrape(observed).sum("requests_total", status="200") == 60
    assert post(observed, BOT).status_code == 200
    assert scrape(observed).sum("requests_total", status="200") == 61


def test_refusals_by_the_kind_of_limit(
    observed: GatewayProcess, control_plane: ControlPlane, upstream: str
) -> None:
    table = route_table(upstream)
    limits = {
        "tenant:acme": LimitsRoute((Limit("requests", 1),)),
        "tenant:umbrella": LimitsRoute((Limit("tokens", 1),)),
    }
    control_plane.publish(
        RouteTable(2, table.keys, table.tenants, table.bases, table.adapters, limits=limits)
    )
    observed.start()
    eventually(lambda: post(observed, BOT).status_code == 200)
    assert post(observed, BOT).status_code == 429
    assert post(observed, {**BOT, "model": "hive"}, key="gw_k2_secret2").status_code == 429
    found = scrape(observed)
    assert found.sum("limited_total", limit="requests") >= 1
    assert found.sum("limited_total", limit="tokens") == 1


def test_retries_and_an_open_breaker(
    gateway: GatewayProcess, control_plane: ControlPlane, upstream: str
) -> None:
    table = route_table(upstream, f"http://127.0.0.1:{free_port()}", name="broken")
    control_plane.replace(gateway, table)
    before, numbers = scrape(gateway), count()

    def opened() -> float:
        # Copies are chosen by how the prompt begins.
        body = {"model": "base", "messages": ask(number=next(numbers), tokens=5)}
        assert post(gateway, body).status_code == 200
        return scrape(gateway).sum("breaker_openings_total", copy="broken-2")

    eventually(opened)
    found = scrape(gateway)
    assert found.since(before).sum("retries_total") >= 5
    assert found.sum("breaker_state", copy="broken-1") == 0
    assert {"broken-1", "broken-2"} <= found.values("breaker_state", "copy")


def test_a_model_without_copies(gateway: GatewayProcess, control_plane: ControlPlane, upstream: str) -> None:
    table = route_table(upstream)
    bases = {"base": BaseRoute("base", 2048, ())}
    control_plane.replace(gateway, replace(table, bases=bases))
    before = scrape(gateway)
    assert post(gateway, BOT).status_code == 503
    found = scrape(gateway).since(before)
    assert found.sum("no_copy_total") == 1
    assert found.sum("errors_total", code="upstream_unreachable") == 1
