"""Keys and prompts stand in no log, metric or span, whatever becomes of the request."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from dataclasses import replace

import httpx
import pytest

from contracts.route_table import RouteTable
from tests.conftest import ROOT, free_port
from tests.gateway.conftest import FLEET_TOKEN, ControlPlane, GatewayProcess, route_table
from tests.gateway.observability.conftest import TOKEN, Collector, scrape
from tests.gateway.test_app import ask, post
from tests.waiting import eventually

pytestmark = pytest.mark.costly("starts gateways of its own")

PROMPT = "PROMPTprompt4711"
SECRET = "SECRETsecret4712"
KEY = f"gw_k1_{SECRET}"
BODY = {"model": "bot", "messages": ask(tokens=4, note=PROMPT), "user": PROMPT}


def table(upstream: str) -> RouteTable:
    known = route_table(upstream, f"http://127.0.0.1:{free_port()}")
    digest = hashlib.sha256(SECRET.encode()).hexdigest()
    return replace(known, keys={"k1": replace(known.keys["k1"], secret_sha256=digest)})


@pytest.fixture
def told(
    own_gateway: GatewayProcess, control_plane: ControlPlane, upstream: str, collector: Collector
) -> Iterator[GatewayProcess]:
    """A gateway that tells all that it can; at the end nothing of the secrets may have been told."""
    control_plane.publish(table(upstream))
    own_gateway.environ |= {
        "GRAFTWORK_GATEWAY_METRICS_TOKEN": TOKEN,
        "GRAFTWORK_GATEWAY_ACCESS_LOG": "on",
        "GRAFTWORK_GATEWAY_LOG_LEVEL": "DEBUG",
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_BSP_SCHEDULE_DELAY": "100",
    }
    yield own_gateway
    metrics = scrape(own_gateway).text
    own_gateway.stop()
    log = own_gateway.log.read_text()
    traces = str(collector.spans())
    assert "gateway.access" in log
    assert "requests_total" in metrics
    assert "graftwork.request_id" in traces
    for place, text in (("log", log), ("metrics", metrics), ("spans", traces)):
        for secret in (PROMPT, SECRET, FLEET_TOKEN, TOKEN):
            assert secret not in text, f"{secret} in {place}"


def test_through_success_and_errors(told: GatewayProcess) -> None:
    told.start()
    for stream in (False, True):
        assert post(told, {**BODY, "stream": stream}, key=KEY).status_code == 200
        for fail in (400, 500, 503, "event", "cut"):
            post(told, {**BODY, "stream": stream, "messages": ask(fail=fail, note=PROMPT)}, key=KEY)
    post(told, {**BODY, "model": PROMPT}, key=KEY)
    post(told, {**BODY, PROMPT: 1}, key=KEY)
    post(told, BODY, key=KEY + "x")
    post(told, BODY, key=KEY, **{"idempotency-key": PROMPT, "x-graftwork-sticky": PROMPT})
    post(told, BODY, key=KEY, **{"idempotency-key": PROMPT})
    headers = {"authorization": f"Bearer {KEY}"}
    httpx.get(f"{told.url}/v1/models/{PROMPT}", headers=headers)
    httpx.get(f"{told.url}/{PROMPT}?key={KEY}", headers=headers)
    httpx.post(told.url + "/v1/chat/completions", content=b"{" + PROMPT.encode(), headers=headers)
    with httpx.stream(
        "POST", told.url + "/v1/chat/completions", headers=headers,
        json={**BODY, "stream": True, "messages": ask(tokens=500, delay=0.05, note=PROMPT)},
    ) as answer:  # fmt: skip
        chunks = answer.iter_bytes()
        next(chunks)
    eventually(lambda: '"status":499' in told.log.read_text())


@pytest.mark.parametrize("moment", ["before", "within", "later"])
def test_through_a_crash(told: GatewayProcess, moment: str) -> None:
    told.environ |= {"CRASH_AT": moment, "CRASH_TEXT": PROMPT + SECRET}
    told.command = [sys.executable, "-m", "tests.gateway.observability.crashing"]
    told.start()
    crashed = {**BODY, "stream": True, "messages": ask(tokens=4, delay=0.01, note=PROMPT)}
    if moment != "later":
        answer = post(told, crashed, key=KEY)
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
        assert answer.headers["x-request-id"] in answer.text
    else:
        with pytest.raises(httpx.HTTPError):
            post(told, crashed, key=KEY)
    lines = [json.loads(line) for line in told.log.read_text().splitlines() if line.startswith("{")]
    [failure] = [line for line in lines if "stack" in line]
    assert failure["error"] == "KeyError"
    assert any("crashing.py" in frame for frame in failure["stack"]), "where it arose is told"
    assert str(ROOT) in failure["stack"][0]
    assert scrape(told).sum("errors_total", code="internal_error") == 1
