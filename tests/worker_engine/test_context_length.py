"""Requests longer than the context are refused with the text that litellm and LangChain match."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.worker_process import Worker, run_worker

AROUND = len("user: ") + len("\nassistant:")
"""Tokens of the chat template around one message, one a byte."""


def refusal(worker: Worker, path: str, **body: Any) -> tuple[str, str]:
    """Message and parameter of a refused overflow."""
    status, answer = worker.call(path, {"model": "tiny"} | body)
    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded"), answer
    assert answer["error"]["type"] == "invalid_request_error"
    return answer["error"]["message"], answer["error"]["param"]


def chat(worker: Worker, text: str, **body: Any) -> tuple[str, str]:
    return refusal(worker, "/v1/chat/completions", messages=[{"role": "user", "content": text}], **body)


def test_a_chat(worker: Worker) -> None:
    prompt = 400 + AROUND
    for name in ("max_tokens", "max_completion_tokens"):
        assert chat(worker, "x" * 400, **{name: 200}) == (
            "This model's maximum context length is 512 tokens. However, you requested "
            f"{prompt + 200} tokens ({prompt} in the messages, 200 in the completion). Please reduce "
            "the length of the messages or completion.",
            "messages",
        )
    assert chat(worker, "é" * 300, stream=True) == (
        "This model's maximum context length is 512 tokens. However, your messages resulted in "
        f"{600 + AROUND} tokens. Please reduce the length of the messages.",
        "messages",
    )


def test_a_completion(worker: Worker) -> None:
    assert refusal(worker, "/v1/completions", prompt="x" * 500, max_tokens=20) == (
        "This model's maximum context length is 512 tokens, however you requested 520 tokens (500 in your "
        "prompt; 20 for the completion). Please reduce your prompt; or completion length.",
        "prompt",
    )


def test_an_embedding(worker: Worker) -> None:
    words = (
        "This model's maximum context length is 512 tokens, however you requested 600 tokens (600 in your "
        "input{}; 0 for the completion). Please reduce your input; or completion length."
    )
    assert refusal(worker, "/v1/embeddings", input=[1] * 600) == (words.format(""), "input")
    assert refusal(worker, "/v1/embeddings", input=[[1], [1] * 600]) == (words.format("[1]"), "input")
    message, param = refusal(worker, "/v1/embeddings", input=["x", "x" * 7_000_000])
    assert message.startswith("This model's maximum context length is 512 tokens. However, you sent 7000000 ")
    assert "input[1]" in message
    assert param == "input"


@pytest.mark.costly("starts a worker whose memory is smaller than the context")
def test_the_workers_memory(tiny_model: Path, tmp_path: Path) -> None:
    with run_worker(tiny_model, tmp_path, "--memory-gib", "0.0002") as small:
        messages = [
            chat(small, "x" * 300, max_tokens=100)[0],
            chat(small, "x" * 450)[0],
            refusal(small, "/v1/completions", prompt="x" * 400, max_tokens=9)[0],
            refusal(small, "/v1/embeddings", input=[1] * 400)[0],
        ]
    for message in messages:
        assert message.startswith("This model's maximum context length is ")
        assert message.endswith("the model itself takes 512.")
