"""Tool calls through a real worker: enforced, cut, with log probabilities, rendered into the prompt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.worker_engine.test_generation_api import CHAT, chat, worker
from tests.worker_engine.tiny_model import HERMES_TEMPLATE, byte_tokenizer, write_model
from tests.worker_process import Worker, run_worker

__all__ = ["worker"]


def tool(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [tool("get_weather", city={"enum": ["Bern", "Zürich"]}), tool("now", utc={"type": "boolean"})]


@pytest.mark.parametrize("stream", [False, True])
def test_required_calls_are_made_even_by_a_random_model(worker: Worker, stream: bool) -> None:
    ask: dict[str, Any] = CHAT | {
        "max_tokens": 400,
        "tools": TOOLS,
        "tool_choice": "required",
        "parallel_tool_calls": False,
    }
    calls: list[list[str]] = []
    if stream:
        finish = None
        for chunk in worker.client.chat.completions.create(**ask, stream=True):
            finish = chunk.choices[0].finish_reason or finish
            assert not chunk.choices[0].delta.content
            for piece in chunk.choices[0].delta.tool_calls or []:
                if piece.id:
                    calls.append([piece.function.name, ""])
                calls[piece.index][1] += piece.function.arguments
    else:
        choice = worker.client.chat.completions.create(**ask).choices[0]
        finish = choice.finish_reason
        assert choice.message.content is None
        calls = [[c.function.name, c.function.arguments] for c in choice.message.tool_calls or []]
    assert finish == "tool_calls"
    ((name, arguments),) = calls
    schema = next(item for item in TOOLS if item["function"]["name"] == name)["function"]["parameters"]
    jsonschema.validate(json.loads(arguments), schema)


@pytest.mark.parametrize("more", [{}, {"response_format": {"type": "json_object"}}], ids=["", "format"])
def test_a_named_function_is_called(worker: Worker, more: dict[str, Any]) -> None:
    """A format is for an answer's text, of which there is none."""
    named = {"type": "function", "function": {"name": "now"}}
    choice = chat(worker, tools=TOOLS, tool_choice=named, max_tokens=300, **more)["choices"][0]
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["now"]
    assert choice["finish_reason"] == "stop", "as OpenAI says of a function that the caller chose"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", [{"type": "function", "function": {"name": "get_weather"}}, "required"])
def test_a_call_cut_by_max_tokens_shows_no_markup(worker: Worker, choice: Any, stream: bool) -> None:
    for max_tokens in (1, 8, 20):
        body = {"tools": TOOLS, "tool_choice": choice, "max_tokens": max_tokens}
        answer = chat(worker, **body, stream=stream)
        parts = [part["choices"][0] for part in (answer if stream else [answer])]
        assert not any((part["delta"] if stream else part["message"]).get("content") for part in parts)
        assert parts[-1]["finish_reason"] == "length"


@pytest.mark.parametrize(
    "more", [{}, {"parameters": None}, {"parameters": {}}, {"parameters": {"properties": {}}}]
)
def test_a_function_without_parameters_takes_an_empty_object(worker: Worker, more: dict[str, Any]) -> None:
    ping = {"type": "function", "function": {"name": "ping", **more}}
    choice = chat(worker, tools=[ping], tool_choice="required", parallel_tool_calls=False, max_tokens=120)[
        "choices"
    ][0]
    (call,) = choice["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {}


def test_a_tool_with_a_bomb_is_refused(worker: Worker) -> None:
    """Only where the grammar is made: `auto` does not compile the schema."""
    for schema in ({"type": "integer", "multipleOf": 99_999_989}, {"type": "no"}, {"$ref": "#/nowhere"}):
        body = CHAT | {"tools": [tool("f", x=schema)], "tool_choice": "required", "max_tokens": 2}
        status, answer = worker.call("/v1/chat/completions", body)
        assert (status, answer["error"]["param"]) == (400, "tools")
    unique = tool("f", x={"type": "array", "items": {"type": "null"}, "uniqueItems": True})
    assert chat(worker, tools=[unique], tool_choice="required")["choices"]
    unique["function"]["strict"] = True
    body = CHAT | {"tools": [unique], "tool_choice": "required"}
    assert worker.call("/v1/chat/completions", body)[1]["error"]["param"] == "tools"


def test_tools_and_calls_reach_the_prompt(worker: Worker) -> None:
    """One token is one byte here, so the prompt's length shows what the template rendered."""
    plain = chat(worker)["usage"]["prompt_tokens"]
    none = chat(worker, tools=TOOLS, tool_choice="none")["usage"]["prompt_tokens"]
    auto = chat(worker, tools=TOOLS)
    rendered = sum(len(json.dumps(item, ensure_ascii=False).encode()) + 1 for item in TOOLS)
    assert none == plain
    assert auto["usage"]["prompt_tokens"] == plain + rendered + len("Answer in <tool_call></tool_call>.\n")
    history = [
        *CHAT["messages"],
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "abc", "type": "function", "function": {"name": "now", "arguments": '{"utc":true}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "abc", "content": "12:00"},
    ]
    after = chat(worker, messages=history)["usage"]["prompt_tokens"]
    call = 'assistant: <tool_call>\n{"name": "now", "arguments": {"utc": true}}\n</tool_call>\n'
    assert after == plain + len(call) + len("tool: 12:00\n")


def test_marks_that_are_special_tokens_are_written_and_read(tmp_path: Path) -> None:
    """As in Mistral's tokenizers: no spelling of a mark matches it, and decoding would leave it out."""
    write_model(tmp_path, seed=3, vocab_size=264, max_position_embeddings=1024)
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens(["<tool_call>", "</tool_call>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "chat_template.jinja").write_text(HERMES_TEMPLATE)
    with run_worker(tmp_path, tmp_path) as worker:
        choice = chat(worker, tools=TOOLS, tool_choice="required", max_tokens=300, parallel_tool_calls=False)
    message = choice["choices"][0]["message"]
    assert message["content"] is None
    assert len(message["tool_calls"]) == 1


@pytest.mark.parametrize("choice", ["required", "auto"])
def test_a_tool_calls_tokens_have_log_probabilities(worker: Worker, choice: str) -> None:
    body = {
        "tools": TOOLS,
        "tool_choice": choice,
        "logprobs": True,
        "top_logprobs": 2,
        "seed": 8,
        "max_tokens": 200,
    }
    whole = chat(worker, **body)
    content = whole["choices"][0]["logprobs"]["content"]
    assert len(content) == whole["usage"]["completion_tokens"]
    chunks = chat(worker, **body, stream=True, stream_options={"include_usage": True})
    told = [
        item
        for chunk in chunks[:-1]
        for item in (chunk["choices"][0].get("logprobs") or {}).get("content", [])
    ]
    assert len(told) == chunks[-1]["usage"]["completion_tokens"]
    assert [item["token"] for item in told] == [item["token"] for item in content]
