"""Containers' answers in every form that LMI has sent, at every split, as OpenAI's events."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.api.sse import EventStream, UsageView, event_data
from gateway.api.usage import Usage
from gateway.backends.lmi import MAX_LINE_BYTES, LineTranslator, whole_answer
from gateway.errors import UpstreamFailed
from tests.gateway.backends.conftest import sse

TEXTS = st.lists(st.text(max_size=12), min_size=1, max_size=8)


def chunk(text: str, finish: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion.chunk", "model": "lmi", "choices": [choice], **more}


def usage(count: int) -> dict[str, int]:
    return {"prompt_tokens": 7, "completion_tokens": count, "total_tokens": 7 + count}


def lines(texts: list[str], *, spaced: bool, end: bytes = b"\n") -> bytes:
    """JSON lines as async LMI writes them, an empty one at the end."""
    count = len(texts)
    chunks = [
        chunk(text, "length" if index == count - 1 else None, usage=usage(index + 1))
        for index, text in enumerate(texts)
    ]
    chunks.append({"id": "c", "model": "lmi", "choices": [], "usage": usage(count)})
    separators = (", ", ": ") if spaced else (",", ":")
    return b"".join(json.dumps(item, separators=separators).encode() + b"\n" for item in chunks) + end


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize(
    "details", [None, {"finish_reason": "length", "generated_tokens": 2, "input_length": 7}]
)
def test_a_container_that_does_not_stream(listed: bool, details: Any) -> None:
    """Its whole answer is the stream's only line."""
    value: Any = {"generated_text": "hé", "details": details}
    lines = LineTranslator("r-1", "bot", chat=True)
    out = lines.feed(orjson.dumps([value] if listed else value)) + lines.end()
    first, *rest = [orjson.loads(data) for data in event_data(out)[:-1]]
    [choice] = first["choices"]
    assert choice["delta"] == {"role": "assistant", "content": "hé"}
    assert choice["finish_reason"] == ("length" if details else "stop")
    assert [item["usage"]["completion_tokens"] for item in rest] == ([2] if details else [])
    assert out.endswith(b"data: [DONE]\n\n")


def server_sent(texts: list[str]) -> bytes:
    data = lines(texts, spaced=False, end=b"").splitlines()
    return b"".join(b"data: " + line + b"\n\n" for line in [*data, b"[DONE]"])


def tokens(texts: list[str], *, details: bool = True) -> bytes:
    """LMI's own form, a token a line."""
    count, out = len(texts), b""
    for index, text in enumerate(texts):
        ended = index == count - 1
        told = {"finish_reason": "length", "generated_tokens": count, "input_length": 7}
        line = {
            "index": 0,
            "token": {"id": index, "text": text, "logprob": -0.1},
            "generated_text": "".join(texts) if ended else None,
            "details": told if ended and details else None,
        }
        out += json.dumps(line).encode() + b"\n"
    return out


def translate(data: bytes, cuts: list[int]) -> str:
    translator = LineTranslator("r-1", "bot", chat=True)
    out = b""
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        out += translator.feed(data[start:end])
    return (out + translator.end()).decode()


@settings(max_examples=150, deadline=None)
@given(TEXTS, st.sampled_from(["lines", "spaced", "sse", "tokens"]), st.data())
def test_every_form_and_split_says_the_same(texts: list[str], form: str, draw: st.DataObject) -> None:
    data = {
        "lines": lines(texts, spaced=False),
        "spaced": lines(texts, spaced=True),
        "sse": server_sent(texts),
        "tokens": tokens(texts),
    }[form]
    cuts = sorted(draw.draw(st.lists(st.integers(0, len(data)), max_size=8)))
    text = translate(data, cuts)
    *events, done = sse(text)
    assert done == "[DONE]"
    said = [event["choices"][0]["delta"].get("content") for event in events if event["choices"]]
    assert said == texts
    assert [event["choices"][0]["finish_reason"] for event in events if event["choices"]][-1] == "length"
    assert {event["model"] for event in events} == {"bot"}
    counted = Usage()
    EventStream(counted, UsageView.HIDDEN).feed(text.encode())
    assert (counted.prompt_tokens, counted.completion_tokens) == (7, len(texts))


def test_tokens_without_details_leave_usage_to_an_estimate() -> None:
    counted = Usage()
    events = EventStream(counted, UsageView.HIDDEN)
    events.feed(translate(tokens(["a", "b", "c"], details=False), []).encode())
    assert (counted.reported, events.events - events.done) == (False, 3)


def test_text_that_looks_like_a_key_is_left_alone() -> None:
    tricky = 'x "model": "lmi" {"error": 1} "finish_reason":"stop" \n data: [DONE]'
    assert (
        sse(translate(lines([tricky, "b"], spaced=False), []))[0]["choices"][0]["delta"]["content"] == tricky
    )


@pytest.mark.parametrize("cut", [10, -2, -40])
def test_a_stream_that_ends_too_early_is_said_to(cut: int) -> None:
    data = lines(["a", "b"], spaced=False, end=b"").splitlines(keepends=True)[0]
    with pytest.raises(UpstreamFailed):
        translate(data[:cut] if cut > 0 else data, [])
    with pytest.raises(UpstreamFailed):
        translate(b"", [])


@pytest.mark.parametrize("last", ["finish", "usage", "blank"])
def test_each_of_finish_usage_and_empty_line_may_be_the_last(last: str) -> None:
    parts = lines(["a", "b"], spaced=False).splitlines(keepends=True)
    kept = {"finish": parts[:2], "usage": parts[:3], "blank": parts}[last]
    assert sse(translate(b"".join(kept), []))[-1] == "[DONE]"


@pytest.mark.parametrize("cuts", [[], [-1]])
def test_an_empty_line_alone_ends_an_answer(cuts: list[int]) -> None:
    """A handler may send no finish_reason."""
    data = orjson.dumps(chunk("a")) + b"\n"
    with pytest.raises(UpstreamFailed):
        translate(data, [])
    assert sse(translate(data + b"\n", [len(data) for _ in cuts]))[-1] == "[DONE]"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ({"error": "no", "code": 424}, "424"),
        ({"error": {"message": "no", "code": "engine_dead", "type": "server_error"}}, "engine_dead"),
    ],
)
def test_an_error_line_ends_the_stream_as_openais_error(error: dict[str, Any], code: str) -> None:
    data = orjson.dumps(chunk("a")) + b"\n" + orjson.dumps(error) + b"\n"
    text = translate(data, [])
    events = EventStream(Usage(), UsageView.HIDDEN)
    events.feed(text.encode())
    told = sse(text)[-1]["error"]
    assert events.error == told
    assert (told["code"], told["message"]) == (code, "no")


@pytest.mark.parametrize("line", [b"nonsense\n", b"[1]\n", b'{"other": 1}\n', b"x" * (MAX_LINE_BYTES + 1)])
def test_what_no_container_sends_is_refused(line: bytes) -> None:
    with pytest.raises(UpstreamFailed):
        LineTranslator("r-1", "bot", chat=True).feed(line)


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize("several", [True, False])
def test_whole_answers_in_lmis_form_become_openais(chat: bool, several: bool) -> None:
    details = {"finish_reason": "eos_token", "generated_tokens": 3, "input_length": 7}
    answer: Any = {"generated_text": "hé", "details": details}
    body = orjson.dumps([answer] if several else answer)
    value = orjson.loads(whole_answer(body, "r-1", "bot", chat=chat))
    choice = value["choices"][0]
    assert (choice["message"]["content"] if chat else choice["text"]) == "hé"
    assert (choice["finish_reason"], value["model"], value["usage"]) == ("stop", "bot", usage(3))
    assert "usage" not in orjson.loads(whole_answer(b'{"generated_text": "x"}', "r-1", "bot", chat=chat))


def test_whole_answers_in_openais_form_are_only_renamed() -> None:
    value = {"id": "c", "model": "lmi", "choices": [{"text": '"model":"lmi"'}], "usage": usage(1)}
    answer = orjson.loads(whole_answer(orjson.dumps(value), "r-1", "bot", chat=False))
    assert answer == {**value, "model": "bot"}


@pytest.mark.parametrize("body", [b"", b"[]", b'{"a": 1}', b'"x"', b"[1, 2]"])
def test_other_whole_answers_are_refused(body: bytes) -> None:
    with pytest.raises(UpstreamFailed):
        whole_answer(body, "r-1", "bot", chat=True)
