"""The tenant fields that the gateway sends with a request, through the worker's HTTP API."""

from __future__ import annotations

import http.client
import json
from pathlib import Path

import pytest

from tests.worker_engine.tiny_adapter import adapter_ref
from tests.worker_process import TOKEN, Worker
from worker_engine.errors import InvalidRequest
from worker_engine.openai.origin import parse_origin, parse_timeout
from worker_engine.protocol import Origin

PROMPT = [index * 5 % 250 for index in range(100)]


def cached(worker: Worker, **body: object) -> int:
    status, answer = worker.complete(prompt=PROMPT, temperature=0, **body)
    assert status == 200, answer
    usage = answer["usage"]
    assert usage["prompt_tokens"] == len(PROMPT)
    tokens: int = usage["prompt_tokens_details"]["cached_tokens"]
    return tokens


def test_cached_tokens_are_told_and_never_cross_salts(worker: Worker, tiny_adapters: dict[str, Path]) -> None:
    assert cached(worker, tenant="a", cache_salt="aa") == 0
    assert cached(worker, tenant="a", cache_salt="aa") == 96
    assert cached(worker, tenant="b", cache_salt="bb") == 0
    assert cached(worker, tenant="b", cache_salt="aa") == 96, "the salt alone decides"
    assert cached(worker) == 0
    ref = adapter_ref(tiny_adapters["plain"])
    adapted = {"model": ref.name, "adapter": ref.to_dict(), "cache_salt": "aa"}
    assert cached(worker, **adapted) == 0, "another adapter's keys and values"
    assert cached(worker, **adapted) == 96


def test_a_stream_tells_cached_tokens_with_its_usage(worker: Worker) -> None:
    body = {"stream": True, "stream_options": {"include_usage": True}, "cache_salt": "stream"}
    for expected in (0, 96):
        status, text = worker.complete(prompt=PROMPT, temperature=0, **body)
        assert status == 200
        last = json.loads(text.split("\n\n")[-3].removeprefix("data: "))
        assert last["usage"]["prompt_tokens_details"]["cached_tokens"] == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tenant", 5),
        ("tenant", "x" * 300),
        ("cache_salt", ["x"]),
        ("priority", 1.5),
        ("priority", True),
        ("priority", 101),
        ("timeout", 0),
        ("timeout", "5"),
        ("timeout", -1),
        ("timeout", float("nan")),
        ("tenant_weight", 0),
        ("tenant_weight", True),
        ("tenant_weight", 1e9),
    ],
)
def test_a_bad_field_is_named(name: str, value: object) -> None:
    with pytest.raises(InvalidRequest, match=name) as refused:
        parse_origin({name: value}, None)
    assert refused.value.param == name


def test_the_fields_and_their_defaults(tiny_adapters: dict[str, Path]) -> None:
    assert parse_origin({"tenant": None, "priority": None, "timeout": None}, None) == Origin()
    body = {"tenant": "t", "tenant_weight": 2, "priority": -3, "cache_salt": "s", "timeout": 1.5}
    assert parse_origin(body, None) == Origin("t", 2.0, -3, "s", 1.5)
    ref = adapter_ref(tiny_adapters["plain"])
    assert parse_origin({}, ref).tenant == "acme", "an adapter's owner pays when nobody else is named"
    assert parse_origin({"tenant": "t"}, ref).tenant == "t"


@pytest.mark.parametrize("header", ["x", "", "nan", "0", "-1", "1e9"])
def test_a_bad_time_limit_header_is_refused(header: str) -> None:
    with pytest.raises(InvalidRequest, match="x-request-timeout"):
        parse_timeout(header)


def test_a_time_limit_ends_a_request_with_a_typed_error(worker: Worker) -> None:
    """By field and by header, streamed or not; the shorter limit counts."""
    body = {"model": "tiny", "prompt": "x", "max_tokens": 500, "ignore_eos": True, "timeout": 60}
    for stream in (False, True):
        connection = http.client.HTTPConnection("127.0.0.1", worker.port, timeout=30)
        headers = {"Authorization": f"Bearer {TOKEN}", "x-request-timeout": "0.1"}
        connection.request("POST", "/v1/completions", json.dumps(body | {"stream": stream}), headers)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        assert answer.status == (200 if stream else 504)
        assert b'"code":"timeout"' in content.replace(b": ", b":")
        assert b"[DONE]" not in content
    status, answer_body = worker.complete(timeout=1e-6)
    assert (status, answer_body["error"]["code"]) == (503, "deadline_exceeded")
    assert worker.metric("kv_pages_used") == 0
