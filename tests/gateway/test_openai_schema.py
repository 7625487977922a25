"""The allow-list of request parameters."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest

from gateway.errors import BadRequest, UnknownParameter
from gateway.openai_schema import IGNORED, parse
from gateway.sse import UsageView

CHAT = "/v1/chat/completions"
GOOD: dict[str, Any] = {"model": "bot", "messages": [{"role": "user", "content": "hi"}]}


def chat(**extra: Any) -> bytes:
    return json.dumps({**GOOD, **extra}).encode()


def test_a_plain_request() -> None:
    call = parse(CHAT, chat(temperature=0, max_tokens=5, top_p=None))
    assert (call.model, call.stream, call.view) == ("bot", False, UsageView.HIDDEN)
    assert call.parameters == {"messages": GOOD["messages"], "temperature": 0, "max_tokens": 5}


@pytest.mark.parametrize(
    ("options", "view"),
    [
        (None, UsageView.HIDDEN),
        ({"include_usage": False}, UsageView.HIDDEN),
        ({"include_usage": True}, UsageView.FINAL),
        ({"include_usage": True, "continuous_usage_stats": True}, UsageView.CONTINUOUS),
    ],
)
def test_stream_options_choose_the_view(options: dict[str, bool] | None, view: UsageView) -> None:
    assert parse(CHAT, chat(stream=True, stream_options=options)).view is view


@pytest.mark.parametrize("name", sorted(IGNORED))
def test_habits_of_clients_are_dropped(name: str) -> None:
    assert name not in parse(CHAT, chat(**{name: "x"})).parameters


@pytest.mark.parametrize("name", ["cache_salt", "tenant", "adapter", "chat_template", "priority", "foo"])
def test_an_unknown_parameter_is_named(name: str) -> None:
    with pytest.raises(UnknownParameter, match=name) as caught:
        parse(CHAT, chat(**{name: {"x": 1}}))
    assert caught.value.param == name


def _deep(levels: int) -> Any:
    node: Any = {}
    for _ in range(levels):
        node = {"items": node}
    return node


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 129), ("n", 0), ("n", True), ("stop_token_ids", [1.5]), ("bad_words", "x"),
        ("response_format", _deep(300)), ("tools", [_deep(300)]),
        ("messages", [{"role": "user", "content": _deep(300)}]),
        ("temperature", 2.1), ("temperature", "1"), ("top_p", -0.1), ("max_tokens", 0),
        ("max_tokens", 1.5), ("stop", ["a"] * 17), ("stop", [1]), ("stop", ""), ("top_logprobs", 21),
        ("stream", "yes"), ("messages", []), ("messages", [{"content": "no role"}]), ("messages", "hi"),
        ("seed", 1 << 63), ("response_format", {"schema": "x" * 70_000}), ("stream_options", {"x": True}),
        ("logit_bias", {"1": 101}), ("messages", None),
    ],
)  # fmt: skip
def test_a_value_out_of_bounds_names_its_parameter(name: str, value: Any) -> None:
    with pytest.raises(BadRequest) as caught:
        parse(CHAT, chat(**{name: value}))
    assert caught.value.param == name


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"1", b'{"model":1}', b'{"messages":[]}', b"\xff"])
def test_what_is_no_request_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest):
        parse(CHAT, body)


def test_stream_options_need_a_stream() -> None:
    with pytest.raises(BadRequest, match="stream: true"):
        parse(CHAT, chat(stream_options={"include_usage": True}))


@pytest.mark.parametrize("prompt", [["a", "b"], [], [True], {"x": 1}, [-1]])
def test_a_completion_takes_one_prompt(prompt: Any) -> None:
    with pytest.raises(BadRequest, match="prompt"):
        parse("/v1/completions", orjson.dumps({"model": "m", "prompt": prompt}))


def test_a_prompt_may_be_token_ids() -> None:
    call = parse("/v1/completions", orjson.dumps({"model": "m", "prompt": [1, 2]}))
    assert call.parameters == {"prompt": [1, 2]}


def test_what_the_worker_serves_is_passed_on() -> None:
    wanted = {
        "n": 3, "logprobs": True, "top_logprobs": 20, "logit_bias": {"5": -100}, "stop_token_ids": [1],
        "bad_words": ["x"], "include_stop_str_in_output": True, "skip_special_tokens": False,
        "response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"},
        "guided_choice": ["a"], "tools": [{"type": "function", "function": {"name": "f"}}],
        "tool_choice": "required", "parallel_tool_calls": False, "min_tokens": 2, "repetition_penalty": 1.1,
    }  # fmt: skip
    assert parse(CHAT, chat(**wanted)).parameters == {"messages": GOOD["messages"], **wanted}
