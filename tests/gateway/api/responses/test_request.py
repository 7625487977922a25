"""The backend request of a Responses request, and the parameters that are refused by name."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from gateway.api.responses.request import LOGPROBS, parse
from gateway.api.sse import UsageView
from gateway.errors import BadRequest, UnknownParameter

FUNCTION: dict[str, Any] = {"name": "now", "parameters": {"type": "object"}, "strict": True}
SCHEMA: dict[str, Any] = {"name": "a", "schema": {"type": "object"}, "strict": True}


def chat(**extra: Any) -> dict[str, Any]:
    return parse(orjson.dumps({"model": "m", "input": "hi", **extra})).call.parameters


USER: dict[str, Any] = {"role": "user", "content": "x"}


def test_a_plain_request() -> None:
    request = parse(orjson.dumps({"model": "m", "input": "hi", "stream": True, "user": "u"}))
    assert request.call.parameters == {"messages": [{"role": "user", "content": "hi"}]}
    assert (request.call.path, request.call.stream) == ("/v1/chat/completions", True)
    assert (request.call.view, request.call.user) == (UsageView.FINAL, "u")
    assert request.echo["store"] is False


def test_parameters_in_the_words_of_a_chat() -> None:
    asked = chat(
        instructions="Be brief.",
        max_output_tokens=9,
        temperature=0.5,
        top_p=0.9,
        top_logprobs=2,
        include=[LOGPROBS],
        parallel_tool_calls=False,
        store=True,
        metadata={"a": "b"},
        truncation="disabled",
        service_tier="auto",
        prompt_cache_key="k",
        previous_response_id=None,
        background=False,
        reasoning={"effort": None},
        tools=[{"type": "function", **FUNCTION}],
        tool_choice={"type": "function", "name": "now"},
        text={"format": {"type": "json_schema", **SCHEMA}},
    )
    assert asked == {
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}],
        "max_completion_tokens": 9,
        "temperature": 0.5,
        "top_p": 0.9,
        "logprobs": True,
        "top_logprobs": 2,
        "parallel_tool_calls": False,
        "tools": [{"type": "function", "function": FUNCTION}],
        "tool_choice": {"type": "function", "function": {"name": "now"}},
        "response_format": {"type": "json_schema", "json_schema": SCHEMA},
    }


def test_a_conversation_with_calls() -> None:
    items = [
        {
            "role": "developer",
            "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}],
        },
        {"type": "message", "role": "user", "content": "time?"},
        {
            "type": "message",
            "role": "assistant",
            "id": "msg_1",
            "status": "completed",
            "content": [{"type": "output_text", "text": "Let me see.", "annotations": [], "logprobs": []}],
        },
        {
            "type": "function_call",
            "id": "fc_1",
            "call_id": "c1",
            "name": "now",
            "arguments": "{}",
            "status": "completed",
        },
        {"type": "function_call", "call_id": "c2", "name": "zone", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "12:00"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "UTC"}]},
    ]
    calls = [
        {"id": id, "type": "function", "function": {"name": name, "arguments": "{}"}}
        for id, name in (("c1", "now"), ("c2", "zone"))
    ]
    assert chat(input=items)["messages"] == [
        {"role": "developer", "content": "ab"},
        {"role": "user", "content": "time?"},
        {"role": "assistant", "content": "Let me see.", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c1", "content": "12:00"},
        {"role": "tool", "tool_call_id": "c2", "content": "UTC"},
    ]


def test_what_clients_that_store_nothing_send() -> None:
    """These parameters are accepted without an effect; reasoning of other models is left out."""
    plain = chat(input=[USER])
    assert plain == chat(
        input=[{"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}, USER],
        include=["reasoning.encrypted_content"],
        truncation="auto",
        store=False,
        max_tool_calls=3,
        reasoning={"summary": "auto", "effort": None},
        text={"verbosity": "low"},
    )
    both = ["reasoning.encrypted_content", LOGPROBS]
    assert chat(input=[USER], include=both) == {**plain, "logprobs": True, "top_logprobs": 0}
    echo = parse(orjson.dumps({"model": "m", "input": "hi", "max_tool_calls": 3, "truncation": "auto"})).echo
    assert (echo["max_tool_calls"], echo["truncation"]) == (3, "disabled")


def test_items_of_earlier_answers_come_back_whole() -> None:
    items = [
        USER,
        {"type": "message", "role": "assistant", "id": "msg_0", "status": "incomplete", "content": []},
        {
            "type": "message",
            "role": "assistant",
            "id": "m",
            "status": "completed",
            "phase": "final_answer",
            "content": [
                {"type": "refusal", "refusal": "No."},
                {"type": "output_text", "text": "But", "parsed": None, "annotations": [{}], "logprobs": []},
            ],
        },
        {
            "type": "function_call",
            "id": "fc_1",
            "call_id": "c",
            "name": "f",
            "arguments": '{"a',
            "async": None,
            "status": "incomplete",
            "parsed_arguments": {},
            "namespace": "n",
        },
        {
            "type": "function_call_output",
            "id": "fco_1",
            "call_id": "c",
            "output": "no",
            "status": "completed",
            "created_by": "me",
            "name": "f",
            "caller": {"type": "direct"},
        },
        {"type": "function_call", "call_id": "d", "name": "g", "arguments": None},
    ]
    _, empty, said, told, last = chat(input=items)["messages"]
    assert (empty["content"], said["content"]) == ("", "No.But")
    assert [call["function"] for call in said["tool_calls"]] == [{"name": "f", "arguments": '{"a'}]
    assert (told["role"], told["content"]) == ("tool", "no")
    assert last["tool_calls"][0]["function"] == {"name": "g", "arguments": ""}


def test_a_tool_is_repeated_with_what_was_in_force() -> None:
    tool = {"type": "function", "name": "now"}
    [echoed] = parse(orjson.dumps({"model": "m", "input": "hi", "tools": [tool]})).echo["tools"]
    assert echoed == {**tool, "description": None, "parameters": None, "strict": False}


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "c"}, "conversation"),
        ({"background": True}, "background"),
        ({"truncation": "some"}, "truncation"),
        ({"reasoning": {"effort": "huge"}}, "reasoning"),
        ({"include": ["file_search_call.results"]}, "include"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
        ({"stream_options": {"include_obfuscation": False}}, "stream_options"),
        ({"text": "x"}, "text"),
        ({"text": ""}, "text"),
        ({"text": []}, "text"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format"),
        ({"text": {"verbosity": "loud"}}, "text.verbosity"),
        ({"max_tool_calls": 0}, "max_tool_calls"),
        ({"reasoning": {"summary": "long"}}, "reasoning"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": {"a": 1}}, "tools"),
        ({"tools": [{"type": "function", "name": "f", "defer_loading": True}]}, "tools[0].defer_loading"),
        ({"tool_choice": "some"}, "tool_choice"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": None}, "input"),
        ({"input": [1]}, "input[0]"),
        ({"input": [USER, {"role": "tool", "content": "x"}]}, "input[1].role"),
        ({"input": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "input[0].content[0]"),
        ({"input": [{"role": "user", "content": "x", "audio": {}}]}, "input[0].audio"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0]"),
        ({"input": [{"type": "reasoning", "id": "r", "summary": []}]}, "input"),
        ({"input": [{"type": "web_search_call", "id": "w"}]}, "input[0].type"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input[0].output"),
        ({"input": [USER] * 4097}, "input"),
    ],
)
def test_what_is_not_served_is_refused_by_name(change: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        chat(**change)
    assert caught.value.param == param


@pytest.mark.parametrize("name", ["cache_salt", "adapter", "messages", "prompt", "n"])
def test_an_unknown_parameter_is_named(name: str) -> None:
    with pytest.raises(UnknownParameter) as caught:
        chat(**{name: "x"})
    assert caught.value.param == name
