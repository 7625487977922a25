"""The form of PyTorch's images: what the written handler is asked, and its events as OpenAI's."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest

from gateway.api.schema import CHAT, COMPLETIONS, parse
from gateway.api.sse import EventStream, UsageView, event_data
from gateway.api.usage import Usage
from gateway.backends.containers.pytorch import PyTorchForm
from gateway.errors import BadRequest, GatewayError, UpstreamBusy, UpstreamFailed, UpstreamRefused

MESSAGES = [{"role": "user", "content": "hi"}]
PARTS: list[dict[str, Any]] = [
    {"text": "Hé", "finish_reason": None, "prompt_tokens": 7, "completion_tokens": 1},
    {"text": " you", "finish_reason": "stop", "prompt_tokens": 7, "completion_tokens": 2},
]


def call_of(path: str, **values: Any) -> Any:
    body = {"model": "m", **({"messages": MESSAGES} if path == CHAT else {"prompt": "hello"}), **values}
    return parse(path, orjson.dumps(body))


def stream_of(*parts: dict[str, Any]) -> bytes:
    return b"".join(b"data: " + json.dumps(part).encode() + b"\n\n" for part in parts)


def test_the_handler_is_asked_in_its_words() -> None:
    form = PyTorchForm()
    chat = form.body(call_of(CHAT, max_completion_tokens=9, temperature=0, stop="x", top_k=4, seed=3), "bot")
    assert chat == {
        "messages": MESSAGES,
        "template": {},
        "sampling": {"max_tokens": 9, "temperature": 0, "stop": ["x"], "top_k": 4, "seed": 3},
        "adapter": "bot",
    }
    assert form.body(call_of(COMPLETIONS), "") == {"prompt": "hello", "sampling": {"max_tokens": 16}}


@pytest.mark.parametrize(
    ("path", "values", "param"),
    [
        (CHAT, {"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        (CHAT, {"logprobs": True}, "logprobs"),
        (CHAT, {"n": 2}, "n"),
        (CHAT, {"presence_penalty": 0.5}, "presence_penalty"),
        (CHAT, {"response_format": {"type": "json_object"}}, "response_format"),
        (COMPLETIONS, {"min_tokens": 3}, "min_tokens"),
        (COMPLETIONS, {"prompt": ["a", "b"]}, "prompt"),
    ],
)
def test_what_the_handler_does_not_read_is_refused_by_name(
    path: str, values: dict[str, Any], param: str
) -> None:
    with pytest.raises(BadRequest, match="PyTorch's image") as caught:
        PyTorchForm().body(call_of(path, **values), "")
    assert caught.value.param == param


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_events_are_openais_wherever_the_bytes_are_split(path: str) -> None:
    data = stream_of(*PARTS)
    for cut in range(len(data) + 1):
        translator = PyTorchForm().translator(call_of(path), "r1", "bot")
        sent = translator.feed(data[:cut]) + translator.feed(data[cut:]) + translator.end()
        usage = Usage()
        out = EventStream(usage, UsageView.FINAL).feed(sent)
        values = [orjson.loads(item) for item in event_data(out) if item != b"[DONE]"]
        values = [value for value in values if value["choices"]]
        choices = [value["choices"][0] for value in values]
        texts = [(item["delta"]["content"] if path == CHAT else item["text"]) for item in choices]
        assert "".join(texts) == "Hé you"
        assert choices[-1]["finish_reason"] == "stop"
        assert (usage.prompt_tokens, usage.completion_tokens) == (7, 2)
        assert {value["model"] for value in values} == {"bot"}


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        ({"status": 404, "message": "adapter x not found"}, UpstreamBusy, ""),
        ({"status": 400, "message": "the chat template refuses"}, UpstreamRefused, "chat template refuses"),
        ({"status": 500, "message": "secret"}, UpstreamFailed, "failed on this request"),
        ("text", UpstreamFailed, "failed on this request"),
    ],
)
def test_an_error_event_is_the_clients_error(error: Any, kind: type[GatewayError], says: str) -> None:
    translator = PyTorchForm().translator(call_of(CHAT), "r1", "bot")
    with pytest.raises(kind) as caught:
        translator.feed(stream_of({"error": error}))
    body = caught.value.body.decode() if isinstance(caught.value, UpstreamRefused) else str(caught.value)
    assert says in body
    assert "secret" not in body


def test_tokens_before_an_error_are_passed_on_and_billed() -> None:
    translator = PyTorchForm().translator(call_of(CHAT), "r1", "bot")
    assert b'"completion_tokens":1' in translator.feed(stream_of(PARTS[0], {"error": {"status": 500}}))
    with pytest.raises(UpstreamFailed):
        translator.end()


def test_an_answer_without_its_end_is_a_failure() -> None:
    translator = PyTorchForm().translator(call_of(CHAT), "r1", "bot")
    translator.feed(stream_of(PARTS[0]))
    with pytest.raises(UpstreamFailed, match="before it was complete"):
        translator.end()
    with pytest.raises(UpstreamFailed, match="no part of an answer"):
        PyTorchForm().translator(call_of(CHAT), "r1", "bot").feed(stream_of({"text": "x"}))
