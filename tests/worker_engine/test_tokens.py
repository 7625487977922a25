"""/tokenize and /detokenize, /drain, and headers that are no text."""

from __future__ import annotations

import http.client
import importlib.metadata
from pathlib import Path
from typing import Any

import pytest

from tests.worker_process import Worker, run_worker


def test_tokens_are_those_that_a_completion_counts(worker: Worker) -> None:
    status, answer = worker.call("/tokenize", {"prompt": "héllo", "return_token_strs": True})
    assert status == 200
    assert (answer["count"], len(answer["tokens"]), answer["max_model_len"]) == (6, 6, 512)
    assert answer["token_strs"][0] == "h"
    assert worker.complete(prompt="héllo")[1]["usage"]["prompt_tokens"] == 6
    assert worker.call("/detokenize", {"tokens": answer["tokens"]})[1] == {"prompt": "héllo"}
    messages = [{"role": "user", "content": "hi"}]
    chat = worker.call("/tokenize", {"messages": messages, "model": "tiny"})[1]
    asked = worker.call("/v1/chat/completions", {"model": "tiny", "messages": messages, "max_tokens": 1})[1]
    assert chat["count"] == asked["usage"]["prompt_tokens"]
    assert worker.call("/detokenize", {"tokens": chat["tokens"]})[1]["prompt"] == "user: hi\nassistant:"
    assert worker.call("/tokenize", {"prompt": ""})[1]["tokens"] == []


def test_a_model_is_told_alone_and_when_it_began(worker: Worker) -> None:
    [listed] = worker.call("/v1/models")[1]["data"]
    assert worker.call("/v1/models/tiny") == (200, listed)
    assert listed["created"] > 1_700_000_000
    assert worker.client.models.retrieve("tiny").id == "tiny"
    for name in ("nobody", "a/b", "a%2Fb"):
        status, answer = worker.call(f"/v1/models/{name}")
        assert (status, answer["error"]["code"]) == (404, "model_not_found")
    assert worker.call("/version") == (200, {"version": importlib.metadata.version("graftwork")})


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/tokenize", {}, 400, "prompt"),
        ("/tokenize", {"prompt": 5}, 400, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": []}, 400, "messages"),
        ("/tokenize", {"messages": [{"role": "king", "content": "x"}]}, 400, "messages[0].role"),
        ("/tokenize", {"prompt": "x", "wibble": 1}, 400, "wibble"),
        ("/tokenize", {"prompt": "x", "add_special_tokens": 1}, 400, "add_special_tokens"),
        ("/tokenize", {"prompt": "x", "model": "nobody"}, 404, "model"),
        ("/detokenize", {}, 400, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, 400, "tokens"),
        ("/detokenize", {"tokens": [256]}, 400, "tokens"),
        ("/detokenize", {"tokens": [-1]}, 400, "tokens"),
        ("/detokenize", {"tokens": [True]}, 400, "tokens"),
        ("/detokenize", {"tokens": [2**70]}, 400, None),
        ("/v1/load_lora_adapter", {}, 400, "lora_name"),
        ("/v1/load_lora_adapter", {"lora_name": "a"}, 400, "lora_path"),
        ("/v1/load_lora_adapter", {"lora_name": "a", "lora_path": "x", "y": 1}, 400, "y"),
        ("/v1/load_lora_adapter", {"lora_name": "a", "lora_path": "/etc"}, 400, "lora_path"),
        ("/v1/load_lora_adapter", {"lora_name": "a", "lora_path": "x", "pin": 1}, 400, "pin"),
        ("/v1/load_lora_adapter", {"lora_name": "tiny", "lora_path": "x"}, 400, "lora_name"),
        ("/v1/unload_lora_adapter", {"lora_name": 1}, 400, "lora_name"),
        ("/v1/unload_lora_adapter", {"lora_name": "nobody"}, 404, "lora_name"),
    ],
)
def test_bad_fields_are_named(worker: Worker, path: str, body: Any, status: int, param: str | None) -> None:
    answered, answer = worker.call(path, body)
    assert answered == status, answer
    assert param is None or answer["error"]["param"] == param
    assert isinstance(answer["error"]["code"], str)
    assert worker.call(path, body, token="wrong")[0] == 401


@pytest.mark.parametrize("name", [b"Authorization", b"x-request-id", b"x-request-timeout"])
def test_a_header_that_is_no_utf8_is_refused_or_ignored(worker: Worker, name: bytes) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", worker.port, timeout=30)
    connection.request("POST", "/v1/completions", b"{}", {name.decode(): b"\xff\xfe"})
    assert 400 <= connection.getresponse().status < 500
    connection.close()


def test_drain_answers_when_nothing_runs_and_nothing_more_is_taken(tiny_model: Path, tmp_path: Path) -> None:
    with run_worker(tiny_model, tmp_path) as worker:
        assert worker.complete()[0] == 200
        assert worker.call("/drain", {}, token="wrong")[0] == 401
        assert worker.call("/drain", {}) == (200, {"status": "draining", "pending": 0})
        status, body = worker.complete()
        assert (status, body["error"]["code"]) == (503, "unavailable")
        assert worker.call("/health")[0] == 503
