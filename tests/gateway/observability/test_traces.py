"""Traces from client to worker, received as a collector receives them."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from tests.conftest import ROOT, free_port
from tests.gateway.conftest import ControlPlane, GatewayProcess, reference, route_table
from tests.gateway.observability.conftest import Collector, attributes
from tests.gateway.test_app import ask, post
from tests.waiting import eventually

pytestmark = pytest.mark.costly("starts gateways of its own")

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
BOT = {"model": "bot@prod", "messages": ask(tokens=4)}


@pytest.fixture
def gateway_environ(shared_collector: Collector) -> dict[str, str]:
    return settings(shared_collector.url)


def settings(collector_url: str) -> dict[str, str]:
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector_url,
        "OTEL_BSP_SCHEDULE_DELAY": "100",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "2",
    }


def spans(collector: Collector, *answers: httpx.Response, count: int) -> list[Span]:
    """Wait for the `count` spans of the requests with these answers."""
    ids = {answer.headers["x-request-id"] for answer in answers}

    def received() -> list[Span]:
        known = collector.spans()
        traces = {span.trace_id for span in known if attributes(span).get("graftwork.request_id") in ids}
        return [span for span in known if span.trace_id in traces]

    eventually(lambda: len(received()) >= count)
    return received()


def of_kind(found: list[Span], kind: Any) -> Span:
    [span] = [span for span in found if span.kind == kind]
    return span


def test_a_client_s_trace_goes_on(
    gateway: GatewayProcess, shared_collector: Collector, upstream: str
) -> None:
    answer = post(gateway, {**BOT, "stream": True}, traceparent=f"00-{TRACE}-{PARENT}-01")
    assert answer.status_code == 200
    found = spans(shared_collector, answer, count=2)
    request, attempt = of_kind(found, Span.SPAN_KIND_SERVER), of_kind(found, Span.SPAN_KIND_CLIENT)
    assert request.trace_id.hex() == attempt.trace_id.hex() == TRACE
    assert request.parent_span_id.hex() == PARENT
    assert attempt.parent_span_id == request.span_id
    assert request.start_time_unix_nano <= attempt.start_time_unix_nano
    assert attempt.end_time_unix_nano <= request.end_time_unix_nano
    told = attributes(request)
    assert told["http.route"] == "/v1/chat/completions"
    assert told["http.response.status_code"] == 200
    assert told["graftwork.request_id"] == answer.headers["x-request-id"]
    assert told["graftwork.tenant"] == "acme"
    called = attributes(attempt)
    assert attempt.name == "chat base"
    assert called["gen_ai.operation.name"] == "chat"
    assert called["gen_ai.request.model"] == "base"
    assert called["gen_ai.response.model"] == reference("acme", "bot", 2).name
    assert called["gen_ai.usage.input_tokens"] == 11
    assert called["gen_ai.usage.output_tokens"] == 4
    assert called["gen_ai.response.time_to_first_chunk"] > 0
    # The backend learns the attempt's span, so that its own are within it.
    log = httpx.get(upstream + "/log").json()
    [entry] = [entry for entry in log if entry["id"] == answer.headers["x-request-id"]]
    assert entry["traceparent"] == f"00-{TRACE}-{attempt.span_id.hex()}-01"


def test_each_prompt_of_a_call_has_an_attempt_in_its_trace(
    gateway: GatewayProcess, shared_collector: Collector, upstream: str
) -> None:
    prompts = [json.dumps({"tokens": 2, "prompt_tokens": count}) for count in (10, 20)]
    body = {"model": "base", "prompt": prompts, "adapters": ["bot@prod", "base"]}
    answer = post(gateway, body, path="completions")
    request_id = answer.headers["x-request-id"]
    found = spans(shared_collector, answer, count=3)
    request = of_kind(found, Span.SPAN_KIND_SERVER)
    attempts = [span for span in found if span.kind == Span.SPAN_KIND_CLIENT]
    assert {span.parent_span_id for span in attempts} == {request.span_id}
    assert {
        (attributes(span)["gen_ai.response.model"], attributes(span)["gen_ai.usage.input_tokens"])
        for span in attempts
    } == {(reference("acme", "bot", 2).name, 10), ("base", 20)}
    log = httpx.get(upstream + "/log").json()
    sent = [item["traceparent"] for item in log if item["id"] in (f"{request_id}-0", f"{request_id}-1")]
    assert {tuple(value.split("-")[1:3]) for value in sent} == {
        (request.trace_id.hex(), span.span_id.hex()) for span in attempts
    }


@pytest.mark.parametrize(
    "traceparent", ["", "nonsense", f"00-{'0' * 32}-{PARENT}-01", f"ff-{TRACE}-{PARENT}-01"]
)
def test_a_trace_begins_where_none_is_sent(
    gateway: GatewayProcess, shared_collector: Collector, traceparent: str
) -> None:
    answer = post(gateway, BOT, traceparent=traceparent)
    assert answer.status_code == 200
    request = of_kind(spans(shared_collector, answer, count=2), Span.SPAN_KIND_SERVER)
    assert request.parent_span_id == b""
    assert request.trace_id.hex() not in (TRACE, "0" * 32)


def test_failures_are_told_by_a_word(gateway: GatewayProcess, shared_collector: Collector) -> None:
    answers = post(gateway, {**BOT, "messages": ask(fail=500)}), post(gateway, BOT, key="gw_k1_wrong")
    assert [answer.status_code for answer in answers] == [502, 401]
    found = spans(shared_collector, *answers, count=3)
    failed = {attributes(span).get("http.response.status_code"): span for span in found}
    assert failed[502].status.code == Status.STATUS_CODE_ERROR
    assert attributes(failed[502])["error.type"] == "upstream_error"
    assert failed[401].status.code != Status.STATUS_CODE_ERROR, "the client's fault"
    assert of_kind(found, Span.SPAN_KIND_CLIENT).status.code == Status.STATUS_CODE_ERROR


@pytest.mark.parametrize("broken", ["away", 503, 400])
def test_requests_do_not_notice_a_broken_collector(
    own_gateway: GatewayProcess,
    control_plane: ControlPlane,
    upstream: str,
    collector: Collector,
    broken: str | int,
) -> None:
    control_plane.publish(route_table(upstream))
    if isinstance(broken, int):
        collector.status = broken
        own_gateway.environ |= settings(collector.url)
    else:
        own_gateway.environ |= settings(f"http://127.0.0.1:{free_port()}")
    own_gateway.start()
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda _: post(own_gateway, BOT), range(40)))
    assert {answer.status_code for answer in replies} == {200}
    if isinstance(broken, int):
        eventually(lambda: collector.posts > 0)
    assert own_gateway.process is not None
    own_gateway.process.terminate()
    assert own_gateway.process.wait(60) == 0


def test_nothing_is_loaded_when_traces_are_off() -> None:
    code = (
        "import sys, gateway.app, gateway.__main__, contracts.tracing as t;"
        "assert t.Tracing.start('s', {}) is None;"
        "off = {'OTEL_SDK_DISABLED': 'true', 'OTEL_EXPORTER_OTLP_ENDPOINT': 'x'};"
        "assert t.Tracing.start('s', off) is None;"
        # The Redis client looks for the API and for metrics by itself.
        "ours = ('opentelemetry.sdk.trace', 'opentelemetry.exporter');"
        "print([name for name in ours if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert result.stdout.strip() == "[]", result.stderr


def test_traces_asked_for_but_not_installed_are_refused_at_start() -> None:
    code = (
        "import sys; sys.modules['opentelemetry'] = None;"
        "from contracts.tracing import Tracing;"
        "Tracing.start('s', {'OTEL_EXPORTER_OTLP_ENDPOINT': 'http://127.0.0.1:1'})"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode != 0
    assert "graftwork[observability]" in result.stderr
