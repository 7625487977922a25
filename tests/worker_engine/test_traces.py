"""The worker continues the caller's trace and shows where a request's time went."""

from __future__ import annotations

from pathlib import Path

import httpx
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.gateway.observability.conftest import Collector, attributes, collector
from tests.waiting import eventually
from tests.worker_process import TOKEN, run_worker

__all__ = ["collector"]

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PROMPT = "PROMPTprompt4711"


def test_queue_prefill_and_decode(tiny_model: Path, tmp_path: Path, collector: Collector) -> None:
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "100"}
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 5, "ignore_eos": True}
    headers = {"authorization": f"Bearer {TOKEN}", "traceparent": f"00-{TRACE}-{PARENT}-01"}
    with run_worker(tiny_model, tmp_path, variables=variables) as worker:
        url = f"http://127.0.0.1:{worker.port}/v1/completions"
        assert httpx.post(url, json=body, headers=headers, timeout=60).status_code == 200
        eventually(lambda: len(collector.spans()) == 4, seconds=30)
    found = {span.name: span for span in collector.spans("graftwork-worker")}
    request = found.pop("POST /v1/completions")
    assert request.kind == Span.SPAN_KIND_SERVER
    assert (request.trace_id.hex(), request.parent_span_id.hex()) == (TRACE, PARENT)
    told = attributes(request)
    assert told["gen_ai.operation.name"] == "text_completion"
    assert told["gen_ai.usage.output_tokens"] == 5
    assert told["http.response.status_code"] == 200
    assert {span.parent_span_id for span in found.values()} == {request.span_id}
    queue, prefill, decode = (found[name] for name in ("queue", "prefill", "decode"))
    assert queue.end_time_unix_nano <= prefill.end_time_unix_nano == decode.start_time_unix_nano
    assert decode.end_time_unix_nano > decode.start_time_unix_nano
    assert PROMPT not in str(collector.spans())
