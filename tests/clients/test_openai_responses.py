"""OpenAI's Python client and the Responses API, through the gateway to a real worker."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import openai
import pytest

from tests.clients.conftest import Platform
from tests.clients.test_openai import CHAT, CITY, FLAT_TOOL, Verdict

pytestmark = pytest.mark.costly("the demo model answers")

ASK: dict[str, Any] = {"model": "bot", "input": "hi", "temperature": 0, "max_output_tokens": 20}


def test_a_response_says_what_a_chat_says(platform: Platform) -> None:
    with platform.openai as api:
        response = api.responses.create(**ASK, metadata={"a": "b"}, store=True)
        chat = api.chat.completions.create(
            model="bot", messages=CHAT, temperature=0, max_completion_tokens=20
        )
    assert response.output_text == chat.choices[0].message.content
    assert (response.status, response.model, response.metadata) == ("incomplete", "bot", {"a": "b"})
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.model_dump()["store"] is False, "nothing is stored, and it says so"
    assert response.usage is not None
    assert chat.usage is not None
    assert response.usage.input_tokens == chat.usage.prompt_tokens
    assert response.usage.output_tokens == chat.usage.completion_tokens == 20
    [event, _] = sorted(platform.control_plane.wait_events(2), key=lambda event: event.started_at)
    assert (event.prompt_tokens, event.completion_tokens) == (response.usage.input_tokens, 20)
    assert event.cached_tokens == response.usage.input_tokens_details.cached_tokens


def test_a_stream_builds_the_same_response(platform: Platform) -> None:
    with platform.openai as api:
        whole = api.responses.create(**ASK)
        events = list(api.responses.create(**ASK, stream=True))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert set(kinds[4:-4]) == {"response.output_text.delta"}
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == whole.output_text
    last = events[-1]
    assert last.type == "response.incomplete"
    assert last.response.output_text == whole.output_text
    assert last.response.usage is not None
    assert whole.usage is not None
    assert last.response.usage.total_tokens == whole.usage.total_tokens


def test_a_function_is_called_and_its_output_goes_back(platform: Platform) -> None:
    ask: dict[str, Any] = {
        "model": "tiny",
        "input": [{"role": "user", "content": "hi"}],
        "tools": [FLAT_TOOL],
        "parallel_tool_calls": False,
        "max_output_tokens": 300,
    }
    with platform.openai as api:
        whole = api.responses.create(**ask, tool_choice="required")
        events = list(api.responses.create(**ask, tool_choice="required", stream=True))
        [call] = whole.output
        assert call.type == "function_call"
        jsonschema.validate(json.loads(call.arguments), CITY)
        output = {"type": "function_call_output", "call_id": call.call_id, "output": "wet"}
        history = [*ask["input"], call.model_dump(exclude_none=True), output]
        after = api.responses.create(**{**ask, "input": history, "max_output_tokens": 3})
    assert after.usage is not None
    assert whole.usage is not None
    assert after.usage.input_tokens > whole.usage.input_tokens
    kinds = [event.type for event in events]
    assert kinds[2] == "response.output_item.added"
    assert set(kinds[3:-3]) == {"response.function_call_arguments.delta"}
    assert kinds[-3:] == [
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]
    deltas = "".join(e.delta for e in events if e.type == "response.function_call_arguments.delta")
    done = events[-3]
    assert done.type == "response.function_call_arguments.done"
    assert done.arguments == deltas
    jsonschema.validate(json.loads(deltas), CITY)


def test_structured_output_is_parsed(platform: Platform) -> None:
    with platform.openai as api:
        parsed = api.responses.parse(
            model="bot", input="hi", text_format=Verdict, max_output_tokens=300, instructions="Be brief."
        )
        ask: dict[str, Any] = {"model": "bot", "input": "hi", "max_output_tokens": 300}
        with api.responses.stream(**ask, text_format=Verdict) as stream:
            streamed = stream.get_final_response()
    for response in (parsed, streamed):
        assert isinstance(response.output_parsed, Verdict)
        assert response.status == "completed"


def test_what_needs_a_store_is_refused_by_name(platform: Platform) -> None:
    with platform.openai as api, pytest.raises(openai.BadRequestError) as caught:
        api.responses.create(**ASK, previous_response_id="resp_1")
    assert caught.value.param == "previous_response_id"
    assert "not stored" in caught.value.message


def test_a_stream_comes_again_under_its_idempotency_key(platform: Platform) -> None:
    with platform.openai as api:
        first, again = (
            list(api.responses.create(**ASK, stream=True, extra_headers={"Idempotency-Key": "r"}))
            for _ in range(2)
        )
    assert first == again
    assert len(platform.control_plane.wait_events(1)) == 1
