"""The allow-list of request parameters."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest

from contracts.base_routes import UNBOUNDED_CONTEXT
from contracts.openai.parameters import IGNORED
from gateway.admission import reservation
from gateway.api.prompts import estimate_tokens, num_prompts
from gateway.api.schema import MAX_PARTS, parse
from gateway.api.sse import UsageView
from gateway.errors import BadRequest, MissingParameter, UnknownParameter

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


def test_parameters_that_the_model_has_dropped_are_removed_before_they_are_checked() -> None:
    dropped = {"bot": ("thinking", "logit_bias"), "base": ("seed",)}
    body = chat(thinking={"budget": 1}, logit_bias="malformed", seed=7)
    assert parse(CHAT, body, dropped.__getitem__).parameters == {"messages": GOOD["messages"], "seed": 7}
    with pytest.raises(UnknownParameter, match="thinking"):
        parse(CHAT, chat(model="base", thinking=1), dropped.__getitem__)


@pytest.mark.parametrize("name", ["cache_salt", "tenant", "adapter", "chat_template", "priority", "foo"])
def test_an_unknown_parameter_is_named(name: str) -> None:
    with pytest.raises(UnknownParameter, match=name) as caught:
        parse(CHAT, chat(**{name: {"x": 1}}))
    assert caught.value.param == name


@pytest.mark.parametrize(
    "bomb", [b"[],", b"{},", b'"",', b"[[[[]]]],", b'{"a":{}},', b'"\\"","\\\\",', b'"[",[],']
)
def test_a_body_of_many_parts_is_refused_before_it_is_parsed(bomb: bytes) -> None:
    head, tail = b'{"model":"bot","messages":[{"role":"user","content":"hi"}],"metadata":[', b"1]}"
    times = MAX_PARTS // (bomb.count(b"[") + bomb.count(b"{") + bomb.count(b'"')) // 2
    assert parse(CHAT, head + bomb * times + tail).model == "bot"
    with pytest.raises(BadRequest, match="more than 200000 lists, objects and strings"):
        parse(CHAT, head + bomb * MAX_PARTS + tail)


@pytest.mark.parametrize("text", ["[{", '"', "\\", '\\"[', "é[", "\n{"])
def test_a_text_is_one_part_whatever_it_says(text: str) -> None:
    body = chat(messages=[{"role": "user", "content": text * MAX_PARTS}])
    assert parse(CHAT, body).parameters["messages"][0]["content"] == text * MAX_PARTS


def _deep(levels: int) -> Any:
    node: Any = {}
    for _ in range(levels):
        node = {"items": node}
    return node


@pytest.mark.parametrize("name", ["tools", "response_format", "messages"])
def test_what_passes_can_be_sent_on(name: str) -> None:
    """No nesting depth can be read but not written."""

    def passes(levels: int) -> bool:
        value = (
            [{"role": "user", "content": "", "x": _deep(levels)}] if name == "messages" else [_deep(levels)]
        )
        try:
            call = parse(CHAT, chat(**{name: value}))
        except BadRequest:
            return False
        orjson.dumps({"response": [{"function": call.parameters}]})
        return True

    deepest = [levels for levels in range(180, 270) if passes(levels)][-1]
    assert 190 < deepest < 200


def test_null_is_absent_whatever_the_name() -> None:
    """Clients send it for every parameter of OpenAI's that they know."""
    spoken = chat(reasoning_effort=None, modalities=None, function_call=None, audio=None, cache_salt=None)
    assert parse(CHAT, spoken).parameters == {"messages": GOOD["messages"]}


@pytest.mark.parametrize(("body", "param"), [({"model": "m"}, "messages"), ({"messages": []}, "model")])
def test_what_is_missing_has_openais_code(body: dict[str, Any], param: str) -> None:
    for value in (body, {**body, param: None}):
        with pytest.raises(MissingParameter) as caught:
            parse(CHAT, orjson.dumps(value))
        assert (caught.value.code, caught.value.param) == ("missing_required_parameter", param)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 129),
        ("n", 0),
        ("n", True),
        ("stop_token_ids", [1.5]),
        ("bad_words", "x"),
        ("response_format", _deep(300)),
        ("tools", [_deep(300)]),
        ("messages", [{"role": "user", "content": _deep(300)}]),
        ("temperature", 2.1),
        ("temperature", "1"),
        ("top_p", -0.1),
        ("max_tokens", 0),
        ("max_tokens", 1.5),
        ("stop", ["a"] * 17),
        ("stop", [1]),
        ("stop", ""),
        ("top_logprobs", 21),
        ("stream", "yes"),
        ("messages", []),
        ("messages", [{"content": "no role"}]),
        ("messages", "hi"),
        ("seed", 1 << 63),
        ("response_format", {"schema": "x" * 70_000}),
        ("stream_options", {"x": True}),
        ("logit_bias", {"1": 101}),
        ("messages", None),
    ],
)
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


@pytest.mark.parametrize(
    "prompt",
    [[], [True], {"x": 1}, [-1], ["a", [1]], [[1], "a"], [[]], [["a"]], [[1.5]], ["a"] * 257, [1, "a"], 5],
)
def test_a_prompt_of_another_form_is_refused(prompt: Any) -> None:
    with pytest.raises(BadRequest) as caught:
        parse("/v1/completions", orjson.dumps({"model": "m", "prompt": prompt}))
    assert caught.value.param == "prompt"


@pytest.mark.parametrize(
    ("prompt", "count", "tokens"),
    [
        ("abcdefgh", 1, 3),
        ([1, 2], 1, 2),
        (["abcd", "x"], 2, 3),
        ([[1, 2], [3]], 2, 3),
        (["a"] * 256, 256, 256),
    ],
)
def test_prompts_are_text_or_token_ids(prompt: Any, count: int, tokens: int) -> None:
    call = parse("/v1/completions", orjson.dumps({"model": "m", "prompt": prompt}))
    assert call.parameters == {"prompt": prompt}
    assert num_prompts(call.parameters) == count
    assert estimate_tokens(call.parameters) == tokens


def test_prompts_times_choices_are_bounded() -> None:
    parse("/v1/completions", orjson.dumps({"model": "m", "prompt": ["a"] * 64, "n": 4}))
    with pytest.raises(BadRequest, match="prompts times n"):
        parse("/v1/completions", orjson.dumps({"model": "m", "prompt": ["a"] * 64, "n": 5}))


def test_nothing_is_generated_only_to_echo() -> None:
    body = {"model": "m", "prompt": "x", "max_tokens": 0}
    scored = parse(
        "/v1/completions", orjson.dumps({**body, "echo": True, "logprobs": 5, "prompt_logprobs": 2})
    )
    assert scored.parameters == {
        "prompt": "x",
        "max_tokens": 0,
        "echo": True,
        "logprobs": 5,
        "prompt_logprobs": 2,
    }
    assert reservation(scored, 40, 2048) == (11, 0)
    with pytest.raises(BadRequest, match="echo"):
        parse("/v1/completions", orjson.dumps(body))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("input", ""),
        ("input", []),
        ("input", ["a"] * 2049),
        ("input", {"x": 1}),
        ("input", None),
        ("encoding_format", "hex"),
        ("dimensions", 0),
        ("dimensions", 1.5),
        ("stream", True),
        ("n", 2),
        ("input_type", "query"),
        ("truncate_prompt_tokens", -2),
    ],
)
def test_embeddings_have_a_list_of_their_own(name: str, value: Any) -> None:
    with pytest.raises(BadRequest) as caught:
        parse("/v1/embeddings", orjson.dumps({"model": "m", "input": "x", name: value}))
    assert caught.value.param == name


def test_what_is_reserved_counts_every_prompt() -> None:
    several = {"model": "m", "prompt": [[1, 2, 3], [4, 5]], "max_tokens": 7, "n": 2}
    assert reservation(parse("/v1/completions", orjson.dumps(several)), 90, 2048) == (5, 28)
    assert reservation(parse("/v1/completions", orjson.dumps(several)), 90, 2) == (4, 8)
    # A model that states no context does not cap the reservation.
    unbounded = {**several, "max_tokens": 1_000_000}
    call = parse("/v1/completions", orjson.dumps(unbounded))
    assert reservation(call, 90, UNBOUNDED_CONTEXT) == (5, 4_000_000)
    inputs = {"model": "m", "input": [[1, 2, 3], [4, 5]], "dimensions": 8}
    assert reservation(parse("/v1/embeddings", orjson.dumps(inputs)), 90, 2048) == (5, 0)


def test_what_the_worker_serves_is_passed_on() -> None:
    wanted = {
        "n": 3,
        "logprobs": True,
        "top_logprobs": 20,
        "logit_bias": {"5": -100},
        "stop_token_ids": [1],
        "bad_words": ["x"],
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "response_format": {"type": "json_object"},
        "structured_outputs": {"regex": "a"},
        "guided_choice": ["a"],
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "min_tokens": 2,
        "repetition_penalty": 1.1,
    }
    assert parse(CHAT, chat(**wanted)).parameters == {"messages": GOOD["messages"], **wanted}
