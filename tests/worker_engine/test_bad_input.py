"""Bad requests to a real process: each gets a 4xx in OpenAI's form that names its parameter."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.worker_process import Worker

CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
COMPLETION: dict[str, Any] = {"model": "tiny", "prompt": "x", "max_tokens": 2}
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
USER: dict[str, Any] = {"role": "user", "content": "x"}


def deep(levels: int) -> Any:
    node: Any = {}
    for _ in range(levels):
        node = {"items": node}
    return node


def call(**changes: Any) -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}} | changes


def json_schema(schema: Any, **changes: Any) -> dict[str, Any]:
    return {
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema} | changes}
    }


CHAT_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"n": 0}, "n"),
    ({"n": 129}, "n"),
    ({"n": True}, "n"),
    ({"n": 10**30}, "n"),
    ({"best_of": 2}, "best_of"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": 2.1}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.1}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"top_k": 1.5}, "top_k"),
    ({"min_p": 1.1}, "min_p"),
    ({"min_p": "x"}, "min_p"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"max_completion_tokens": -1}, "max_completion_tokens"),
    ({"seed": "x"}, "seed"),
    ({"seed": 2**63}, "seed"),
    ({"stop": [1]}, "stop"),
    ({"stop": [""]}, "stop"),
    ({"stop": ["a"] * 17}, "stop"),
    ({"stop_token_ids": [256]}, "stop_token_ids"),
    ({"stop_token_ids": [-1]}, "stop_token_ids"),
    ({"stop_token_ids": ["a"]}, "stop_token_ids"),
    ({"stop_token_ids": 5}, "stop_token_ids"),
    ({"min_tokens": 3}, "min_tokens"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"bad_words": [""]}, "bad_words"),
    ({"bad_words": "x"}, "bad_words"),
    ({"bad_words": ["x"] * 65}, "bad_words"),
    ({"stream": 1}, "stream"),
    ({"stream": True, "stream_options": {"x": True}}, "stream_options"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options"),
    ({"logprobs": 3}, "logprobs"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"frequency_penalty": 2.5}, "frequency_penalty"),
    ({"presence_penalty": -2.5}, "presence_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"repetition_penalty": "x"}, "repetition_penalty"),
    ({"logit_bias": {"a": 1}}, "logit_bias"),
    ({"logit_bias": {"1": 101}}, "logit_bias"),
    ({"logit_bias": {"256": 1}}, "logit_bias"),
    ({"logit_bias": {"-1": 1}}, "logit_bias"),
    ({"logit_bias": {"1": "x"}}, "logit_bias"),
    ({"logit_bias": [1]}, "logit_bias"),
    ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
    ({"logit_bias": {"²": 1}}, "logit_bias"),
    ({"ignore_eos": "yes"}, "ignore_eos"),
    ({"skip_special_tokens": 1}, "skip_special_tokens"),
    ({"include_stop_str_in_output": 1}, "include_stop_str_in_output"),
    ({"wibble": 1}, "wibble"),
    ({"prompt": "x"}, "prompt"),
    ({"echo": True}, "echo"),
    ({"store": True}, "store"),
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [1]}, "messages[0]"),
    ({"messages": None}, "messages"),
    ({"messages": [USER] * 4097}, "messages"),
    ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": 1}]}, "messages[0].content"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
    ({"messages": [USER | {"audio": {}}]}, "messages[0].audio"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "messages[0].content[0]",
    ),
    ({"messages": [USER, {"role": "tool", "content": "x"}]}, "messages[1].tool_call_id"),
    ({"messages": [USER, {"role": "tool", "content": "x", "tool_call_id": "c"}]}, "messages[1]"),
    ({"messages": [USER, {"role": "assistant", "tool_calls": [call()]}]}, "messages[1]"),
    ({"messages": [{"role": "assistant", "tool_calls": [1]}]}, "messages[0].tool_calls[0]"),
    (
        {"messages": [{"role": "assistant", "tool_calls": [call(function={"name": "f", "arguments": 1})]}]},
        "messages[0].tool_calls[0].function.arguments",
    ),
    ({"messages": [{"role": "assistant", "tool_calls": [call(id=None)]}]}, "messages[0].tool_calls[0].id"),
    ({"model": 5}, "model"),
    ({"model": None}, "model"),
    ({"adapter": {"name": "x"}}, "adapter"),
    ({"adapter": "x"}, "adapter"),
    ({"tools": [{}]}, "tools[0].type"),
    ({"tools": [1]}, "tools[0]"),
    ({"tools": "x"}, "tools"),
    ({"tools": [TOOL] * 2}, "tools"),
    ({"tools": [TOOL] * 129}, "tools"),
    ({"tools": [TOOL]}, "tools"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
    (
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": 1}}]},
        "tools[0].function.parameters",
    ),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": "some"}, "tool_choice"),
    ({"tool_choice": {"type": "function", "function": {"name": "g"}}, "tools": [TOOL]}, "tool_choice"),
    ({"tool_choice": {"type": "function"}}, "tool_choice.function"),
    ({"tool_choice": "required", "tools": [TOOL], "guided_regex": "a"}, "guided_regex"),
    ({"response_format": "json"}, "response_format"),
    ({"response_format": {}}, "response_format.type"),
    ({"response_format": {"type": "yaml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    (json_schema(None), "response_format.json_schema.schema"),
    (json_schema(5), "response_format.json_schema.schema"),
    (json_schema({}, strict=1), "response_format.json_schema.strict"),
    (json_schema({"type": "strong"}), "response_format"),
    (json_schema(deep(150)), "response_format"),
    (json_schema({"type": "array", "uniqueItems": True}, strict=True), "response_format"),
    (json_schema({"$ref": "#/nowhere"}), "response_format"),
    (json_schema({"type": "integer", "multipleOf": 99_999_989}), "response_format"),
    (json_schema({"enum": [f"v{i}" for i in range(60_000)]}), "response_format"),
    ({"guided_regex": "(a"}, "guided_regex"),
    ({"guided_regex": "((a{1000}){1000}){1000}"}, "guided_regex"),
    ({"guided_regex": 5}, "guided_regex"),
    ({"guided_choice": []}, "guided_choice"),
    ({"guided_choice": [1]}, "guided_choice"),
    ({"guided_choice": [""]}, "guided_choice"),
    ({"guided_json": '{"a":' * 300 + "1" + "}" * 300}, "guided_json"),
    ({"structured_outputs": {"json": '{"a":' * 300 + "1" + "}" * 300}}, "structured_outputs.json"),
    ({"guided_json": "{"}, "guided_json"),
    ({"guided_json": "5"}, "guided_json"),
    ({"guided_json": {"not": {}}}, "guided_json"),
    ({"structured_outputs": {}}, "structured_outputs"),
    ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
    ({"structured_outputs": {"grammar": "x"}}, "structured_outputs"),
    ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
    (json_schema({"$ref": "#"}), "response_format"),
    (json_schema({"type": "object", "required": [f"name{i}" for i in range(10_000)]}), "response_format"),
    ({"guided_regex": "a", "min_tokens": 1}, "min_tokens"),
    ({"guided_regex": "a", "bad_words": ["a"]}, "bad_words"),
    ({"allowed_token_ids": []}, "allowed_token_ids"),
    ({"allowed_token_ids": [256]}, "allowed_token_ids"),
    ({"allowed_token_ids": ["a"]}, "allowed_token_ids"),
    ({"allowed_token_ids": [1], "guided_regex": "a"}, "allowed_token_ids"),
    ({"allowed_token_ids": [1], "bad_words": ["a"]}, "bad_words"),
    ({"allowed_token_ids": [255], "min_tokens": 1}, "allowed_token_ids"),
    ({"add_generation_prompt": True, "continue_final_message": True}, "continue_final_message"),
    ({"continue_final_message": 1}, "continue_final_message"),
    ({"return_token_ids": 1}, "return_token_ids"),
    ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
    ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
    ({"structured_outputs": {"grammar": 'start: "a" b'}}, "structured_outputs"),
    ({"structured_outputs": {"grammar": "start: /(a{1000}){1000}/"}}, "structured_outputs"),
]
COMPLETION_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"messages": [USER]}, "messages"),
    ({"prompt": None}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": ["a", [1]]}, "prompt"),
    ({"prompt": [1.5]}, "prompt"),
    ({"prompt": [True]}, "prompt"),
    ({"prompt": [256]}, "prompt"),
    ({"prompt": {"a": 1}}, "prompt"),
    ({"prompt": ["a", ""]}, "prompt"),
    ({"prompt": [[1], []]}, "prompt"),
    ({"prompt": [["a"]]}, "prompt"),
    ({"prompt": [[1], [256]]}, "prompt"),
    ({"prompt": ["a"] * 257}, "prompt"),
    ({"prompt": ["a", "x" * 5000]}, "prompt"),
    ({"prompt": ["a"] * 256, "n": 5}, "prompt"),
    ({"logprobs": 21}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
    ({"suffix": "x"}, "suffix"),
    ({"best_of": 2}, "best_of"),
    ({"tools": [TOOL]}, "tools"),
    ({"max_tokens": 5000}, "prompt"),
    ({"prompt": "x" * 5000}, "prompt"),
    ({"prompt": "x" * 2_000_000}, "prompt"),
]
CASES = [
    *[("/v1/chat/completions", CHAT, *item) for item in CHAT_FIELDS],
    *[("/v1/completions", COMPLETION, *item) for item in COMPLETION_FIELDS],
]


@pytest.mark.costly("many bodies beside a load")
def test_bad_fields_are_named_while_others_are_served(worker: Worker) -> None:
    """All cases while a stream is open, which goes on to its end."""
    stream = worker.client.completions.create(
        model="tiny", prompt="x", max_tokens=480, stream=True, extra_body={"ignore_eos": True}
    )
    wrong = []
    for path, good, change, param in CASES:
        status, body = worker.call(path, good | change)
        error = body["error"] if isinstance(body, dict) and "error" in body else {}
        if (status, error.get("param"), error.get("type")) != (400, param, "invalid_request_error"):
            wrong.append((json.dumps(change)[:80], status, error or body))
        elif not isinstance(error["code"], str) or len(error["message"]) > 600:
            wrong.append((json.dumps(change)[:80], len(error["message"]), error))
    assert wrong == []
    assert [choice.finish_reason for chunk in stream for choice in chunk.choices][-1] == "length"
    assert worker.call("/v1/chat/completions", CHAT)[0] == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_grammar_that_bursts_later_is_the_requests_fault(worker: Worker, stream: bool) -> None:
    """It compiles, and exceeds the library's limits at its first token."""
    asked = {"guided_regex": "(a?){1000}a{1000}", "max_tokens": 20, "stream": stream}
    status, body = worker.call("/v1/chat/completions", CHAT | asked)
    assert status == 400, "the first token is too many, so that a stream has not begun"
    error = body["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "grammar_too_complex")
    assert error["param"] == "guided_regex"
    assert "guided_regex: the grammar became too complex" in error["message"]


def test_more_choices_than_a_tenant_may_have_at_once_are_no_matter_of_waiting(worker: Worker) -> None:
    """64 rows and 256 places: 429 would ask for a retry that can never help."""
    status, body = worker.call("/v1/completions", COMPLETION | {"prompt": ["x"] * 161, "n": 2})
    assert (status, body["error"]["param"]) == (400, "prompt")
    assert "more than the 320 sequences" in body["error"]["message"]
    status, body = worker.call("/v1/completions", COMPLETION | {"n": 128})
    assert (status, len(body["choices"])) == (200, 128)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_text_far_beyond_the_context_is_refused_uncounted(worker: Worker, path: str) -> None:
    """8 MB cost 10 s and 2 GiB to tokenize."""
    text = "x" * 7_000_000
    asked = {"prompt": text} if path == "/v1/completions" else {"messages": [USER | {"content": text}]}
    status, body = worker.call(path, {"model": "tiny", "max_tokens": 2, **asked})
    assert (status, body["error"]["code"]) == (400, "context_length_exceeded")
    assert body["error"]["param"] == ("prompt" if "prompt" in asked else "messages")
    assert "maximum context length is 512 tokens" in body["error"]["message"]
    assert "you sent 7000" in body["error"]["message"]


@pytest.mark.parametrize(
    "raw",
    [
        b"{",
        b"[]",
        b"\xff\xfe",
        b"",
        b"[" * 100_000,
        b"NaN",
        b'{"model":"tiny","prompt":"\xff"}',
        b'{"model":"tiny","prompt":"\\ud800"}',
        b'{"model":"tiny","prompt":"x","temperature":NaN}',
        b'{"model":"tiny","prompt":"x","temperature":1e999}',
        b'{"a":' * 2000 + b"1" + b"}" * 2000,
        b'{"model":"tiny","prompt":"x"}x',
        b"null",
        b'"text"',
    ],
)
def test_a_body_that_is_no_request(worker: Worker, raw: bytes) -> None:
    status, body = worker.call("/v1/completions", raw=raw)
    assert status == 400
    assert set(body["error"]) == {"message", "type", "code", "param"}
    assert worker.complete()[0] == 200


def test_every_finish_leaves_nothing_behind(worker: Worker) -> None:
    """After all of the above, no request hangs in the engine."""
    assert worker.metric("requests_running") == 0
    assert worker.metric("requests_waiting") == 0
