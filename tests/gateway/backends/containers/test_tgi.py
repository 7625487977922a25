"""TGI's form: requests as it reads them, and its events, at every split, as OpenAI's."""

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
from gateway.backends.containers.stop_text import StopText
from gateway.backends.containers.tgi import TgiForm
from gateway.errors import BadRequest, GatewayError, UpstreamBusy, UpstreamFailed, UpstreamRefused

MESSAGES = [{"role": "developer", "content": "be brief"}, {"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}


def body(path: str, adapter: str = "", **values: Any) -> dict[str, Any]:
    asked = {"messages": MESSAGES} if path == CHAT else {"prompt": "hello"}
    return TgiForm().body(parse(path, orjson.dumps({"model": "m", **asked, **values})), adapter)


def test_chats_are_sent_in_openais_form() -> None:
    sent = body(CHAT, "bot", max_completion_tokens=9, temperature=0, stop="x", seed=-1, presence_penalty=0)
    assert sent == {
        "model": "bot",
        "messages": [{"role": "system", "content": "be brief"}, MESSAGES[1]],
        "max_tokens": 9,
        "temperature": 0,
        "stop": ["x"],
        "seed": (1 << 63) - 1,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert body(CHAT)["model"] == "tgi", "TGI takes any other name for an adapter's"
    # top_p 1 is not in TGI's range, and presence_penalty 0 would become a repetition penalty of 2.
    assert body(CHAT, top_p=1.0, presence_penalty=0.0, n=1, top_k=-1).keys() == body(CHAT).keys()
    assert body(CHAT, guided_json=SCHEMA)["response_format"] == {"type": "json", "value": SCHEMA}


def test_completions_are_sent_in_its_own_form() -> None:
    sent = body(COMPLETIONS, "bot", max_tokens=5, top_k=4, repetition_penalty=1.2, stop=["x", "y"])
    assert sent == {
        "inputs": "hello",
        "parameters": {
            "max_new_tokens": 5,
            "stop": ["x", "y"],
            "do_sample": True,
            "temperature": 1.0,
            "top_k": 4,
            "repetition_penalty": 1.2,
            "adapter_id": "bot",
            "details": True,
            "return_full_text": False,
        },
        "stream": True,
    }
    greedy = body(COMPLETIONS, temperature=0, guided_regex="a+")["parameters"]
    assert "do_sample" not in greedy
    assert greedy["grammar"] == {"type": "regex", "value": "a+"}
    assert greedy["max_new_tokens"] == 16, "OpenAI's default"


@pytest.mark.parametrize(
    ("path", "values", "param"),
    [
        (CHAT, {"presence_penalty": 0.5}, "presence_penalty"),
        (CHAT, {"n": 2}, "n"),
        (CHAT, {"logit_bias": {"3": 5}}, "logit_bias"),
        (CHAT, {"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        (CHAT, {"response_format": {"type": "json_object"}}, "response_format"),
        (CHAT, {"guided_json": {"type": "array"}}, "guided_json without properties"),
        (CHAT, {"structured_outputs": {"choice": ["a"]}}, "structured_outputs"),
        (CHAT, {"guided_choice": ["a"]}, "guided_choice"),
        (CHAT, {"prompt_logprobs": 1}, "prompt_logprobs"),
        (COMPLETIONS, {"logprobs": 2}, "logprobs"),
        (COMPLETIONS, {"echo": True}, "echo"),
        (COMPLETIONS, {"min_p": 0.1}, "min_p"),
        (COMPLETIONS, {"ignore_eos": True}, "ignore_eos"),
        (COMPLETIONS, {"prompt": ["a", "b"]}, "prompt"),
        (COMPLETIONS, {"prompt": [1, 2]}, "prompt"),
    ],
)
def test_what_tgi_would_ignore_is_refused_by_name(path: str, values: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        body(path, **values)
    assert caught.value.param == param


def chat_events(texts: list[str], reason: str, *, version: int) -> list[dict[str, Any]]:
    counts = {"prompt_tokens": 7, "completion_tokens": len(texts), "total_tokens": 7 + len(texts)}
    events = []
    for index, text in enumerate(texts):
        last = index == len(texts) - 1
        choice = {"index": 0, "delta": {"role": "assistant", "content": text}, "logprobs": None}
        usage = counts if last and version < 3 else None
        choices = [{**choice, "finish_reason": reason if last else None}]
        events.append({"object": "chat.completion.chunk", "id": "", "choices": choices, "usage": usage})
    return events if version < 3 else [*events, {"id": "", "choices": [], "usage": counts}]


def own_events(texts: list[str], reason: str) -> list[dict[str, Any]]:
    events = []
    for index, text in enumerate(texts):
        last = index == len(texts) - 1
        details = {"finish_reason": reason, "generated_tokens": len(texts), "seed": None, "input_length": 7}
        token = {"id": index, "text": text, "logprob": -0.1, "special": False}
        whole = "".join(texts) if last else None
        details_of = details if last else None
        events.append({"index": index, "token": token, "generated_text": whole, "details": details_of})
    return events


def wire(events: list[dict[str, Any]], *, chat: bool) -> bytes:
    data = b":\n\n" + b"".join(b"data:" + json.dumps(event).encode() + b"\n\n" for event in events)
    return data + (b"data: [DONE]\n\n" if chat else b"")


def translated(data: bytes, cuts: list[int], path: str, **values: Any) -> tuple[list[Any], EventStream]:
    asked = {"messages": MESSAGES} if path == CHAT else {"prompt": "hello"}
    call = parse(path, orjson.dumps({"model": "m", **asked, **values}))
    translator = TgiForm().translator(call, "r-1", "bot")
    stream = EventStream(Usage(), UsageView.FINAL)
    out, start = b"", 0
    for cut in sorted({*cuts, len(data)}):
        out += stream.feed(translator.feed(data[start:cut]))
        start = cut
    out += stream.feed(translator.end())
    return [orjson.loads(item) for item in event_data(out) if item != b"[DONE]"], stream


@given(
    st.lists(st.text(max_size=6), min_size=1, max_size=6),
    st.sampled_from(["chat2", "chat3", "own"]),
    st.lists(st.integers(0, 2000), max_size=5),
)
def test_every_form_at_every_split_is_the_same_answer(texts: list[str], form: str, cuts: list[int]) -> None:
    chat = form != "own"
    events = chat_events(texts, "length", version=int(form[-1])) if chat else own_events(texts, "length")
    data = wire(events, chat=chat)
    items, stream = translated(data, [cut % len(data) for cut in cuts], CHAT if chat else COMPLETIONS)
    choices = [item["choices"][0] for item in items if item["choices"]]
    shown = [choice["delta"]["content"] if chat else choice["text"] for choice in choices]
    assert "".join(shown) == "".join(texts)
    assert choices[-1]["finish_reason"] == "length"
    assert {item["id"] for item in items} == {"chatcmpl-r-1" if chat else "cmpl-r-1"}
    assert (stream.usage.prompt_tokens, stream.usage.completion_tokens) == (7, len(texts))
    assert stream.done


@pytest.mark.parametrize(("path", "reason"), [(CHAT, "stop_sequence"), (COMPLETIONS, "stop_sequence")])
def test_the_stop_sequence_is_cut_although_it_came_in_pieces(path: str, reason: str) -> None:
    texts = ["a #", "## b", " ##", "#"]
    events = chat_events(texts, reason, version=3) if path == CHAT else own_events(texts, reason)
    items, _ = translated(wire(events, chat=path == CHAT), [], path, stop=["####", " ###"])
    choices = [item["choices"][0] for item in items if item["choices"]]
    text = "".join(choice["delta"]["content"] if path == CHAT else choice["text"] for choice in choices)
    assert text == "a ### b"
    assert choices[-1]["finish_reason"] == "stop"


@given(st.text("ab", max_size=8), st.lists(st.text("ab", min_size=1, max_size=3), max_size=3), st.booleans())
def test_held_back_text_is_never_lost(text: str, stops: list[str], stopped: bool) -> None:
    held = StopText(stops)
    shown = "".join(held.push(letter) for letter in text) + held.end(stopped=stopped)
    ends = [stop for stop in stops if text.endswith(stop)]
    assert shown == (text[: len(text) - max(map(len, ends))] if stopped and ends else text)


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (
            {"error": "Input validation error: `inputs` cannot be empty", "error_type": "validation"},
            "refused",
        ),
        ({"error": {"message": "Template error: no template", "http_status_code": 422}}, "refused"),
        ({"error": {"message": "Model is overloaded", "http_status_code": 422}}, UpstreamBusy),
        ({"error": "Request failed during generation: x", "error_type": "generation"}, UpstreamFailed),
        ({"what": 1}, UpstreamFailed),
    ],
)
def test_an_error_event_is_the_clients_error(event: dict[str, Any], kind: Any) -> None:
    """TGI answers 200 before it checks a request."""
    with pytest.raises(GatewayError) as caught:
        translated(wire([event], chat=False), [], COMPLETIONS)
    assert isinstance(caught.value, UpstreamRefused if kind == "refused" else kind)


def test_an_answer_that_breaks_off_is_an_error_after_what_came() -> None:
    events = chat_events(["a", "b"], "length", version=2)[:1]
    translator = TgiForm().translator(
        parse(CHAT, orjson.dumps({"model": "m", "messages": MESSAGES})), "r", "b"
    )
    assert b'"content":"a"' in translator.feed(wire(events, chat=True))
    with pytest.raises(UpstreamFailed, match="before it was complete"):
        translator.end()
    error = {"error": {"message": "Request failed during generation: x", "http_status_code": 422}}
    translator = TgiForm().translator(
        parse(CHAT, orjson.dumps({"model": "m", "messages": MESSAGES})), "r", "b"
    )
    assert b'"content":"a"' in translator.feed(wire([*events, error], chat=True))
    with pytest.raises(UpstreamFailed):
        translator.end()


def test_a_request_beyond_the_context_is_told_in_openais_words() -> None:
    text = "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 64. Given: 60 and 9"
    with pytest.raises(UpstreamRefused) as caught:
        translated(wire([{"error": {"message": text, "http_status_code": 422}}], chat=True), [], CHAT)
    assert caught.value.upstream_code == "context_length_exceeded"
    assert caught.value.upstream_status == 400
