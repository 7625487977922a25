"""vLLM's parameters through a real worker: prompts that go on or are cut, token ids, allowed tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.worker_engine.test_generation_api import CHAT, byte_id, chat, events, worker
from tests.worker_engine.test_tool_calls_api import TOOLS
from tests.worker_engine.tiny_model import write_tokenizer
from tests.worker_process import Worker
from worker_engine.errors import InvalidRequest
from worker_engine.text.tokenizer import ChatTokenizer

__all__ = ["worker"]
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
USER = {"role": "user", "content": "hi"}


def text_of(worker: Worker, token_ids: list[int]) -> str:
    text: str = worker.call("/detokenize", {"tokens": token_ids})[1]["prompt"]
    return text


def test_a_template_ends_where_it_is_told(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    tokenizer = ChatTokenizer(tmp_path)
    said = {"role": "assistant", "content": "Once upon "}
    assert tokenizer.render_chat([USER]) == "<user>hi</s><assistant>"
    assert tokenizer.render_chat([USER], generation_prompt=False) == "<user>hi</s>"
    text = tokenizer.render_chat([USER, said], generation_prompt=False, continues=True)
    assert text == "<user>hi</s><assistant>Once upon "
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}")
    with pytest.raises(InvalidRequest) as refused:
        ChatTokenizer(tmp_path).render_chat([USER, said], continues=True)
    assert refused.value.param == "continue_final_message"


def test_a_final_message_is_continued(worker: Worker) -> None:
    said = {"role": "assistant", "content": "Once upon "}
    answers = [
        chat(worker, messages=[USER, said], continue_final_message=True, return_token_ids=True, **more)
        for more in ({}, {"add_generation_prompt": False})
    ]
    for answer in answers:
        assert text_of(worker, answer["prompt_token_ids"]) == "user: hi\nassistant: Once upon "
    counted = worker.call("/tokenize", {"messages": [USER, said], "continue_final_message": True})[1]
    assert counted["tokens"] == answers[0]["prompt_token_ids"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_chats_token_ids(worker: Worker, stream: bool) -> None:
    body = {"n": 2, "seed": 4, "return_token_ids": True, "stop": "zzzz", "stream": stream}
    answer = chat(worker, **body)
    parts = answer if stream else [answer]
    ids: list[list[int]] = [[], []]
    texts = ["", ""]
    for part in parts:
        for choice in part["choices"]:
            ids[choice["index"]] += choice.get("token_ids", [])
            texts[choice["index"]] += (choice["delta"] if stream else choice["message"]).get("content", "")
    assert [len(item) for item in ids] == [12, 12]
    assert [text_of(worker, item) for item in ids] == texts
    assert text_of(worker, parts[0]["prompt_token_ids"]) == "user: hi\nassistant:"
    assert "prompt_token_ids" not in parts[-1] or not stream
    assert "token_ids" not in json.dumps(chat(worker))


@pytest.mark.parametrize("stream", [False, True])
def test_completions_token_ids(worker: Worker, stream: bool) -> None:
    body: dict[str, Any] = {"prompt": ["ab", "cde"], "n": 2, "seed": 4, "return_token_ids": True}
    status, answer = worker.complete(**body, stream=stream)
    assert status == 200
    ids: list[list[int]] = [[], [], [], []]
    prompts: list[list[int]] = [[], [], [], []]
    for part in events(answer) if stream else [answer]:
        for choice in part["choices"]:
            ids[choice["index"]] += choice["token_ids"]
            prompts[choice["index"]] += choice.get("prompt_token_ids", [])
    assert [len(item) for item in ids] == [5] * 4
    assert [text_of(worker, item) for item in prompts] == ["ab", "ab", "cde", "cde"]


def test_ids_of_tokens_whose_text_is_held_back_are_told(worker: Worker) -> None:
    body = {"tools": TOOLS, "tool_choice": "required", "max_tokens": 100, "return_token_ids": True}
    chunks = chat(worker, **body, stream=True, stream_options={"include_usage": True})
    told = [item for chunk in chunks[:-1] for item in chunk["choices"][0].get("token_ids", [])]
    assert len(told) == chunks[-1]["usage"]["completion_tokens"]
    assert text_of(worker, told).startswith("<tool_call>")


@pytest.mark.parametrize("temperature", [0, 1.5])
def test_only_allowed_tokens_come(worker: Worker, temperature: float) -> None:
    allowed = [byte_id(letter) for letter in "abc"]
    body: dict[str, Any] = {"allowed_token_ids": allowed, "max_tokens": 40, "temperature": temperature}
    text = worker.complete(**body, repetition_penalty=1.3)[1]["choices"][0]["text"]
    assert len(text) == 40
    assert set(text) <= set("abc")
    biased = worker.complete(**body, logit_bias={str(allowed[1]): 100})[1]["choices"][0]["text"]
    assert biased == "b" * 40


def test_the_end_of_a_long_prompt_is_used(worker: Worker) -> None:
    body: dict[str, Any] = {"prompt": "x" * 3000 + "end", "return_token_ids": True, "max_tokens": 5}
    for most, length in ((3, 3), (-1, 2043), (2000, 2000)):
        status, answer = worker.complete(**body, truncate_prompt_tokens=most)
        assert status == 200, answer
        prompt = answer["choices"][0]["prompt_token_ids"]
        assert (len(prompt), text_of(worker, prompt)[-3:]) == (length, "end")
        assert answer["usage"]["prompt_tokens"] == length
    whole = chat(worker, truncate_prompt_tokens=4, return_token_ids=True)
    assert text_of(worker, whole["prompt_token_ids"]) == "ant:"
    ids = worker.complete(**{**body, "prompt": [[1, 2, 3]]}, truncate_prompt_tokens=2)[1]
    assert ids["choices"][0]["prompt_token_ids"] == [2, 3]
    given = {"model": "tiny", "input": ["x" * 3000 + "end", "end"], "truncate_prompt_tokens": 3}
    first, second = worker.call("/v1/embeddings", given)[1]["data"]
    assert first["embedding"] == pytest.approx(second["embedding"], abs=1e-5)


def test_a_chat_with_tools_is_tokenized_as_it_is_answered(worker: Worker) -> None:
    counted = worker.call("/tokenize", {"messages": CHAT["messages"], "tools": TOOLS})[1]
    answered = chat(worker, tools=TOOLS, return_token_ids=True)
    assert counted["tokens"] == answered["prompt_token_ids"]
    for name in ("tools", "add_generation_prompt"):
        value: Any = TOOLS if name == "tools" else False
        status, answer = worker.call("/tokenize", {"prompt": "x", name: value})
        assert (status, answer["error"]["param"]) == (400, name)
