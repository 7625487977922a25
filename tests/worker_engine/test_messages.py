"""Messages as clients send them back: an answer's object is often the next request's history, whole."""

from __future__ import annotations

from typing import Any

import pytest

from worker_engine.errors import InvalidRequest
from worker_engine.openai.messages import parse_messages

USER = {"role": "user", "content": "x"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}


@pytest.mark.parametrize(
    "echoed",
    [
        {"provider_specific_fields": {"refusal": None}},
        {"reasoning_content": None, "thinking_blocks": [], "images": []},
        {"annotations": [{"type": "url_citation"}]},
        {"refusal": None, "audio": None, "function_call": None},
    ],
)
def test_an_answer_may_come_back_as_it_was(echoed: dict[str, Any]) -> None:
    plain = {"role": "assistant", "content": "y"}
    assert parse_messages([USER, plain | echoed]) == parse_messages([USER, plain])


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_a_thought_comes_back_for_the_template(name: str) -> None:
    said = {"role": "assistant", "content": "y"}
    assert parse_messages([USER, {**said, name: "hm"}])[1] == {**said, "reasoning_content": "hm"}
    assert parse_messages([USER, {**said, name: [{"text": "hm"}]}])[1] == said


def test_a_call_may_come_back_as_it_was() -> None:
    def assistant_message(call: dict[str, Any]) -> dict[str, Any]:
        return {"role": "assistant", "content": None, "tool_calls": [call]}

    echoed = CALL | {"index": 0, "provider_specific_fields": None}
    assert parse_messages([assistant_message(echoed)]) == parse_messages([assistant_message(CALL)])
    assert parse_messages(
        [assistant_message(echoed | {"provider_specific_fields": {"x": 1}})]
    ) == parse_messages([assistant_message(CALL)])


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ("", {}),
        ("null", {}),
        (None, {}),
        ("{}", {}),
        ({"a": 1}, {"a": 1}),
        ('{\n    "city"', {"arguments": '{\n    "city"'}),
        ("[1, 2]", {"arguments": "[1, 2]"}),
        ('"Bern"', {"arguments": '"Bern"'}),
        ("NaN", {"arguments": "NaN"}),
    ],
)
def test_a_call_that_was_cut_may_come_back(arguments: Any, shown: dict[str, Any]) -> None:
    """Templates take objects alone."""
    call = {**CALL, "function": {"name": "f", "arguments": arguments}}
    (message,) = parse_messages([{"role": "assistant", "tool_calls": [call]}])
    assert message["tool_calls"][0]["function"]["arguments"] == shown


@pytest.mark.parametrize(
    ("message", "content"),
    [
        ({"content": None, "refusal": "No."}, "No."),
        ({"refusal": "No."}, "No."),
        ({"content": "Yes.", "refusal": None}, "Yes."),
        ({"content": [{"type": "refusal", "refusal": "No."}]}, "No."),
        ({"content": [{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "b"}]}, "ab"),
    ],
)
def test_a_refusal_is_what_the_assistant_said(message: dict[str, Any], content: str) -> None:
    assert parse_messages([{"role": "assistant", **message}])[0]["content"] == content
    for role in ("user", "system"):
        with pytest.raises(InvalidRequest):
            parse_messages([{"role": role, "content": [{"type": "refusal", "refusal": "No."}]}])


@pytest.mark.parametrize("name", ["reasoning_content", "provider_specific_fields"])
def test_what_only_answers_carry_is_refused_elsewhere(name: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_messages([USER | {name: "x"}])
    assert refused.value.param == f"messages[0].{name}"
