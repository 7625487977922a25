"""A response's events: their order, their numbers, and the response that they build."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from gateway.api.responses import ResponsesDialect
from gateway.errors import UpstreamBroken, UpstreamFailed

USAGE = {
    "prompt_tokens": 11,
    "completion_tokens": 3,
    "total_tokens": 14,
    "prompt_tokens_details": {"cached_tokens": 5},
}
COUNTED = {
    "input_tokens": 11,
    "input_tokens_details": {"cached_tokens": 5, "cache_write_tokens": 0},
    "output_tokens": 3,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 14,
}
TEXT = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
]


def form() -> ResponsesDialect:
    return ResponsesDialect.read(orjson.dumps({"model": "bot", "input": "hi", "stream": True}), "0199-aa")


def chunk(finish: str | None = None, logprobs: Any = None, **delta: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": logprobs}
    return b"data: " + orjson.dumps({"choices": [choice], "usage": None}) + b"\n\n"


END = b"data: " + orjson.dumps({"choices": [], "usage": USAGE}) + b"\n\ndata: [DONE]\n\n"


def read(events: bytes, first: int = 0) -> list[dict[str, Any]]:
    found = []
    for number, event in enumerate(events.removesuffix(b"\n\n").split(b"\n\n"), first):
        name, data = event.split(b"\n")
        value = orjson.loads(data.removeprefix(b"data: "))
        assert name == b"event: " + value["type"].encode()
        assert value["sequence_number"] == number
        found.append(value)
    return found


def test_a_text() -> None:
    stream = form()
    blocks = [chunk(role="assistant", content=""), chunk(content="Hel"), chunk("stop", content="lo"), END]
    events = read(b"".join(stream.events(block) for block in blocks))
    assert [event["type"] for event in events] == [*TEXT, "response.completed"]
    created, progress = events[0]["response"], events[1]["response"]
    assert created == progress
    assert (created["status"], created["output"], created["usage"]) == ("in_progress", [], None)
    item, part = events[2]["item"], events[3]["part"]
    assert (item["status"], item["content"], item["role"]) == ("in_progress", [], "assistant")
    assert part == {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    assert {event["item_id"] for event in events[3:8]} == {item["id"]}
    assert [event["delta"] for event in events[4:6]] == ["Hel", "lo"]
    assert events[6]["text"] == events[7]["part"]["text"] == "Hello"
    last = events[-1]["response"]
    assert last["output"] == [events[8]["item"]]
    assert last["output"][0]["status"] == last["status"] == "completed"
    assert (last["id"], last["model"], last["usage"], last["store"]) == ("resp_0199aa", "bot", COUNTED, False)


def test_an_answer_that_is_cut_by_its_length() -> None:
    events = read(form().events(chunk(content="a") + chunk("length", content="b") + END))
    assert [event["type"] for event in events] == [*TEXT, "response.incomplete"]
    last = events[-1]["response"]
    assert last["incomplete_details"] == {"reason": "max_output_tokens"}
    assert last["output"][0]["status"] == "incomplete"


def call(index: int, arguments: str, **first: str) -> dict[str, Any]:
    name = {"name": first.pop("name")} if first else {}
    return {"index": index, **first, "function": {**name, "arguments": arguments}}


def test_a_text_and_parallel_calls() -> None:
    blocks = [
        chunk(content="Let me see."),
        chunk(tool_calls=[call(0, "", id="c0", name="now")]),
        chunk(tool_calls=[call(0, '{"utc":'), call(0, "true}"), call(1, "{", id="c1", name="zone")]),
        chunk("tool_calls", tool_calls=[call(1, "}")]),
        END,
    ]
    stream = form()
    events = read(b"".join(stream.events(block) for block in blocks))
    delta, done = "response.function_call_arguments.delta", "response.function_call_arguments.done"
    added, ended = "response.output_item.added", "response.output_item.done"
    assert [event["type"] for event in events[5:]] == [
        "response.output_text.done",
        "response.content_part.done",
        ended,
        added,
        delta,
        delta,
        done,
        ended,
        added,
        delta,
        delta,
        done,
        ended,
        "response.completed",
    ]
    assert [event["output_index"] for event in events[2:-1]] == [0] * 6 + [1] * 5 + [2] * 5
    text, now, zone = events[-1]["response"]["output"]
    assert text["content"][0]["text"] == "Let me see."
    assert (now["type"], now["call_id"], now["name"], now["arguments"]) == (
        "function_call",
        "c0",
        "now",
        '{"utc":true}',
    )
    assert (zone["call_id"], zone["arguments"], zone["status"]) == ("c1", "{}", "completed")
    assert now["id"] != zone["id"]


def test_logprobs_go_with_the_text() -> None:
    told = [{"token": "a", "logprob": -1.0, "bytes": [97], "top_logprobs": []}]
    events = read(form().events(chunk(content="a", logprobs={"content": told}) + END))
    assert events[4]["logprobs"] == told
    assert events[-1]["response"]["output"][0]["content"][0]["logprobs"] == told


def test_a_calls_logprobs_open_no_text() -> None:
    """Their tokens are markup, which no item of a response shows."""
    told = [{"token": "<tool_call>", "logprob": -1.0, "bytes": [60], "top_logprobs": []}]
    first = chunk(logprobs={"content": told})
    named = chunk("tool_calls", tool_calls=[call(0, "{}", id="c0", name="now")], logprobs={"content": told})
    [item] = read(form().events(first + named + END))[-1]["response"]["output"]
    assert item["type"] == "function_call"
    late = read(form().events(first + chunk(content="é", logprobs={"content": told}) + first + END))
    assert late[-1]["response"]["output"][0]["content"][0]["logprobs"] == told * 3


def test_calls_without_an_index_are_items_of_their_own() -> None:
    whole = [
        {"id": f"c{number}", "function": {"name": "now", "arguments": "{}"}, **index}
        for index in ({}, {"index": 0})
        for number in range(2)
    ]
    for calls in (whole[:2], whole[2:]):
        output = read(form().events(chunk("tool_calls", tool_calls=calls) + END))[-1]["response"]["output"]
        assert [(item["call_id"], item["arguments"]) for item in output] == [("c0", "{}"), ("c1", "{}")]


def test_a_thought_a_text_and_a_call_are_items_in_this_order() -> None:
    """Neither a thought's log probabilities nor those of its marks are the text's."""

    def logprobs_of(*tokens: str) -> dict[str, Any]:
        return {"content": [{"token": token, "logprob": -1.0, "bytes": None} for token in tokens]}

    blocks = [
        chunk(role="assistant", content="", logprobs=logprobs_of("<think>")),
        chunk(reasoning="H", logprobs=logprobs_of("H")),
        chunk(reasoning="m", logprobs=logprobs_of("m")),
        chunk(logprobs=logprobs_of("</think>")),
        chunk(content="Now", logprobs=logprobs_of("\n\n", "Now")),
        chunk(tool_calls=[call(0, "{}", id="c0", name="now")], logprobs=logprobs_of("<tool_call>")),
        chunk("tool_calls"),
        END,
    ]
    stream = form()
    events = read(b"".join(stream.events(block) for block in blocks))
    added = [event for event in events if event["type"] == "response.output_item.added"]
    items = [(event["output_index"], event["item"]["type"]) for event in added]
    assert items == [(0, "reasoning"), (1, "message"), (2, "function_call")]
    ids = {event["item"]["id"]: event["output_index"] for event in added}
    assert all(ids[event["item_id"]] == event["output_index"] for event in events if "item_id" in event)
    streamed = events[-1]["response"]["output"]
    message = {
        "role": "assistant",
        "reasoning": "Hm",
        "content": "Now",
        "tool_calls": [{"id": "c0", "type": "function", "function": {"name": "now", "arguments": "{}"}}],
    }
    tokens = ("<think>", "H", "m", "</think>", "\n\n", "Now", "<tool_call>")
    choice = {"index": 0, "message": message, "logprobs": logprobs_of(*tokens), "finish_reason": "tool_calls"}
    whole = orjson.loads(form().whole(orjson.dumps({"choices": [choice], "usage": USAGE})))["output"]
    for output in (streamed, whole):
        thought, text, called = output
        assert thought["content"] == [{"type": "reasoning_text", "text": "Hm"}]
        assert [item["token"] for item in text["content"][0]["logprobs"]] == ["Now"]
        assert called["call_id"] == "c0"


def test_an_empty_answer_is_an_empty_text() -> None:
    events = read(form().events(chunk("stop") + END))
    assert [event["type"] for event in events] == [*TEXT[:4], *TEXT[6:], "response.completed"]
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == ""


def test_a_stream_that_breaks_ends_with_a_failed_response() -> None:
    stream = form()
    begun = stream.events(chunk(content="a"))
    count = len(read(begun))
    [failed] = read(stream.failure(UpstreamBroken("it broke")), count)
    assert failed["type"] == "response.failed"
    assert failed["response"]["status"] == "failed"
    assert failed["response"]["error"] == {"code": "server_error", "message": "it broke"}
    assert failed["response"]["output"][0]["content"][0]["text"] == "a"
    events = read(form().failure(UpstreamBroken("it broke")))
    assert [event["type"] for event in events] == [
        "response.created",
        "response.in_progress",
        "response.failed",
    ]
    with pytest.raises(ValueError, match="no JSON object"):
        form().events(b"data: [1]\n\n")


@pytest.mark.parametrize(
    "spoilt",
    [
        {"choices": 5},
        {"choices": [5]},
        {"choices": [{"delta": 5}]},
        {"choices": [{"delta": {"content": 5}}]},
        {"choices": [{"delta": {"content": "b"}, "logprobs": {"content": 5}}]},
        # Back to a call that has ended: its first piece alone had a name.
        {"choices": [{"delta": {"tool_calls": [call(0, "{}")]}}]},
    ],
    ids=lambda spoilt: orjson.dumps(spoilt).decode()[-40:],
)
def test_what_no_chat_says_ends_the_stream_and_loses_no_event(spoilt: dict[str, Any]) -> None:
    stream = form()
    with pytest.raises(ValueError, match="no chunk of a chat"):
        stream.events(chunk(content="a") + b"data: " + orjson.dumps(spoilt) + b"\n\n")
    events = read(stream.failure(UpstreamFailed("it made no sense")))
    assert [event["type"] for event in events[:5]] == TEXT[:5]
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["output"][0]["content"][0]["text"].startswith("a")


@pytest.mark.parametrize(
    "choices",
    [
        5,
        [],
        [5],
        [{}],
        [{"message": 5}],
        [{"message": {"tool_calls": [{"id": "c0"}]}}],
        [{"message": {"content": "x"}, "logprobs": 5}],
    ],
    ids=str,
)
def test_a_whole_answer_that_is_no_chats_is_the_backends_failure(choices: Any) -> None:
    with pytest.raises(UpstreamFailed, match="not a chat completion"):
        form().whole(orjson.dumps({"choices": choices}))


def test_a_finish_reason_that_is_no_text_says_nothing() -> None:
    choice = {"index": 0, "delta": {"content": "a"}, "finish_reason": ["length"]}
    event = b"data: " + orjson.dumps({"choices": [choice]}) + b"\n\n"
    [*_, last] = read(form().events(event + END))
    assert (last["type"], last["response"]["incomplete_details"]) == ("response.completed", None)


def test_a_value_too_deep_to_be_written_fails_the_response() -> None:
    """At 250 levels the event of the delta can be written, and that of the whole item cannot."""
    deep = orjson.loads(b"[" * 250 + b"]" * 250)
    stream = form()
    with pytest.raises(ValueError, match="nested too deeply"):
        stream.events(chunk(content="a", logprobs={"content": deep}) + END)
    [*_, failed] = stream.failure(UpstreamFailed("too deep")).split(b"data: ")
    assert orjson.loads(failed)["type"] == "response.failed"
    choice = {"index": 0, "message": {"content": "a"}, "logprobs": {"content": deep}}
    with pytest.raises(UpstreamFailed, match="not a chat completion"):
        form().whole(orjson.dumps({"choices": [choice]}))


@pytest.mark.parametrize(("told", "reasoning"), [("2", 2), (2.0, 2), (-1, 0), ("many", 0), ([2], 0), (9, 0)])
def test_reasoning_tokens_are_a_count_within_the_completion(told: Any, reasoning: int) -> None:
    usage = USAGE | {"completion_tokens_details": {"reasoning_tokens": told}}
    body = {"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}], "usage": usage}
    response = orjson.loads(form().whole(orjson.dumps(body)))
    assert response["usage"]["output_tokens_details"] == {"reasoning_tokens": reasoning}


def test_a_whole_answers_logprobs_are_those_of_its_text() -> None:
    told = [{"token": token, "logprob": -1.0, "bytes": None} for token in ("Hel", "lo", "<tool_call>", "{}")]
    call = {"id": "c0", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    message = {"role": "assistant", "content": "Hello", "tool_calls": [call]}
    choice = {"index": 0, "message": message, "logprobs": {"content": told}, "finish_reason": "tool_calls"}
    output = orjson.loads(form().whole(orjson.dumps({"choices": [choice]})))["output"]
    assert output[0]["content"][0]["logprobs"] == told[:2]


def test_a_whole_answer() -> None:
    message = {
        "role": "assistant",
        "content": "Hello",
        "tool_calls": [{"id": "c0", "type": "function", "function": {"name": "now", "arguments": "{}"}}],
    }
    body = {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}], "usage": USAGE}
    response = orjson.loads(form().whole(orjson.dumps(body)))
    assert (response["object"], response["status"], response["usage"]) == ("response", "completed", COUNTED)
    assert [item["type"] for item in response["output"]] == ["message", "function_call"]
    assert {item["status"] for item in response["output"]} == {"completed"}
    assert response["completed_at"] >= response["created_at"]
