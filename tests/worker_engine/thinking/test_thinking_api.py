"""Thinking through a real worker: Qwen3's template, a model whose text is known, the openai client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests.worker_engine.test_generation_api import events
from tests.worker_engine.test_tool_calls_api import tool
from tests.worker_engine.thinking.scripted_model import END_THINK, THINK, qwen_tokenizer, write_scripted
from tests.worker_process import Worker, run_worker

THOUGHT: Final = "abcdefghijkl"
ANSWER: Final = "ANSWER!"
TOKENIZER: Final = qwen_tokenizer()
USER: Final = {"role": "user", "content": "hi"}


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """Writes THOUGHT between its marks, an empty line, and ANSWER; without thinking ANSWER alone."""
    folder = tmp_path_factory.mktemp("worker")
    path = ["\n", THINK, *THOUGHT, END_THINK, "\n\n", *ANSWER, "<|im_end|>"]
    with run_worker(write_scripted(folder / "model", [path]), folder, "--memory-gib", "0.05") as worker:
        yield worker


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """Thinks in circles; once its thought is closed it answers."""
    folder = tmp_path_factory.mktemp("endless")
    path = ["\n", THINK, *THOUGHT, "a"]
    model = write_scripted(folder / "model", [path, [END_THINK, "\n\n", *ANSWER, "<|im_end|>"]])
    with run_worker(model, folder, "--memory-gib", "0.05", "--speculation", "ngram") as worker:
        yield worker


def count(text: str) -> int:
    """Tokens of a text by the checkpoint's tokenizer."""
    return len(TOKENIZER.encode(text, add_special_tokens=False).ids)


def ask(worker: Worker, **body: Any) -> Any:
    body = {"model": "tiny", "messages": [USER], "max_tokens": 64, "temperature": 0} | body
    status, answer = worker.call("/v1/chat/completions", body)
    assert status == 200, answer
    return events(answer) if body.get("stream") else answer


def refused(worker: Worker, **body: Any) -> str:
    body = {"model": "tiny", "messages": [USER], "max_tokens": 64} | body
    status, answer = worker.call("/v1/chat/completions", body)
    assert status == 400, answer
    return str(answer["error"]["param"])


def said(answer: Any) -> tuple[Any, Any, Any]:
    """Thought, content and finish reason of a whole answer."""
    (choice,) = answer["choices"]
    message = choice["message"]
    assert message.get("reasoning") == message.get("reasoning_content")
    return message.get("reasoning_content"), message["content"], choice["finish_reason"]


def thought_tokens(answer: Any) -> int:
    return int(answer["usage"]["completion_tokens_details"]["reasoning_tokens"])


def test_a_thought_is_told_apart_and_counted_by_the_tokenizer(worker: Worker) -> None:
    answer = ask(worker)
    assert said(answer) == (THOUGHT, ANSWER, "stop")
    assert thought_tokens(answer) == count(THINK + THOUGHT + END_THINK)
    assert answer["usage"]["completion_tokens"] == count(f"{THINK}{THOUGHT}{END_THINK}\n\n{ANSWER}<|im_end|>")
    rendered = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert answer["usage"]["prompt_tokens"] == count(rendered)


@pytest.mark.parametrize(
    "off", [{"chat_template_kwargs": {"enable_thinking": False}}, {"reasoning_effort": "none"}]
)
def test_thinking_is_turned_off(worker: Worker, off: dict[str, Any]) -> None:
    answer = ask(worker, **off)
    assert said(answer) == (None, ANSWER, "stop")
    assert thought_tokens(answer) == 0
    closed = f"<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n{THINK}\n\n{END_THINK}\n\n"
    assert answer["usage"]["prompt_tokens"] == count(closed)


@pytest.mark.parametrize(
    "on", [{"chat_template_kwargs": {"enable_thinking": True}}, {"reasoning_effort": "low"}]
)
def test_thinking_is_turned_on(worker: Worker, on: dict[str, Any]) -> None:
    assert said(ask(worker, **on)) == (THOUGHT, ANSWER, "stop")


@pytest.mark.parametrize("include", [True, False])
def test_a_stream_says_what_the_whole_answer_says(worker: Worker, include: bool) -> None:
    whole = ask(worker, include_reasoning=include)
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = ask(worker, include_reasoning=include, stream=True, stream_options=options)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    thought = "".join(delta.get("reasoning_content", "") for delta in deltas)
    content = "".join(delta.get("content", "") for delta in deltas)
    assert (thought or None, content) == said(whole)[:2]
    assert thought == (THOUGHT if include else "")
    assert chunks[-1]["usage"] == whole["usage"], "the thought is counted even if it is not shown"
    counts = [thought_tokens(chunk) for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == count(THINK + THOUGHT + END_THINK)


def test_the_openai_client_reads_the_thought(worker: Worker) -> None:
    create = worker.client.chat.completions.create
    body: dict[str, Any] = {"model": "tiny", "messages": [USER], "max_tokens": 64}
    answer = create(**body, reasoning_effort="high")
    message = answer.choices[0].message
    assert (message.reasoning_content, message.content) == (THOUGHT, ANSWER)
    details = answer.usage.completion_tokens_details
    assert details is not None
    assert details.reasoning_tokens == count(THINK + THOUGHT + END_THINK)
    chunks = list(create(**body, stream=True, extra_body={"chat_template_kwargs": {"enable_thinking": True}}))
    pieces = [getattr(chunk.choices[0].delta, "reasoning_content", "") for chunk in chunks if chunk.choices]
    assert "".join(filter(None, pieces)) == THOUGHT


@pytest.mark.parametrize("max_tokens", [1, 5, 13])
def test_max_tokens_may_end_inside_the_thought(worker: Worker, max_tokens: int) -> None:
    answer = ask(worker, max_tokens=max_tokens)
    assert said(answer) == (THOUGHT[: max_tokens - 1] or None, None if max_tokens > 1 else "", "length")
    assert thought_tokens(answer) == max_tokens == answer["usage"]["completion_tokens"]


@pytest.mark.parametrize("budget", [0, 1, 7, 30])
def test_a_budget_closes_the_thought_exactly(endless: Worker, budget: int) -> None:
    answer = ask(endless, thinking_token_budget=budget)
    thought = (THOUGHT * 3)[:budget]
    assert said(answer) == (thought or None, ANSWER, "stop")
    assert thought_tokens(answer) == count(THINK + thought + END_THINK)


def test_a_thought_that_ends_by_itself_is_not_touched_by_a_budget(worker: Worker) -> None:
    answer = ask(worker, thinking_token_budget=50)
    assert said(answer) == (THOUGHT, ANSWER, "stop")


@pytest.mark.parametrize("body", [{"stop": "c"}, {"stop_token_ids": [TOKENIZER.token_to_id("c")]}])
def test_stops_begin_after_the_thought(worker: Worker, body: dict[str, Any]) -> None:
    assert said(ask(worker, **body)) == (THOUGHT, ANSWER, "stop")
    assert said(ask(worker, stop=["W", "d"])) == (THOUGHT, "ANS", "stop")


@pytest.mark.parametrize("switch", [{}, {"chat_template_kwargs": {"enable_thinking": False}}])
def test_a_grammar_begins_after_the_thought(worker: Worker, switch: dict[str, Any]) -> None:
    schema = {
        "type": "object",
        "properties": {"ok": {"const": True}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    answer = ask(worker, response_format=form, max_tokens=200, **switch)
    thought, content, _ = said(answer)
    assert thought == (None if switch else THOUGHT)
    assert json.loads(content) == {"ok": True}


def test_a_grammar_and_a_budget_work_together(endless: Worker) -> None:
    answer = ask(endless, guided_regex="yes|no", thinking_token_budget=3)
    thought, content, finish = said(answer)
    assert (thought, finish) == (THOUGHT[:3], "stop")
    assert content in ("yes", "no")


def test_tool_calls_follow_the_thought(worker: Worker) -> None:
    answer = ask(
        worker,
        tools=[tool("now", utc={"const": True})],
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=200,
    )
    (choice,) = answer["choices"]
    message = choice["message"]
    assert (message["reasoning_content"], message["content"]) == (THOUGHT, None)
    assert message["tool_calls"][0]["function"]["name"] == "now"
    assert choice["finish_reason"] == "tool_calls"


def test_log_probabilities_are_of_the_answer(worker: Worker) -> None:
    answer = ask(worker, logprobs=True)
    tokens = [item["token"] for item in answer["choices"][0]["logprobs"]["content"]]
    assert "".join(tokens).removesuffix("<|im_end|>") == ANSWER


def test_choices_think_each_for_itself(worker: Worker) -> None:
    answer = ask(worker, n=3, temperature=1)
    assert [choice["message"]["reasoning_content"] for choice in answer["choices"]] == [THOUGHT] * 3
    assert thought_tokens(answer) == 3 * count(THINK + THOUGHT + END_THINK)


def test_the_prefix_cache_serves_thinking_and_plain_requests(worker: Worker) -> None:
    messages = [{"role": "user", "content": "a long question " * 8}]
    first, again = ask(worker, messages=messages), ask(worker, messages=messages)
    off = ask(worker, messages=messages, reasoning_effort="none")
    cached = [item["usage"]["prompt_tokens_details"]["cached_tokens"] for item in (first, again, off)]
    assert cached[0] == 0
    assert cached[1] > 0
    assert cached[2] > 0
    assert said(again) == said(first) == (THOUGHT, ANSWER, "stop")


def test_the_template_gets_an_earlier_thought(worker: Worker) -> None:
    """Qwen3's template shows the thought of a turn that still goes on."""
    call = {"id": "c", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    turn = {"role": "assistant", "content": "", "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "c", "content": "12"}
    counts = [
        worker.call("/tokenize", {"messages": [USER, {**turn, **thought}, result]})[1]["count"]
        for thought in ({}, {"reasoning_content": "so it is"}, {"reasoning": "so it is"})
    ]
    assert counts[1] == counts[2] == counts[0] + count(f"{THINK}\nso it is\n{END_THINK}\n\n")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"chat_template_kwargs": {"no_such": 1}}, "chat_template_kwargs.no_such"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"x": [[[[1]]]]}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"x": "y" * 5000}}, "chat_template_kwargs"),
        ({"reasoning_effort": "huge"}, "reasoning_effort"),
        (
            {"reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": False}},
            "chat_template_kwargs.enable_thinking",
        ),
        ({"thinking_token_budget": -1}, "thinking_token_budget"),
        ({"include_reasoning": "no"}, "include_reasoning"),
    ],
)
def test_bad_parameters_are_refused_by_name(worker: Worker, body: dict[str, Any], param: str) -> None:
    assert refused(worker, **body) == param


def test_tokenize_knows_the_template_arguments(worker: Worker) -> None:
    counts = [
        worker.call("/tokenize", {"messages": [USER]} | more)[1]["count"]
        for more in ({}, {"chat_template_kwargs": {"enable_thinking": False}}, {"reasoning_effort": "none"})
    ]
    assert counts[1] == counts[2] == counts[0] + count(f"{THINK}\n\n{END_THINK}\n\n")
