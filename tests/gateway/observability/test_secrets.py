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
def verbose_gateway(
    own_gateway: GatewayProcess, control_plane: ControlPlane, upstream: str, collector: Collector
) -> Iterator[GatewayProcess]:
    """A gateway with all telemetry on; at the end no output may contain a secret."""
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


def test_through_success_and_errors(verbose_gateway: GatewayProcess) -> None:
    verbose_gateway.start()
    for stream in (False, True):
        assert post(verbose_gateway, {**BODY, "stream": stream}, key=KEY).status_code == 200
        for fail in (400, 500, 503, "event", "cut"):
            post(
                verbose_gateway, {**BODY, "stream": stream, "messages": ask(fail=fail, note=PROMPT)}, key=KEY
            )
    post(verbose_gateway, {**BODY, "model": PROMPT}, key=KEY)
    post(verbose_gateway, {**BODY, PROMPT: 1}, key=KEY)
    post(verbose_gateway, BODY, key=KEY + "x")
    post(verbose_gateway, BODY, key=KEY, **{"idempotency-key": PROMPT, "x-graftwork-sticky": PROMPT})
    post(verbose_gateway, BODY, key=KEY, **{"idempotency-key": PROMPT})
    headers = {"authorization": f"Bearer {KEY}"}
    httpx.get(f"{verbose_gateway.url}/v1/models/{PROMPT}", headers=headers)
    httpx.get(f"{verbose_gateway.url}/{PROMPT}?key={KEY}", headers=headers)
    httpx.post(verbose_gateway.url + "/v1/chat/completions", content=b"{" + PROMPT.encode(), headers=headers)
    with httpx.stream(
        "POST",
        verbose_gateway.url + "/v1/chat/completions",
        headers=headers,
        json={**BODY, "stream": True, "messages": ask(tokens=500, delay=0.05, note=PROMPT)},
    ) as answer:
        chunks = answer.iter_bytes()
        next(chunks)
    eventually(lambda: '"status":499' in verbose_gateway.log.read_text())


@pytest.mark.parametrize("moment", ["before", "within", "later"])
def test_through_a_crash(verbose_gateway: GatewayProcess, moment: str) -> None:
    verbose_gateway.environ |= {"CRASH_AT": moment, "CRASH_TEXT": PROMPT + SECRET}
    verbose_gateway.command = [sys.executable, "-m", "tests.gateway.observability.crashing"]
    verbose_gateway.start()
    crashed = {**BODY, "stream": True, "messages": ask(tokens=4, delay=0.01, note=PROMPT)}
    if moment != "later":
        answer = post(verbose_gateway, crashed, key=KEY)
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
        assert answer.headers["x-request-id"] in answer.text
    else:
        with pytest.raises(httpx.HTTPError):
            post(verbose_gateway, crashed, key=KEY)
    lines = [
        json.loads(line) for line in verbose_gateway.log.read_text().splitlines() if line.startswith("{")
    ]
    [failure] = [line for line in lines if "stack" in line]
    assert failure["error"] == "KeyError"
    assert any("crashing.py" in frame for frame in failure["stack"]), "where it arose is told"
    assert str(ROOT) in failure["stack"][0]
    assert scrape(verbose_gateway).sum("errors_total", code="internal_error") == 1
