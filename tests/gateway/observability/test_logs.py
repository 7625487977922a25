"""Lines of the log, as a machine and as a person read them."""

from __future__ import annotations

import json

import pytest

from gateway.observability.logs import choose_format
from tests.gateway.conftest import ControlPlane, GatewayProcess, reference, route_table
from tests.gateway.test_app import ask, post
from tests.waiting import eventually

pytestmark = pytest.mark.costly("starts gateways of its own")

BODY = {"model": "bot@prod", "messages": ask(tokens=4), "stream": True}


def start(gateway: GatewayProcess, control_plane: ControlPlane, upstream: str, **environ: str) -> None:
    control_plane.publish(route_table(upstream))
    gateway.environ |= {f"GRAFTWORK_GATEWAY_{name.upper()}": value for name, value in environ.items()}
    gateway.start()


def test_every_line_is_an_object_and_a_request_is_one(
    own_gateway: GatewayProcess, control_plane: ControlPlane, upstream: str
) -> None:
    start(own_gateway, control_plane, upstream, access_log="on")
    request_id = post(own_gateway, BODY).headers["x-request-id"]
    eventually(lambda: request_id in own_gateway.log.read_text())
    own_gateway.stop()
    lines = [json.loads(line) for line in own_gateway.log.read_text().splitlines()]
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
    assert "gateway.http.server.server" in {line["logger"] for line in lines}
    [line] = [line for line in lines if line.get("request_id") == request_id]
    assert (line["tenant"], line["key_id"], line["model"]) == ("acme", "k1", "base")
    assert (line["endpoint"], line["status"], line["outcome"]) == ("/v1/chat/completions", 200, "ok")
    assert (line["prompt_tokens"], line["cached_tokens"], line["completion_tokens"]) == (11, 5, 4)
    assert (line["adapter"], line["copy"], line["attempts"]) == (
        reference("acme", "bot", 2).name,
        "copy-1",
        1,
    )
    assert 0 < line["own_ms"] <= line["duration_ms"]
    assert 0 < line["ttft_ms"] <= line["duration_ms"]


def test_text_for_people_and_no_access_log_by_default(
    own_gateway: GatewayProcess, control_plane: ControlPlane, upstream: str
) -> None:
    start(own_gateway, control_plane, upstream, log_format="text")
    request_id = post(own_gateway, BODY).headers["x-request-id"]
    own_gateway.stop()
    log = own_gateway.log.read_text()
    assert "INFO gateway.routing.route_feed: routes: snapshot of version 1" in log
    assert request_id not in log


def test_a_higher_level_says_less(
    own_gateway: GatewayProcess, control_plane: ControlPlane, upstream: str
) -> None:
    start(own_gateway, control_plane, upstream, log_level="WARNING", access_log="on")
    post(own_gateway, BODY)
    own_gateway.stop()
    assert '"level":"info"' not in own_gateway.log.read_text()


def test_auto_is_json_unless_somebody_looks_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: False, raising=False)
    assert choose_format("auto") == "json"
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert choose_format("auto") == "text"
    assert choose_format("json") == "json"
