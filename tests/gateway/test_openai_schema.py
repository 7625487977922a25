"""The allow-list of request parameters."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from gateway.errors import BadRequest, UnknownParameter
from gateway.openai_schema import IGNORED, parse
from gateway.sse import UsageView

CHAT = "/v1/chat/completions"
GOOD: dict[str, Any] = {"model": "bot", "messages": [{"role": "user", "content": "hi"}]}


def chat(**extra: Any) -> bytes:
    return orjson.dumps({**GOOD, **extra})


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


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 2), ("n", True), ("temperature", 2.1), ("temperature", "1"), ("top_p", -0.1), ("max_tokens", 0),
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
