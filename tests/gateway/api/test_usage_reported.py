"""Usage as backends spell it, or do not: what is billed, what is flagged, and what the client sees."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from gateway.api.prompts import MESSAGE_TOKENS
from gateway.api.usage import MAX_REPORTED, Usage, read_usage
from tests.gateway.conftest import ControlPlane, GatewayProcess
from tests.gateway.test_app import ask, post
from tests.gateway.test_faults import HEADERS, upstream_entry


@pytest.mark.parametrize(
    ("usage", "counts"),
    [
        ({"prompt_tokens": 11, "completion_tokens": 2}, (11, 0, 2)),
        ({"prompt_tokens": 11.0, "completion_tokens": 2.0}, (11, 0, 2)),
        ({"prompt_tokens": "11", "completion_tokens": "2"}, (11, 0, 2)),
        ({"input_tokens": 11, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 4}}, (11, 4, 2)),
        ({"prompt_tokens": 11, "completion_tokens": None, "total_tokens": 13}, (11, 0, 2)),
        ({"prompt_tokens": 11, "total_tokens": 11}, (11, 0, 0)),
        ({"prompt_tokens": 11, "completion_tokens": 2, "prompt_tokens_details": None}, (11, 0, 2)),
        ({"input_tokens": 1, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 9}}, (1, 1, 2)),
        ({"prompt_tokens": MAX_REPORTED, "completion_tokens": 0}, (MAX_REPORTED, 0, 0)),
        ({}, None),
        ({"prompt_tokens": 11}, None),
        ({"completion_tokens": 2}, None),
        ({"prompt_tokens": 0, "completion_tokens": 0}, None),
        ({"prompt_tokens": 11, "completion_tokens": None}, None),
        ({"prompt_tokens": 11, "completion_tokens": -2}, None),
        ({"prompt_tokens": 11.5, "completion_tokens": 2}, None),
        ({"prompt_tokens": 1e300, "completion_tokens": 2}, None),
        ({"prompt_tokens": True, "completion_tokens": 2}, None),
        ({"prompt_tokens": "eleven", "completion_tokens": 2}, None),
        ({"prompt_tokens": "-1", "completion_tokens": 2}, None),
        ({"prompt_tokens": "٣", "completion_tokens": 2}, None),
        ({"prompt_tokens": [11], "completion_tokens": {}}, None),
        ({"prompt_tokens": MAX_REPORTED + 1, "completion_tokens": 2}, None),
        ({"prompt_tokens": 11, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": -1}}, None),
        ({"prompt_tokens": 11, "total_tokens": 5}, None),
    ],
)
def test_what_a_usage_object_says(usage: dict[str, Any], counts: tuple[int, int, int] | None) -> None:
    assert read_usage(usage) == (None if counts is None else (*counts, 0))


def test_counts_never_fall_and_what_is_not_billed_changes_nothing() -> None:
    usage = Usage()
    usage.take({"prompt_tokens": 0, "completion_tokens": 0})
    assert not usage.reported
    usage.take({"prompt_tokens": 11, "completion_tokens": 5})
    usage.take({"prompt_tokens": 11, "completion_tokens": 3})
    usage.take({"prompt_tokens": 11, "completion_tokens": "many"})
    assert (usage.reported, usage.prompt_tokens, usage.completion_tokens) == (True, 11, 5)


@pytest.mark.parametrize("form", ["stream", "whole", "json"])
@pytest.mark.parametrize(
    ("usage", "billed"),
    [
        ({"prompt_tokens": 11.0, "completion_tokens": "2"}, (11, 2, False)),
        ({"input_tokens": 11, "output_tokens": 2}, (11, 2, False)),
        # "tok0 tok1 " has ten bytes; the estimate is four bytes a token.
        ({"prompt_tokens": 11, "completion_tokens": None}, (None, 3, True)),
        (False, (None, 3, True)),
    ],
)
def test_what_is_billed(
    gateway: GatewayProcess, control_plane: ControlPlane, form: str, usage: Any, billed: tuple[Any, int, bool]
) -> None:
    """Billing is the same for a stream, an assembled stream, and a server without streams."""
    text = json.dumps({"tokens": 2, "usage": usage, "whole": form == "json"})
    body = {"model": "bot", "messages": [{"role": "user", "content": text}], "stream": form == "stream"}
    answer = post(gateway, body)
    assert answer.status_code == 200
    [event] = control_plane.wait_events(1)
    prompt, completion, estimated = billed
    # A whole answer of the canned backend has no blank at its end: nine bytes make three tokens as well.
    assert (event.status, event.completion_tokens, event.estimated) == ("ok", completion, estimated)
    assert event.prompt_tokens == (prompt or MESSAGE_TOKENS + len(text) // 4)


@pytest.mark.parametrize("whole", [False, True])
def test_usage_with_the_last_token_reaches_who_asked_for_it(gateway: GatewayProcess, whole: bool) -> None:
    told = {"prompt_tokens": 11, "completion_tokens": 2, "completion_tokens_details": {"reasoning_tokens": 1}}
    body: dict[str, Any] = {"model": "bot", "messages": ask(tokens=2, usage=told, finish=True)}
    if whole:
        assert post(gateway, body).json()["usage"] == told
        return
    asked = {"stream": True, "stream_options": {"include_usage": True}}
    lines = [line.removeprefix("data: ") for line in post(gateway, body | asked).text.splitlines() if line]
    *chunks, last = map(json.loads, lines[:-1])
    assert lines[-1] == "[DONE]"
    assert (last["choices"], last["usage"]) == ([], told | {"total_tokens": 13})
    assert last["id"] == chunks[0]["id"]
    assert last["model"] == "bot"
    assert all(chunk.get("usage") is None for chunk in chunks)
    hidden = post(gateway, body | {"stream": True}).text
    assert "usage" not in hidden


@pytest.mark.parametrize(
    ("told", "status"),
    [
        ({"object": "error", "message": "boom in /srv"}, 502),
        ({"object": "error", "message": "boom in /srv", "type": "BadRequestError", "code": 400}, 400),
        ({"error": {"message": "boom in /srv", "type": "server_error", "code": "oom"}}, 502),
        ({"error": "boom in /srv"}, 502),
    ],
)
def test_an_error_behind_200_is_an_error(
    gateway: GatewayProcess, control_plane: ControlPlane, told: dict[str, Any], status: int
) -> None:
    answer = post(gateway, {"model": "bot", "messages": ask(whole=True, answer=told)})
    assert answer.status_code == status
    assert "boom" not in answer.text
    for event in control_plane.wait_events(1):
        kind = "client_error" if status == 400 else "error"
        assert (event.status, event.prompt_tokens, event.completion_tokens) == (kind, 0, 0)


def test_a_whole_answer_is_what_the_stream_says(gateway: GatewayProcess) -> None:
    body = {"model": "bot", "messages": ask(tokens=6), "n": 2}
    answer = post(gateway, body).json()
    assert (answer["object"], answer["model"]) == ("chat.completion", "bot")
    assert [choice["message"]["content"] for choice in answer["choices"]] == [
        "tok0 tok2 tok4 ",
        "tok1 tok3 tok5 ",
    ]
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["length"] * 2
    assert answer["usage"]["completion_tokens"] == 6


@pytest.mark.parametrize("usage", [True, False])
def test_a_dropped_whole_answer_is_billed_as_far_as_it_came(
    gateway: GatewayProcess, control_plane: ControlPlane, upstream: str, usage: bool
) -> None:
    body = {"model": "bot", "messages": ask(tokens=500, delay=0.02, usage=usage)}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(gateway.url + "/v1/chat/completions", json=body, headers=HEADERS, timeout=0.5)
    [event] = control_plane.wait_events(1)
    sent = upstream_entry(upstream, event.request_id)["sent"]
    assert (event.status, event.error_code, event.estimated) == ("cancelled", "", not usage)
    assert event.prompt_tokens > 0
    assert 0 < event.completion_tokens <= sent * (1 if usage else 2)


@pytest.mark.parametrize("begun", [True, False])
def test_a_request_dropped_before_its_first_token(
    gateway: GatewayProcess, control_plane: ControlPlane, begun: bool
) -> None:
    """This backend does not say how far it has read: once it has answered, the prompt is estimated."""
    text = json.dumps({"tokens": 1, "before": 30} if begun else {"tokens": 1, "delay": 30, "whole": True})
    busy = {"model": "bot", "messages": [{"role": "user", "content": text}]}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(gateway.url + "/v1/chat/completions", json=busy, headers=HEADERS, timeout=0.5)
    [event] = control_plane.wait_events(1)
    assert (event.status, event.completion_tokens, event.estimated) == ("cancelled", 0, begun)
    assert event.prompt_tokens == begun * (MESSAGE_TOKENS + len(text) // 4)


def test_a_whole_answer_that_breaks_is_asked_for_again_and_costs_once(
    gateway: GatewayProcess, control_plane: ControlPlane
) -> None:
    answer = post(gateway, {"model": "bot", "messages": ask(tokens=10, delay=0.001, fail="cut")})
    assert answer.status_code == 502
    events = control_plane.wait_events(1)
    assert {(event.status, event.prompt_tokens, event.completion_tokens) for event in events} == {
        ("error", 0, 0)
    }
