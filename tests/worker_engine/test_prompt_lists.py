"""Completions of several prompts on a real process: each answers as it would alone."""

from __future__ import annotations

from typing import Any

import pytest

from tests.worker_engine.test_generation_api import events
from tests.worker_engine.tiny_model import byte_tokenizer
from tests.worker_process import Worker

PROMPTS = ["hello", "the cät sat", "x", "a longer one, of some more bytes than the others have"]
ASK: dict[str, Any] = {"model": "tiny", "max_tokens": 7, "seed": 3, "ignore_eos": True}


def complete(worker: Worker, prompt: object, **body: object) -> Any:
    status, answer = worker.call("/v1/completions", ASK | {"prompt": prompt} | body)
    assert status == 200, answer
    return answer


def ids(text: str) -> list[int]:
    return list(byte_tokenizer().encode(text).ids)


@pytest.mark.parametrize("form", [str, ids])
@pytest.mark.parametrize("options", [{}, {"echo": True, "logprobs": 2}, {"prompt_logprobs": 1}])
def test_each_prompt_answers_as_it_would_alone(worker: Worker, form: Any, options: dict[str, Any]) -> None:
    alone = [complete(worker, form(prompt), n=2, **options) for prompt in PROMPTS]
    together = complete(worker, [form(prompt) for prompt in PROMPTS], n=2, **options)
    assert [choice["index"] for choice in together["choices"]] == list(range(8))
    for at, choice in enumerate(together["choices"]):
        wanted = alone[at // 2]["choices"][at % 2]
        assert choice["text"] == wanted["text"]
        assert choice["finish_reason"] == wanted["finish_reason"] == "length"
        assert bool(options.get("echo")) is choice["text"].startswith(PROMPTS[at // 2])
        if wanted["logprobs"]:
            assert choice["logprobs"]["tokens"] == wanted["logprobs"]["tokens"]
            assert choice["logprobs"]["text_offset"] == wanted["logprobs"]["text_offset"]
        if "prompt_logprobs" in options:
            assert len(choice["prompt_logprobs"]) == len(ids(PROMPTS[at // 2]))
    usage = together["usage"]
    assert usage["prompt_tokens"] == sum(len(ids(prompt)) for prompt in PROMPTS)
    assert usage["completion_tokens"] == 8 * 7
    assert usage["total_tokens"] == usage["prompt_tokens"] + 56


def test_a_stream_names_the_choice_and_its_usage_grows_to_the_sum(worker: Worker) -> None:
    whole = complete(worker, PROMPTS, n=3)
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = events(complete(worker, PROMPTS, n=3, stream=True, stream_options=options))
    texts = [""] * 12
    for chunk in chunks[:-1]:
        [choice] = chunk["choices"]
        texts[choice["index"]] += choice["text"]
    assert texts == [choice["text"] for choice in whole["choices"]]
    for name in ("prompt_tokens", "completion_tokens"):
        counts = [chunk["usage"][name] for chunk in chunks]
        assert counts == sorted(counts)
        assert counts[-1] == whole["usage"][name]


def test_openais_client_sends_lists(worker: Worker) -> None:
    answer = worker.client.completions.create(model="tiny", prompt=PROMPTS, max_tokens=1, temperature=0)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    scored = worker.client.completions.create(
        model="tiny", prompt=[ids(prompt) for prompt in PROMPTS], max_tokens=0, echo=True, logprobs=1
    )
    assert [choice.text for choice in scored.choices] == PROMPTS
    assert scored.usage is not None
    assert scored.usage.completion_tokens == 0


def test_a_list_is_refused_whole_by_the_prompt_at_fault(worker: Worker) -> None:
    status, body = worker.call("/v1/completions", ASK | {"prompt": ["ok", "x" * 510, "ok"]})
    assert (status, body["error"]["code"]) == (400, "context_length_exceeded")
    assert "(510 in your prompt[1]; 7 for the completion)" in body["error"]["message"]
    status, body = worker.call("/v1/completions", ASK | {"prompt": ["ok", ""]})
    assert (status, body["error"]["param"]) == (400, "prompt")
    assert body["error"]["message"].startswith("prompt[1] must not be empty")
    assert worker.metric("requests_running") == worker.metric("requests_waiting") == 0
