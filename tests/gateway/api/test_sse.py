"""Event streams as bytes: any split of the input gives the same output, and only what was asked for."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.prompt_progress import PROMPT_PROGRESS
from gateway.api.sse import MAX_EVENT_BYTES, EventStream, UsageView, rename_model
from gateway.api.usage import Usage


def usage(completion: int) -> dict[str, Any]:
    details = {"cached_tokens": 4}
    return {"prompt_tokens": 9, "completion_tokens": completion, "prompt_tokens_details": details}


def event(content: str, tokens: int, **extra: Any) -> dict[str, Any]:
    choices = [{"index": 0, "delta": {"content": content}, "finish_reason": None}]
    return {"model": "engine", "choices": choices, **extra, "usage": usage(tokens)}


def encode(events: list[dict[str, Any]], *, newline: bytes = b"\n", spaces: bool = False) -> bytes:
    separators = (", ", ": ") if spaces else (",", ":")
    lines = [b"data: " + json.dumps(item, separators=separators).encode() for item in events]
    return (newline * 2).join([*lines, b"data: [DONE]", b""])


def decode(data: bytes) -> list[Any]:
    lines = [line[6:] for line in data.splitlines() if line.startswith(b"data: ")]
    return [line.decode() if line == b"[DONE]" else json.loads(line) for line in lines]


def feed(stream: EventStream, data: bytes, cuts: list[int]) -> bytes:
    edges = [0, *sorted(cuts), len(data)]
    return b"".join(stream.feed(data[start:end]) for start, end in itertools.pairwise(edges))


TEXTS = [
    "plain",
    '","usage":{"x":1}}',
    "data: [DONE]",
    "\n\n",
    '"error"',
    "usage",
    "é🙂",
    '"choices":[]',
    "model",
]
EVENTS = [event(text, number) for number, text in enumerate(TEXTS, 1)]
FINAL = {"model": "engine", "choices": [], "usage": usage(len(TEXTS))}


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
@pytest.mark.parametrize("spaces", [False, True])
@pytest.mark.parametrize("view", list(UsageView))
def test_every_split_gives_the_same(newline: bytes, spaces: bool, view: UsageView) -> None:
    data = encode([*EVENTS, FINAL], newline=newline, spaces=spaces)
    whole = EventStream(Usage(), view).feed(data)
    for cut in range(len(data) + 1):
        stream = EventStream(Usage(), view)
        assert feed(stream, data, [cut]) == whole
        assert stream.done
        assert stream.usage.completion_tokens == len(TEXTS)
        assert stream.usage.cached_tokens == 4


@given(st.lists(st.integers(0, 2000), max_size=30), st.sampled_from(list(UsageView)))
def test_many_splits_give_the_same(cuts: list[int], view: UsageView) -> None:
    data = encode([*EVENTS, FINAL])
    assert feed(EventStream(Usage(), view), data, cuts) == EventStream(Usage(), view).feed(data)


@given(st.lists(st.text(), max_size=8), st.booleans(), st.sampled_from(list(UsageView)), st.booleans())
def test_what_the_client_sees(texts: list[str], ascii_only: bool, view: UsageView, last: bool) -> None:
    events = [event(text, number) for number, text in enumerate(texts, 1)]
    if not last:
        events = [{"usage": item["usage"], **item, "object": "chunk"} for item in events]
    lines = [json.dumps(item, ensure_ascii=ascii_only).encode() for item in [*events, FINAL]]
    data = b"".join(b"data: " + line + b"\n\n" for line in lines) + b"data: [DONE]\n\n"
    seen = decode(EventStream(Usage(), view, ("engine", "bot@prod")).feed(data))
    assert seen[-1] == "[DONE]"
    chunks = seen[:-1]
    assert [item["choices"][0]["delta"]["content"] for item in chunks if item["choices"]] == texts
    assert all(item["model"] == "bot@prod" for item in chunks)
    if view is UsageView.HIDDEN:
        assert not any("usage" in item for item in chunks)
        assert len(chunks) == len(texts)
    elif view is UsageView.CONTINUOUS:
        assert all(item["usage"] for item in chunks)
    else:
        assert chunks[-1]["usage"] == FINAL["usage"]
        if last:
            assert all(item["usage"] is None for item in chunks[:-1])


@pytest.mark.parametrize("together", [False, True])
def test_no_spelling_shows_the_backends_name(together: bool) -> None:
    """A stream whose events are not all spelled in one way, as when something between adds one."""
    blocks = [encode([event("a", number)], spaces=number % 2 == 0)[:-14] for number in range(4)]
    stream = EventStream(Usage(), UsageView.HIDDEN, ("engine", "bot@prod"))
    given = [b"".join(blocks)] if together else blocks
    seen = decode(b"".join(map(stream.feed, given)))
    assert [item["model"] for item in seen] == ["bot@prod"] * 4


@pytest.mark.parametrize("gap", [(b" ", b" "), (b"", b"  "), (b"\t", b""), (b" ", b"")])
def test_a_rare_spelling_shows_no_name_either(gap: tuple[bytes, bytes]) -> None:
    spelled = b'"model"' + gap[0] + b":" + gap[1] + b'"engine"'
    data = encode([event('"model" : "engine"', 1), event("engine", 2)]).replace(b'"model":"engine"', spelled)
    seen = decode(EventStream(Usage(), UsageView.HIDDEN, ("engine", 'a\\1"b')).feed(data))
    assert [item["model"] for item in seen[:-1]] == ['a\\1"b'] * 2
    contents = [item["choices"][0]["delta"]["content"] for item in seen[:-1]]
    assert contents == ['"model" : "engine"', "engine"]
    body = b'{"a": "engine", ' + spelled + b"}"
    assert json.loads(rename_model(body, ("engine", "bot"))) == {"a": "engine", "model": "bot"}


def test_a_text_that_looks_like_usage_is_left_alone() -> None:
    data = encode([event('{"a":1,"usage":{"prompt_tokens":999}}', 1), FINAL])
    stream = EventStream(Usage(), UsageView.HIDDEN)
    assert decode(stream.feed(data))[0]["choices"][0]["delta"]["content"].endswith("999}}")
    assert stream.usage.prompt_tokens == 9


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
@pytest.mark.parametrize("name", [b"", b"event: error\n"])
def test_an_error_event_ends_the_stream_and_is_not_passed_on(newline: bytes, name: bytes) -> None:
    broken = {"error": {"message": "fell over", "type": "server_error", "code": "engine_dead"}}
    stream = EventStream(Usage(), UsageView.HIDDEN)
    data = encode([event("a", 1), broken, event("after", 2)], newline=newline)
    data = data.replace(b'data: {"error"', name.replace(b"\n", newline) + b'data: {"error"')
    [seen] = decode(stream.feed(data))
    assert seen["choices"][0]["delta"]["content"] == "a"
    assert stream.failed
    assert stream.error == broken["error"]


def test_what_follows_done_is_dropped() -> None:
    stream = EventStream(Usage(), UsageView.HIDDEN)
    assert stream.feed(encode([event("a", 1)]) + b"data: more\n\n").endswith(b"data: [DONE]\n\n")


def test_comments_pass() -> None:
    assert EventStream(Usage(), UsageView.HIDDEN).feed(b": ping\n\n") == b": ping\n\n"


def test_an_endless_event_is_refused() -> None:
    stream = EventStream(Usage(), UsageView.HIDDEN)
    with pytest.raises(ValueError, match="exceeds"):
        stream.feed(b"data: " + b"x" * (MAX_EVENT_BYTES + 1))


@pytest.mark.parametrize("bad", [{"prompt_tokens": -1}, {"prompt_tokens": "7"}, {"prompt_tokens": True}, {}])
def test_malformed_usage_counts_nothing(bad: dict[str, Any]) -> None:
    counted = Usage()
    counted.take(bad)
    assert (counted.prompt_tokens, counted.completion_tokens) == (0, 0)


def test_progress_that_is_no_object_counts_nothing() -> None:
    stream = EventStream(Usage(), UsageView.HIDDEN)
    assert stream.feed(PROMPT_PROGRESS + b"[]\n\n") == b""
    assert not stream.usage.reported


def test_an_event_that_is_a_list_passes_with_what_looks_like_usage() -> None:
    event = b'data: [{"usage":{}}]\n\n'
    assert EventStream(Usage(), UsageView.HIDDEN).feed(event) == event


def test_an_event_that_cannot_be_written_anew_is_refused() -> None:
    deep = b'data: {"usage":{},"a":' + b"[" * 300 + b"]" * 300 + b"}\n\n"
    with pytest.raises(ValueError, match="nested too deeply"):
        EventStream(Usage(), UsageView.HIDDEN).feed(deep)


def test_usage_never_falls() -> None:
    counted = Usage()
    counted.take(usage(5))
    counted.take(usage(3))
    assert counted.completion_tokens == 5


def test_rename_model_touches_keys_only() -> None:
    body = json.dumps({"model": "engine", "text": '"model": "engine"'}).encode()
    assert json.loads(rename_model(body, ("engine", "bot"))) == {"model": "bot", "text": '"model": "engine"'}
