"""Parameters of thinking at the gateway, and thoughts in streams, whole answers and usage."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from contracts.limits import RateRoute
from gateway.admission.admit import reservation
from gateway.api.hidden_thought import body_without_thought, shown_parameters
from gateway.api.responses.dialect import ResponsesDialect
from gateway.api.responses.request import parse as parse_response
from gateway.api.schema import CHAT, COMPLETIONS, parse
from gateway.api.sse import EventStream, UsageView, event_data
from gateway.api.usage import Usage, read_usage
from gateway.api.whole_answer import WholeAnswer
from gateway.backends.containers.tgi import TgiForm
from gateway.backends.containers.triton import TritonForm
from gateway.errors import BadRequest, UnknownParameter
from tests.gateway.api.pictures import data_url, png
from tests.gateway.api.test_sse import encode

USER = {"role": "user", "content": "hi"}
ALL: dict[str, Any] = {
    "chat_template_kwargs": {"enable_thinking": True},
    "reasoning_effort": "low",
    "include_reasoning": False,
    "thinking_token_budget": 100,
}


def body(**fields: Any) -> bytes:
    return orjson.dumps({"model": "m", "messages": [USER]} | fields)


def test_a_chat_passes_the_parameters_on() -> None:
    assert ALL.items() <= parse(CHAT, body(**ALL)).parameters.items()


@pytest.mark.parametrize("name", ALL)
def test_completions_have_no_thoughts(name: str) -> None:
    with pytest.raises(UnknownParameter) as caught:
        parse(COMPLETIONS, orjson.dumps({"model": "m", "prompt": "x", name: ALL[name]}))
    assert caught.value.param == name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("chat_template_kwargs", {"chat_template": "{{ 1 }}"}),
        ("chat_template_kwargs", {f"x{number}": 1 for number in range(17)}),
        ("chat_template_kwargs", {"x": "y" * 4096}),
        ("chat_template_kwargs", {"x": {"x": {"x": {"x": {}}}}}),
        ("chat_template_kwargs", {"__class__": 1}),
        ("chat_template_kwargs", {"x": [{"y": 1 << 30}]}),
        ("chat_template_kwargs", {"x": -1e300}),
        ("reasoning_effort", "endless"),
        ("thinking_token_budget", -1),
        ("thinking_token_budget", True),
        ("include_reasoning", 1),
    ],
)
def test_values_are_bounded(name: str, value: Any) -> None:
    with pytest.raises(BadRequest) as caught:
        parse(CHAT, body(**{name: value}))
    assert caught.value.param == name


def test_a_response_is_a_chat_with_an_effort() -> None:
    given = {name: item for name, item in ALL.items() if name != "reasoning_effort"}
    request = parse_response(
        orjson.dumps({"model": "m", "input": "hi", "reasoning": {"effort": "low", "summary": "auto"}} | given)
    )
    assert ALL.items() <= request.call.parameters.items()
    assert request.echo["reasoning"] == {"effort": "low", "summary": None}


def test_an_error_names_the_parameter_that_the_client_sent() -> None:
    request = orjson.dumps({"model": "m", "input": "hi", "reasoning": {"effort": "low"}})
    dialect = ResponsesDialect.read(request, "r")
    with pytest.raises(BadRequest) as caught:
        TgiForm().body(dialect.call, "")
    dialect.translate(caught.value)
    assert caught.value.param == "reasoning.effort"
    assert caught.value.message.startswith("reasoning.effort is not served")


def test_a_reasoning_item_goes_with_the_message_after_it() -> None:
    items = [
        {"role": "user", "content": "hi"},
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "hm"}],
        },
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "1"},
        {"type": "reasoning", "id": "rs_2", "summary": []},
        {"role": "assistant", "content": "so"},
    ]
    messages = parse_response(orjson.dumps({"model": "m", "input": items})).call.parameters["messages"]
    for name in ("reasoning_content", "reasoning"):
        assert [message.get(name) for message in messages] == [None, "hm", None, None]


def test_a_thought_between_calls_begins_a_message() -> None:
    def thought(text: str) -> dict[str, Any]:
        return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}]}

    def call(name: str) -> dict[str, Any]:
        return {"type": "function_call", "call_id": name, "name": name, "arguments": "{}"}

    items = [{"role": "user", "content": "hi"}, thought("a"), call("f"), thought("b"), call("g"), call("h")]
    messages = parse_response(orjson.dumps({"model": "m", "input": items})).call.parameters["messages"]
    assert [message.get("reasoning") for message in messages] == [None, "a", "b"]
    assert [len(message.get("tool_calls", ())) for message in messages] == [0, 1, 2]


@pytest.mark.parametrize("form", [TgiForm(), TritonForm()], ids=["tgi", "triton"])
@pytest.mark.parametrize("name", ALL)
def test_containers_that_do_not_know_a_parameter_refuse_it(form: Any, name: str) -> None:
    with pytest.raises(BadRequest) as caught:
        form.body(parse(CHAT, body(**{name: ALL[name]})), "")
    assert caught.value.param == name
    for neutral in ({"include_reasoning": True}, {"reasoning_effort": "none"}):
        assert form.body(parse(CHAT, body(**neutral)), ""), "asks for nothing"


@pytest.mark.parametrize("image", [False, True])
def test_template_arguments_and_thoughts_are_reserved(image: bool) -> None:
    """Each byte of them may become part of the prompt."""
    picture = {"type": "image_url", "image_url": {"url": data_url(png(4, 4))}}
    content = [{"type": "text", "text": "hi"}, picture] if image else "hi"
    said = {"role": "assistant", "content": "so", "reasoning_content": "z" * 4000}

    def reserved(**fields: Any) -> int:
        data = body(**{"messages": [{"role": "user", "content": content}], **fields})
        return reservation(parse(CHAT, data), len(data), 1 << 20)[0]

    plain = reserved()
    assert reserved(chat_template_kwargs={"x": "y" * 4000}) >= plain + 1000
    for thoughts in ({}, {"reasoning": "z" * 4000, "reasoning_content": "z"}):
        turn = [{"role": "user", "content": content}, said | thoughts]
        assert reserved(messages=turn) >= plain + 1000


def usage(completion: int, reasoning: int | None = None) -> dict[str, Any]:
    details = {} if reasoning is None else {"completion_tokens_details": {"reasoning_tokens": reasoning}}
    return {"prompt_tokens": 9, "completion_tokens": completion, **details}


def chunk(name: str, text: str, counts: Any) -> dict[str, Any]:
    choices = [{"index": 0, "delta": {name: text}, "finish_reason": None}]
    return {"model": "m", "choices": choices, "usage": counts}


@pytest.mark.parametrize(
    ("told", "reasoning"), [(3, 3), ("3", 3), (9, 0), (None, 0), (-1, 0), ("many", 0), ([3], 0)]
)
def test_reasoning_tokens_are_part_of_the_completion(told: Any, reasoning: int) -> None:
    assert read_usage(usage(5) | {"completion_tokens_details": {"reasoning_tokens": told}}) == (
        9,
        0,
        5,
        reasoning,
    )


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
@pytest.mark.parametrize("cut", [1, 7, 50, 10_000])
@pytest.mark.parametrize(
    ("reported", "alone", "expected"),
    [(True, True, 4), (False, True, 3), (False, False, 0)],
    ids=["engine counts", "events count", "several choices"],
)
def test_a_streams_thought_is_counted(
    name: str, cut: int, reported: bool, alone: bool, expected: int
) -> None:
    """An engine that does not count it states, with each event, how many tokens there were until then."""
    events = [chunk("role", "assistant", usage(0, 0 if reported else None))]
    events += [chunk(name, "hm", usage(count, count if reported else None)) for count in (1, 2, 3)]
    events += [chunk("content", "so", usage(count, 4 if reported else None)) for count in (5, 6)]
    data = encode(events)
    seen = Usage()
    stream = EventStream(seen, UsageView.HIDDEN, counts_thought=alone)
    shown = b"".join(stream.feed(data[at : at + cut]) for at in range(0, len(data), cut))
    assert (seen.completion_tokens, seen.reasoning_tokens) == (6, expected)
    assert shown.count(b'"hm"') == 3, "the client gets the thought as it is"


@pytest.mark.parametrize(
    ("counts", "expected"),
    [((5, 10, 315, 300), (310, 300)), ((5, 10, 15, 300), (10, 0)), ((5, 10, 15, 8), (10, 8))],
    ids=["beside the completion", "incoherent", "of the completion"],
)
def test_thoughts_beside_the_completion_are_added(
    counts: tuple[int, int, int, int], expected: tuple[int, int]
) -> None:
    prompt, completion, total, reasoning = counts
    found = read_usage(
        {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": total,
            "completion_tokens_details": {"reasoning_tokens": reasoning},
        }
    )
    assert found is not None
    assert found[2:] == expected


def test_an_engine_that_always_states_zero_has_its_thoughts_counted() -> None:
    """vLLM states 0 in every event, even while it thinks."""
    events = [chunk("reasoning", "hm", usage(count, 0)) for count in (1, 2, 3)]
    seen = Usage()
    EventStream(seen, UsageView.HIDDEN, counts_thought=True).feed(
        encode([*events, chunk("content", "so", usage(5, 0))])
    )
    assert seen.reasoning_tokens == 3


def test_an_engines_count_replaces_the_derived_one() -> None:
    events = [chunk("reasoning", "hm", usage(42)), chunk("content", "so", usage(50, 40))]
    seen = Usage()
    stream = EventStream(seen, UsageView.HIDDEN, counts_thought=True)
    stream.feed(encode(events[:1]))
    assert seen.reasoning_tokens == 42
    stream.feed(encode(events[1:]))
    assert seen.reasoning_tokens == 40


def test_broken_usage_beside_a_thought_is_not_used() -> None:
    data = b'data: {"choices":[{"delta":{"reasoning":"hm"}}],"usage":{"prompt_tokens":5,}}\n\n'
    seen = Usage()
    assert EventStream(seen, UsageView.CONTINUOUS, counts_thought=True).feed(data) == data
    assert (seen.reported, seen.reasoning_tokens) == (False, 0)


def test_usage_before_the_choices_counts_the_thought() -> None:
    events = [{"usage": usage(count), "choices": [{"delta": {"reasoning": "hm"}}]} for count in (1, 2)]
    seen = Usage()
    EventStream(seen, UsageView.HIDDEN, counts_thought=True).feed(encode(events))
    assert seen.reasoning_tokens == 2


def test_the_gateway_hides_a_thought_and_counts_it() -> None:
    """vLLM is silent while it hides a thought itself: a client that hangs up would not be billed."""
    events = [chunk("reasoning", "secret", usage(1)), chunk("reasoning_content", "secret", usage(2))]
    events[0]["choices"][0] |= {"token_ids": [77], "logprobs": {"content": [{"token": "secret"}]}}
    both = chunk("content", "so", usage(4))
    both["choices"][0]["delta"]["reasoning"] = "secret"
    both["choices"][0]["token_ids"] = [5]
    seen = Usage()
    stream = EventStream(seen, UsageView.CONTINUOUS, counts_thought=True, hides_thought=True)
    shown = [
        orjson.loads(data) for data in event_data(stream.feed(encode([*events, both]))) if data[:1] == b"{"
    ]
    assert (seen.completion_tokens, seen.reasoning_tokens) == (4, 4)
    choices = [event["choices"][0] for event in shown]
    assert [choice["delta"] for choice in choices] == [{}, {}, {"content": "so"}]
    assert [choice.get("token_ids") for choice in choices] == [None, None, [5]]
    assert "logprobs" not in choices[0]
    whole = {"choices": [{"message": {"content": "so", "reasoning": "secret"}}]}
    assert orjson.loads(body_without_thought(orjson.dumps(whole))) == {
        "choices": [{"message": {"content": "so"}}]
    }
    assert "include_reasoning" not in shown_parameters(ALL)


def test_usage_at_the_end_alone_does_not_count_a_thought() -> None:
    data = encode(
        [chunk("reasoning", "hm", None), chunk("content", "so", None), {"choices": [], "usage": usage(6)}]
    )
    seen = Usage()
    EventStream(seen, UsageView.HIDDEN, counts_thought=True).feed(data)
    assert (seen.completion_tokens, seen.reasoning_tokens) == (6, 0)


def thinking_events() -> bytes:
    events = [
        chunk("reasoning_content", "h", None),
        chunk("reasoning_content", "m", None),
        chunk("content", "so", None),
    ]
    return encode([*events, {"choices": [], "usage": usage(6, 4)}])


def test_a_whole_answer_has_the_thought() -> None:
    whole = WholeAnswer()
    whole.take(thinking_events())
    (choice,) = orjson.loads(whole.body(usage(6, 4)))["choices"]
    assert (choice["message"]["reasoning_content"], choice["message"]["content"]) == ("hm", "so")


def test_a_response_tells_the_thought_as_an_item() -> None:
    whole = WholeAnswer()
    whole.take(thinking_events())
    request = orjson.dumps({"model": "m", "input": "hi"})
    found = orjson.loads(ResponsesDialect.read(request, "r").whole(whole.body(usage(6, 4))))
    streamed = ResponsesDialect.read(request, "r").events(thinking_events())
    events = [orjson.loads(line[6:]) for line in streamed.splitlines() if line.startswith(b"data: ")]
    for response in (found, events[-1]["response"]):
        thought, message = response["output"]
        assert (thought["type"], thought["status"]) == ("reasoning", "completed")
        assert thought["content"] == [{"type": "reasoning_text", "text": "hm"}]
        assert message["content"][0]["text"] == "so"
        assert response["usage"]["output_tokens_details"] == {"reasoning_tokens": 4}
    kinds = [event["type"] for event in events if "reasoning" in event["type"]]
    assert kinds == ["response.reasoning_text.delta"] * 2 + ["response.reasoning_text.done"]


@pytest.mark.parametrize(("own", "price", "most"), [(None, 1000, 1000), (30, 1400, 3000), (1, 820, 1000)])
def test_budgets_know_the_thoughts_price(own: int | None, price: int, most: int) -> None:
    """The most that an answer may cost is reserved, whether or not it thinks."""
    rate = RateRoute(1, 1, 10, reasoning_nano=own)
    assert rate.output_cost(100, 20) == price
    assert rate.most_output_cost(100) == most
