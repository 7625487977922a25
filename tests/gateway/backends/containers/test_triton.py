"""Triton's form: what the repository's chat model is asked, and its events, at every split, as OpenAI's."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.schema import CHAT, COMPLETIONS, parse
from gateway.api.sse import EventStream, UsageView, event_data
from gateway.api.usage import Usage
from gateway.backends.containers.triton import TritonForm
from gateway.backends.sagemaker_errors import SageMakerRefusal
from gateway.backends.upstream import Refusal
from gateway.errors import BadRequest, UpstreamBusy, UpstreamFailed, UpstreamRefused

MESSAGES = [{"role": "user", "content": "hi"}]


def request_of(path: str, adapter: str = "", **values: Any) -> dict[str, Any]:
    body = {"model": "m", **({"messages": MESSAGES} if path == CHAT else {"prompt": "hello"}), **values}
    sent = TritonForm().body(parse(path, orjson.dumps(body)), adapter)
    assert sent.keys() == {"text_input"}, "Triton refuses a field that is no input of the model"
    value: dict[str, Any] = json.loads(sent["text_input"])
    return value


def test_the_model_is_asked_in_vllms_words() -> None:
    assert request_of(
        CHAT, "bot", max_completion_tokens=9, temperature=0, stop="x", top_k=4, ignore_eos=True
    ) == {
        "messages": MESSAGES,
        "template": {},
        "sampling": {
            "max_tokens": 9,
            "temperature": 0,
            "stop": ["x"],
            "top_k": 4,
            "ignore_eos": True,
            "lora_name": "bot",
        },
    }
    assert request_of(CHAT)["sampling"] == {}, "the model gives a chat the rest of the context"
    goes_on = request_of(CHAT, continue_final_message=True)["template"]
    assert goes_on == {"continue_final_message": True, "add_generation_prompt": False}
    assert request_of(COMPLETIONS) == {"prompt": "hello", "sampling": {"max_tokens": 16}}


@pytest.mark.parametrize(
    ("path", "values", "param"),
    [
        (CHAT, {"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        (CHAT, {"logprobs": True}, "logprobs"),
        (CHAT, {"n": 2}, "n"),
        (CHAT, {"logit_bias": {"3": 5}}, "logit_bias"),
        (CHAT, {"response_format": {"type": "json_object"}}, "response_format"),
        (COMPLETIONS, {"echo": True}, "echo"),
        (COMPLETIONS, {"prompt": ["a", "b"]}, "prompt"),
    ],
)
def test_what_the_backend_does_not_take_is_refused_by_name(
    path: str, values: dict[str, Any], param: str
) -> None:
    with pytest.raises(BadRequest) as caught:
        request_of(path, **values)
    assert caught.value.param == param


def event(text: str, count: int, reason: str | None = None) -> bytes:
    part = {"text": text, "finish_reason": reason, "prompt_tokens": 7, "completion_tokens": count}
    value = {"model_name": "chat", "model_version": "1", "text_output": json.dumps(part)}
    return b"data: " + json.dumps(value).encode() + b"\n\n"


@given(st.lists(st.text(max_size=6), min_size=1, max_size=6), st.lists(st.integers(0, 2000), max_size=5))
def test_events_at_every_split_are_the_same_answer(texts: list[str], cuts: list[int]) -> None:
    count = len(texts)
    data = b"".join(
        event(text, index + 1, "length" if index == count - 1 else None) for index, text in enumerate(texts)
    )
    call = parse(CHAT, orjson.dumps({"model": "m", "messages": MESSAGES}))
    translator, stream = TritonForm().translator(call, "r-1", "bot"), EventStream(Usage(), UsageView.FINAL)
    out, start = b"", 0
    for cut in sorted({*(cut % len(data) for cut in cuts), len(data)}):
        out += stream.feed(translator.feed(data[start:cut]))
        start = cut
    out += stream.feed(translator.end())
    items = [orjson.loads(item) for item in event_data(out) if item != b"[DONE]"]
    choices = [item["choices"][0] for item in items if item["choices"]]
    assert "".join(choice["delta"]["content"] for choice in choices) == "".join(texts)
    assert choices[0]["delta"]["role"] == "assistant"
    assert choices[-1]["finish_reason"] == "length"
    assert (stream.usage.prompt_tokens, stream.usage.completion_tokens) == (7, count)


@pytest.mark.parametrize(
    "end", [b"", b'data: {"error":"Error generating stream: x"}\n\n', b'data: {"a":1}\n\n']
)
def test_an_answer_that_breaks_off_is_an_error_and_its_usage_is_known(end: bytes) -> None:
    call = parse(COMPLETIONS, orjson.dumps({"model": "m", "prompt": "a"}))
    translator, usage = TritonForm().translator(call, "r-1", "bot"), Usage()
    stream = EventStream(usage, UsageView.HIDDEN)
    stream.feed(translator.feed(event("a", 1)))

    def feed_end() -> bytes:
        return translator.feed(end + b"\n") + translator.end()

    with pytest.raises(UpstreamFailed):
        feed_end()
    assert (usage.prompt_tokens, usage.completion_tokens) == (7, 1)


@pytest.mark.parametrize(
    ("status", "text", "kind"),
    [
        (404, "adapter bot not found", UpstreamBusy),
        (400, "This model's maximum context length is 64 tokens. However, ...", UpstreamRefused),
        (500, "RuntimeError: Error generating stream: x", UpstreamFailed),
        (424, "Request failed during generation", UpstreamFailed),
    ],
)
def test_refusals_before_the_answer(status: int, text: str, kind: type[Exception]) -> None:
    body = {"OriginalStatusCode": status, "OriginalMessage": json.dumps({"error": text})}
    refusal = Refusal(424, orjson.dumps(body), {"x-amzn-errortype": "ModelError"})
    assert isinstance(SageMakerRefusal.read(refusal).error("r", adapter=False, lmi=False), kind)
