"""OpenAI's Python client through the gateway to a real worker: every endpoint."""

from __future__ import annotations

import json
from typing import Any, Literal

import jsonschema
import numpy as np
import openai
import pytest
from pydantic import BaseModel

from tests.clients.conftest import Platform
from tests.worker_engine.tiny_model import byte_tokenizer

CHAT: Any = [{"role": "user", "content": "hi"}]
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Bern", "Zürich"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL: Any = {"type": "function", "function": {"name": "get_weather", "parameters": CITY, "strict": True}}
FLAT_TOOL: Any = {"type": "function", "name": "get_weather", "parameters": CITY, "strict": True}
TEXTS = ["hello", "the cät sat", "x"]


class Verdict(BaseModel):
    """Bounded, so that a random model ends it."""

    answer: Literal["yes", "no"]
    sure: bool


def num_bytes(text: str) -> int:
    return len(byte_tokenizer().encode(text).ids)


def test_chat_streams_what_it_answers(platform: Platform) -> None:
    ask: dict[str, Any] = {"messages": CHAT, "temperature": 0, "max_completion_tokens": 20}
    with platform.openai as api:
        whole = api.chat.completions.create(model="bot", **ask, logprobs=True, top_logprobs=2)
        base = api.chat.completions.create(model="tiny", **ask)
        elsewhere = api.chat.completions.create(model="elsewhere", **ask)
        chunks = list(
            api.chat.completions.create(
                model="bot", **ask, stream=True, stream_options={"include_usage": True}
            )
        )
    text = whole.choices[0].message.content
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == text
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens
    assert whole.choices[0].logprobs is not None
    assert all(len(item.top_logprobs) == 2 for item in whole.choices[0].logprobs.content or [])
    assert base.choices[0].message.content == elsewhere.choices[0].message.content != text
    assert {whole.model, chunks[0].model} == {"bot"}
    assert len(platform.control_plane.wait_events(4)) == 4


def test_a_tool_is_called_and_answered(platform: Platform) -> None:
    with platform.openai as api:
        asked = api.chat.completions.create(
            model="tiny",
            messages=CHAT,
            tools=[TOOL],
            tool_choice="required",
            max_tokens=300,
            parallel_tool_calls=False,
        )
        [call] = asked.choices[0].message.tool_calls or []
        jsonschema.validate(json.loads(call.function.arguments), CITY)  # type: ignore[union-attr]
        history = [
            *CHAT,
            asked.choices[0].message,
            {"role": "tool", "tool_call_id": call.id, "content": "wet"},
        ]
        after = api.chat.completions.create(model="tiny", messages=history, tools=[TOOL], max_tokens=3)
    assert asked.choices[0].finish_reason == "tool_calls"
    assert after.usage is not None
    assert asked.usage is not None
    assert after.usage.prompt_tokens > asked.usage.prompt_tokens


def test_structured_output_is_parsed(platform: Platform) -> None:
    with platform.openai as api:
        parsed = api.chat.completions.parse(
            model="bot", messages=CHAT, response_format=Verdict, max_tokens=300
        )
    assert isinstance(parsed.choices[0].message.parsed, Verdict)


def test_a_list_of_prompts(platform: Platform) -> None:
    ask: dict[str, Any] = {"prompt": TEXTS, "max_tokens": 6, "temperature": 0, "n": 2}
    with platform.openai as api:
        whole = api.completions.create(model="bot", **ask)
        alone = [api.completions.create(model="bot", **{**ask, "prompt": text}) for text in TEXTS]
        chunks = list(api.completions.create(model="bot", **ask, stream=True))
        scored = api.completions.create(model="tiny", prompt=TEXTS, max_tokens=0, echo=True, logprobs=1)
    assert [choice.index for choice in whole.choices] == list(range(6))
    assert [c.text for c in whole.choices] == [c.text for answer in alone for c in answer.choices]
    for choice in whole.choices:
        pieces = [c.text for chunk in chunks for c in chunk.choices if c.index == choice.index]
        assert "".join(pieces) == choice.text
    assert [choice.text for choice in scored.choices] == TEXTS
    assert all(choice.logprobs is not None for choice in scored.choices)
    events = sorted(platform.control_plane.wait_events(6), key=lambda event: event.started_at)
    prompt = sum(map(num_bytes, TEXTS))
    assert (events[0].prompt_tokens, events[0].completion_tokens) == (prompt, whole.usage.completion_tokens)
    assert (events[4].prompt_tokens, events[4].completion_tokens) == (prompt, events[0].completion_tokens)
    assert (events[5].prompt_tokens, events[5].completion_tokens) == (prompt, 0)


@pytest.mark.parametrize("model", ["tiny", "bot", "elsewhere"])
def test_embeddings(platform: Platform, model: str) -> None:
    """The client asks for base64 by itself; both forms are the worker's own numbers, billed as prompt."""
    with platform.openai as api:
        packed = api.embeddings.create(model=model, input=TEXTS)
        plain = api.embeddings.create(model=model, input=TEXTS, encoding_format="float", dimensions=8)
        ids = [list(byte_tokenizer().encode(text).ids) for text in TEXTS]
        of_ids = api.embeddings.create(model=model, input=ids)
        base = api.embeddings.create(model="tiny", input=TEXTS)
    vectors = np.array([item.embedding for item in packed.data])
    assert vectors.shape == (3, 72)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-5)
    assert np.array([item.embedding for item in of_ids.data]) == pytest.approx(vectors, abs=1e-6)
    short = vectors[:, :8] / np.linalg.norm(vectors[:, :8], axis=1, keepdims=True)
    assert np.array([item.embedding for item in plain.data]) == pytest.approx(short, abs=1e-5)
    assert np.allclose(vectors, [item.embedding for item in base.data], atol=1e-5) is (model != "bot")
    assert packed.model == model
    events = platform.control_plane.wait_events(4)
    counts = {(e.prompt_tokens, e.completion_tokens, e.status, e.estimated) for e in events}
    assert (
        counts
        == {(packed.usage.prompt_tokens, 0, "ok", False)}
        == {(sum(map(num_bytes, TEXTS)), 0, "ok", False)}
    )


def test_embeddings_are_refused_in_openais_words(platform: Platform) -> None:
    with platform.openai as api:
        with pytest.raises(openai.BadRequestError) as caught:
            api.embeddings.create(model="tiny", input=["x" * 3000])
        assert caught.value.code == "context_length_exceeded"
        with pytest.raises(openai.NotFoundError):
            api.embeddings.create(model="nobody", input="x")
