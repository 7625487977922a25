"""Completions that name an adapter for each prompt: parsing, and the answer made of the prompts' answers."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest

from gateway.api.adapters import MergedAnswer, name_prompt, split
from gateway.api.schema import CHAT, COMPLETIONS, EMBEDDINGS, Call, parse
from gateway.api.sse import event_data
from gateway.api.usage import Usage
from gateway.errors import BadRequest, RateLimited, UnknownParameter, UpstreamFailed, UpstreamRefused


def completion(**fields: Any) -> Call:
    body = {"model": "base", "prompt": ["one", "two"], "adapters": ["bot", "hive@prod"], **fields}
    return parse(COMPLETIONS, json.dumps(body).encode())


def test_each_prompt_becomes_a_call_of_its_adapter() -> None:
    call = completion(max_tokens=3, n=2, user="u", stream=True, stream_options={"include_usage": True})
    assert (call.model, call.adapters) == ("base", ("bot", "hive@prod"))
    one, two = split(call)
    assert (one.model, one.adapters, one.stream, one.user) == ("bot", (), True, "u")
    assert one.parameters == {"prompt": "one", "max_tokens": 3, "n": 2}
    assert (two.model, two.parameters["prompt"]) == ("hive@prod", "two")


def test_prompts_may_be_token_ids_and_one_may_be_empty() -> None:
    assert [part.parameters["prompt"] for part in split(completion(prompt=[[1, 2], [3]]))] == [[1, 2], [3]]
    assert [part.parameters["prompt"] for part in split(completion(prompt=["", "x"]))] == [[""], "x"]


def test_without_adapters_nothing_changes() -> None:
    for adapters in ({}, {"adapters": None}):
        body = {"model": "base", "prompt": ["one", "two"], **adapters}
        assert parse(COMPLETIONS, json.dumps(body).encode()).adapters == ()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompt": "one"}, "Send prompt as a list, or name the adapter in model"),
        ({"prompt": [1, 2]}, "Send prompt as a list, or name the adapter in model"),
        ({"prompt": ["one"]}, "one name for each prompt: it has 2, prompt has 1"),
        ({"adapters": []}, "a list of 1 to 64"),
        ({"adapters": "bot"}, "a list of 1 to 64"),
        ({"adapters": ["bot", ""]}, "a list of 1 to 64"),
        ({"adapters": ["bot", None]}, "a list of 1 to 64"),
        ({"adapters": ["bot"] * 65, "prompt": ["x"] * 65}, "a list of 1 to 64"),
    ],
)
def test_a_refusal_says_what_to_send(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequest, match=message) as caught:
        completion(**fields)
    assert caught.value.param == "adapters"


def test_the_choices_of_all_prompts_have_a_bound() -> None:
    with pytest.raises(BadRequest, match="times n must be at most 256"):
        completion(adapters=["bot"] * 64, prompt=["x"] * 64, n=5)


@pytest.mark.parametrize(("path", "field"), [(CHAT, "messages"), (EMBEDDINGS, "input")])
def test_other_endpoints_refuse_it_with_the_remedy(path: str, field: str) -> None:
    body = {"model": "base", field: "x", "adapters": ["bot"]}
    with pytest.raises(UnknownParameter, match=r"only at /v1/completions.*in model instead") as caught:
        parse(path, orjson.dumps(dict(reversed(body.items()))))
    assert caught.value.param == "adapters"


def test_an_error_names_its_prompt() -> None:
    limited = RateLimited("Rate limit reached.")
    name_prompt(limited, 3)
    assert (limited.message, limited.param) == ("prompt[3]: Rate limit reached.", "prompt[3]")
    for param, named in ((None, "prompt[1]"), ("prompt", "prompt[1]"), ("max_tokens", "max_tokens")):
        body = {"error": {"message": "Too long.", "type": "t", "code": "c", "param": param}}
        refused = UpstreamRefused(400, orjson.dumps(body), "c")
        name_prompt(refused, 1)
        error = orjson.loads(refused.body)["error"]
        assert error == {"message": "prompt[1]: Too long.", "type": "t", "code": "c", "param": named}


def usage(prompt: int, cached: int, completion: int) -> Usage:
    counts = Usage()
    counts.take(
        {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
    )
    return counts


TOTAL = {
    "prompt_tokens": 18,
    "completion_tokens": 7,
    "total_tokens": 25,
    "prompt_tokens_details": {"cached_tokens": 4},
}


def body(*texts: str) -> bytes:
    choices = [{"index": at, "text": text, "finish_reason": "stop"} for at, text in enumerate(texts)]
    return orjson.dumps({"id": "theirs", "model": "bot", "choices": choices, "usage": {"total_tokens": 9}})


def merged(**fields: Any) -> MergedAnswer:
    answer = MergedAnswer(completion(n=2, **fields), "r1", 1_700_000_000)
    answer.follow(1, usage(7, 4, 2))
    answer.follow(0, usage(11, 0, 5))
    return answer


def test_whole_answers_become_one() -> None:
    answer = merged()
    second = answer.choices(1, "hive@v1", body("c", "d"))
    first = answer.choices(0, "bot@v2", body("a", "b"))
    whole = orjson.loads(answer.body([first, second]))
    assert [(c["index"], c["text"], c["model"]) for c in whole["choices"]] == [
        (0, "a", "bot@v2"),
        (1, "b", "bot@v2"),
        (2, "c", "hive@v1"),
        (3, "d", "hive@v1"),
    ]
    assert whole["usage"] == TOTAL
    assert (whole["id"], whole["object"], whole["model"]) == ("cmpl-r1", "text_completion", "base")
    assert whole["created"] == 1_700_000_000


@pytest.mark.parametrize("bad", [b"[]", b"{}", b'{"choices": [{}]}', b'{"choices": [1]}', b"no"])
def test_a_body_that_is_no_completion_is_the_backends_failure(bad: bytes) -> None:
    with pytest.raises(UpstreamFailed, match="not a completion"):
        merged().choices(0, "bot@v2", bad)


def test_a_body_without_reported_usage_has_no_sum() -> None:
    answer = merged()
    answer.follow(0, Usage())
    assert orjson.loads(answer.body([]))["usage"] is None


def event(index: int, text: str) -> bytes:
    choice = {"index": index, "text": text, "finish_reason": None}
    return b"data: " + orjson.dumps({"id": "theirs", "model": "bot", "choices": [choice]}) + b"\n\n"


def values(block: bytes) -> list[Any]:
    return [item if item == b"[DONE]" else orjson.loads(item) for item in event_data(block)]


def test_events_get_the_index_of_the_whole_call() -> None:
    answer = merged(stream=True)
    block = answer.events(1, "hive@v1", event(0, "x") + event(1, "y") + b"data: [DONE]\n\n")
    found = values(block)
    assert [(e["choices"][0]["index"], e["choices"][0]["text"]) for e in found] == [(2, "x"), (3, "y")]
    assert {(e["id"], e["model"], e["choices"][0]["model"]) for e in found} == {
        ("cmpl-r1", "base", "hive@v1")
    }
    assert all("usage" not in e for e in found)
    assert answer.events(0, "bot@v2", b": keep-alive\n\n") == b": keep-alive\n\n"
    assert answer.end() == b"data: [DONE]\n\n"


def test_the_last_event_has_the_sum_of_the_usage() -> None:
    answer = merged(stream=True, stream_options={"include_usage": True})
    [chunk] = values(answer.events(0, "bot@v2", event(0, "x")))
    assert chunk["usage"] is None
    last, done = values(answer.end())
    assert (last["choices"], last["usage"], done) == ([], TOTAL, b"[DONE]")


def test_continuous_usage_is_the_sum_so_far() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    [chunk] = values(merged(stream=True, stream_options=options).events(0, "bot@v2", event(0, "x")))
    assert chunk["usage"] == TOTAL


@pytest.mark.parametrize("bad", [b"data: [1]\n\n", b'data: {"choices": [{}]}\n\n', b"data: {\n\n"])
def test_an_event_that_is_no_completions_is_an_error(bad: bytes) -> None:
    with pytest.raises(ValueError, match=r"event|JSON|unexpected|EOF"):
        merged(stream=True).events(0, "bot@v2", bad)
