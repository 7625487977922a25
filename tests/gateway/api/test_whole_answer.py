"""Whole answers assembled from streams: equal to the worker's own, and tolerant of other servers' forms."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import orjson
import pytest

from gateway.api import whole_answer
from gateway.api.sse import EventStream, UsageView
from gateway.api.usage import Usage
from gateway.api.whole_answer import WholeAnswer
from tests.worker_engine.test_generation_api import CHAT, worker
from tests.worker_process import Worker

__all__ = ["worker"]
PLACES = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"]}
CITY = {"type": "function", "function": {"name": "get_weather", "parameters": PLACES}}
COMPLETION = {"model": "tiny", "prompt": ["ab", "cd"], "max_tokens": 5, "seed": 3}


def made_whole(events: bytes) -> Any:
    usage = Usage()
    stream, whole = EventStream(usage, UsageView.HIDDEN), WholeAnswer()
    for start in range(0, len(events), 97):
        whole.take(stream.feed(events[start : start + 97]))
    assert stream.done
    return json.loads(whole.body(stream.last_usage))


def equal_but_for_rounding(found: Any, expected: Any) -> bool:
    """Compare two answers. The last digits of log probabilities depend on the other rows of the batch."""
    if isinstance(expected, float):
        return isinstance(found, float) and math.isclose(found, expected, abs_tol=1e-4)
    if isinstance(expected, dict):
        same = isinstance(found, dict) and found.keys() == expected.keys()
        return same and all(equal_but_for_rounding(found[name], value) for name, value in expected.items())
    if isinstance(expected, list):
        same = isinstance(found, list) and len(found) == len(expected)
        return same and all(map(equal_but_for_rounding, found, expected))
    return bool(found == expected)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chat", {}),
        ("chat", {"n": 3, "seed": 5, "temperature": 1.5}),
        ("chat", {"logprobs": True, "top_logprobs": 3}),
        ("chat", {"tools": [CITY], "tool_choice": "required", "max_tokens": 80}),
        ("chat", {"tools": [CITY], "tool_choice": {"type": "function", "function": {"name": "get_weather"}}}),
        ("chat", {"tools": [CITY], "parallel_tool_calls": True, "tool_choice": "required", "logprobs": True}),
        ("", {}),
        ("", {"n": 2, "logprobs": 2, "echo": True}),
        ("", {"stop": ["e"], "logprobs": 0}),
    ],
)
def test_it_is_what_the_worker_answers_whole(worker: Worker, path: str, body: dict[str, Any]) -> None:
    url = "/v1/chat/completions" if path else "/v1/completions"
    asked = (CHAT | {"max_tokens": 40} if path else COMPLETION) | {"temperature": 0} | body
    status, expected = worker.call(url, asked)
    assert status == 200, expected
    options = {"include_usage": True, "continuous_usage_stats": True}
    status, events = worker.call(url, asked | {"stream": True, "stream_options": options})
    found = made_whole(events.encode())
    for answer in (expected, found):
        del answer["id"], answer["created"]
        # A prompt is cached the second time, and calls have ids of their own.
        del answer["usage"]["prompt_tokens_details"]
        for choice in answer["choices"]:
            for call in choice.get("message", {}).get("tool_calls", []):
                assert call.pop("id")
    assert equal_but_for_rounding(found, expected), (found, expected)


def encode(*chunks: dict[str, Any]) -> bytes:
    return b"".join(b"data: %s\n\n" % orjson.dumps(item) for item in chunks) + b"data: [DONE]\n\n"


def chunk(index: int = 0, finish: str | None = None, **delta: Any) -> dict[str, Any]:
    choice = {"index": index, "delta": delta, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion.chunk", "model": "m", "choices": [choice]}


def test_reasoning_and_calls_of_other_servers() -> None:
    """vLLM's reasoning, repeated names, calls without an index, a server's own fields."""
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": ""}}
    found = made_whole(
        encode(
            chunk(role="assistant", content="", reasoning_content="Let "),
            chunk(reasoning_content="me see."),
            chunk(tool_calls=[{"index": 0, **call}]),
            chunk(tool_calls=[{"index": 0, "id": "", "function": {"name": "", "arguments": '{"a":'}}]),
            chunk(tool_calls=[{"index": 0, "function": {"arguments": "1}"}}]),
            chunk(tool_calls=[{**call, "id": "2"}]),
            chunk(finish="tool_calls") | {"system_fingerprint": "f1", "citations": ["a"]},
        )
    )
    [choice] = found["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"] == {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "reasoning_content": "Let me see.",
        "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}},
            {"id": "2", "type": "function", "function": {"name": "f", "arguments": ""}},
        ],
    }
    assert (found["system_fingerprint"], found["citations"], found["object"]) == (
        "f1",
        ["a"],
        "chat.completion",
    )


@pytest.mark.parametrize("index", [{}, {"index": None}, {"index": 0}])
def test_calls_of_one_index_or_none_stay_apart(index: dict[str, Any]) -> None:
    """A call begins with an id or a name of its own; other pieces continue the last one."""
    first = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{"}}
    second = {"id": "2", "type": "function", "function": {"name": "f", "arguments": "[]"}}
    rest = {"id": None, "function": {"name": None, "arguments": "}"}}
    pieces = [{**index, **piece} for piece in (first, rest, second)]
    found = made_whole(encode(*(chunk(tool_calls=[piece]) for piece in pieces), chunk(finish="stop")))
    calls = found["choices"][0]["message"]["tool_calls"]
    assert [(call["id"], call["function"]["arguments"]) for call in calls] == [("1", "{}"), ("2", "[]")]


@pytest.mark.parametrize("names", [("reasoning",), ("reasoning", "reasoning_content")])
def test_thoughts_of_several_choices_stay_apart(names: tuple[str, ...]) -> None:
    """vLLM 0.12 tells a thought under two names; some servers begin with an empty one."""

    def thought_chunk(index: int, text: str) -> dict[str, Any]:
        return chunk(index, content=None, **dict.fromkeys(names, text))

    thoughts = [
        thought_chunk(0, ""),
        thought_chunk(1, ""),
        thought_chunk(0, "a"),
        thought_chunk(1, "b"),
        thought_chunk(0, "c"),
    ]
    answers = [chunk(1, content="B"), chunk(0, content="A"), chunk(0, "stop"), chunk(1, "stop")]
    messages = [choice["message"] for choice in made_whole(encode(*thoughts, *answers))["choices"]]
    told = {"role": "assistant", "refusal": None}
    assert messages == [
        told | {"content": "A"} | dict.fromkeys(names, "ac"),
        told | {"content": "B"} | dict.fromkeys(names, "b"),
    ]
    [silent] = made_whole(encode(thought_chunk(0, ""), chunk(0, "stop", content="A")))["choices"]
    assert silent["message"] == told | {"content": "A"}


def test_a_whole_message_in_an_event_is_taken_as_it_is() -> None:
    message = {"role": "assistant", "content": "hé", "refusal": None}
    value = {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
    }
    assert made_whole(encode(value))["choices"][0]["message"] == message


@pytest.mark.parametrize("bad", [[1], {"choices": [5]}, {"choices": [{"delta": {}}]}, {"choices": 7}])
def test_what_no_chat_says_is_refused(bad: Any) -> None:
    with pytest.raises(ValueError, match="not one of OpenAI's"):
        WholeAnswer().take(b"data: %s\n\n" % orjson.dumps(bad))


@pytest.mark.parametrize(
    "bad",
    [
        [chunk(content=[5])],
        [chunk(), chunk() | {"choices": [{"index": "one", "delta": {"content": "a"}}]}],
        [chunk() | {"choices": [{"index": 0, "delta": {"content": None}, "message": 5}]}],
        [chunk(content="a") | {"citations": "DEEP"}],
    ],
    ids=["content that is a list", "indices of two types", "a message that is no object", "deep"],
)
def test_events_that_make_no_answer_are_refused(bad: list[Any]) -> None:
    """A ValueError becomes the backend's failure, any other error the gateway's own."""
    whole = WholeAnswer()
    # Deeper than orjson writes, not deeper than it reads.
    whole.take(encode(*bad).replace(b'"DEEP"', b"[" * 300 + b"]" * 300))
    with pytest.raises(ValueError, match="not OpenAI's"):
        whole.body(None)


def test_an_endless_answer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_answer, "MAX_BYTES", 200)
    whole, event = WholeAnswer(), b"data: %s\n\n" % orjson.dumps(chunk(content="a"))
    whole.take(event)
    with pytest.raises(ValueError, match="exceeds 200 bytes"):
        whole.take(event)


TEXTS = ["a", "", 'say "hi"', "\\", "é\n", '"', "\\\\", "}", '"},"finish_reason":null}]}\n\ndata: {', "👍"]
LOOKALIKES: list[dict[str, Any]] = [
    *({"content": text} for text in TEXTS),
    *({"reasoning_content": text} for text in TEXTS[:3]),
    {"content": "a", "refusal": "b"},
    {"content": "a", "role": "assistant"},
    {"role": "assistant", "content": ""},
    {"content": "a", "annotations": [1]},
    {"content": None},
]


def test_texts_read_together_are_the_texts_read_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the texts hold, whichever events stand between, and however the stream is cut."""
    choose = random.Random(1)
    streams = []
    for _ in range(200):
        deltas = choose.choices(LOOKALIKES, k=choose.randint(1, 30))
        index = choose.choice((0, 0, 1))
        deltas = [delta for delta in deltas for _ in range(choose.choice((1, 3)))]
        events = [chunk(choose.randint(0, index), **delta) for delta in deltas]
        streams.append(encode(*events, chunk(finish="stop")))
    together = [(made_whole(events), taken_at_once(events)) for events in streams]
    monkeypatch.setattr(whole_answer._EventTemplate, "take", lambda template, events, at: 0)
    one_by_one = [(made_whole(events), taken_at_once(events)) for events in streams]
    assert together == one_by_one


def taken_at_once(events: bytes) -> Any:
    whole = WholeAnswer()
    whole.take(events)
    return json.loads(whole.body(None))


def test_of_a_long_stream_few_events_are_read_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[bytes] = []
    take = WholeAnswer._take_event

    def counted(whole: WholeAnswer, event: dict[str, Any], data: bytes) -> Any:
        read.append(data)
        return take(whole, event, data)

    monkeypatch.setattr(WholeAnswer, "_take_event", counted)
    texts = [f'"{number}"\n' for number in range(2000)]
    events = [chunk(role="assistant", content=""), *(chunk(content=text) for text in texts)]
    made = taken_at_once(encode(*events))
    assert made["choices"][0]["message"]["content"] == "".join(texts)
    assert len(read) < 5


@pytest.mark.parametrize("text", [b"a\\", b'a"', b'","', rb"\x", b"\xff", b'a","role":"tool'])
def test_a_text_that_is_no_json_string_is_refused_among_others(text: bytes) -> None:
    """Or read as what it is, if it makes its event another one."""
    event = b"data: %s\n\n" % orjson.dumps(chunk(content="TEXT"))
    events = event * 3 + event.replace(b"TEXT", text) + event * 3
    if text.endswith(b"tool"):
        assert taken_at_once(events)["choices"][0]["message"]["content"] == "TEXT" * 3 + "a" + "TEXT" * 3
        return
    with pytest.raises(orjson.JSONDecodeError):
        WholeAnswer().take(events)
