"""A request longer than the context reads alike whichever server refuses it."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from gateway.backends.error_event import stream_error
from gateway.backends.sagemaker_errors import _container_error
from gateway.backends.upstream import Refusal
from gateway.errors import BadRequest, ContextLengthExceeded, UpstreamRefused, render

OVERFLOWS = {
    "vLLM, chat": (
        "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens (4900 in the "
        "messages, 100 in the completion). Please reduce the length of the messages or completion."
    ),
    "vLLM, max_tokens": (
        "'max_tokens' or 'max_completion_tokens' is too large: 5000. This model's maximum context length is "
        "4096 tokens and your request has 100 input tokens (5000 > 4096 - 100)."
    ),
    "vLLM, prompt": "The decoder prompt (length 5000) is longer than the maximum model length of 4096.",
    "vLLM, input": "Input length (5000) exceeds model's maximum context length (4096).",
    "SGLang": "The input (5000 tokens) is longer than the model's context length (4096 tokens).",
    "SGLang, both": "Requested token count exceeds the model's maximum context length of 4096 tokens.",
    "TGI": (
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` "
        "tokens and 10 `max_new_tokens`"
    ),
    "llama.cpp": "request (5000 tokens) exceeds the available context size (4096 tokens), try increasing it",
}


def sent(status: int, body: Any) -> tuple[int, dict[str, Any]]:
    """Status and error object that the client gets for a backend's refusal."""
    answered, content, _ = render(Refusal(status, orjson.dumps(body), {}).error("r-1"))
    return answered, orjson.loads(content)["error"]


@pytest.mark.parametrize("server", OVERFLOWS)
@pytest.mark.parametrize("form", ["error", "whole body", "text"])
def test_a_refusal_has_openais_words_and_code(server: str, form: str) -> None:
    text = OVERFLOWS[server]
    error = {"message": text, "type": "BadRequestError", "param": None, "code": 400}
    body = {"error": {"error": error}, "whole body": {"object": "error", **error}, "text": {"error": text}}[
        form
    ]
    status, told = sent(422 if form == "text" else 400, body)
    assert (status, told["code"], told["type"]) == (400, "context_length_exceeded", "invalid_request_error")
    assert "maximum context length is 4096 tokens" in told["message"]
    assert text in told["message"]


@pytest.mark.parametrize("server", OVERFLOWS)
def test_a_container_on_sagemaker_and_a_stream_say_the_same(server: str) -> None:
    refusal = _container_error(424, orjson.dumps({"error": OVERFLOWS[server], "code": 424}), "r-1")
    assert isinstance(refusal, UpstreamRefused)
    assert (refusal.upstream_status, refusal.upstream_code) == (400, "context_length_exceeded")
    failure = stream_error({"message": OVERFLOWS[server], "code": 500}, "r-1")
    assert type(failure) is ContextLengthExceeded
    assert failure.message.startswith("This model's maximum context length is 4096 tokens. However")
    assert "5000" not in failure.message, "the backend's own text stays with it"


def test_a_code_is_enough_and_other_errors_are_left() -> None:
    status, told = sent(400, {"error": {"message": "too long", "code": "context_length_exceeded"}})
    assert "maximum context length is" in told["message"]
    assert (
        type(stream_error({"message": "x", "code": "context_length_exceeded"}, "r")) is ContextLengthExceeded
    )
    assert type(stream_error({"message": "temperature", "code": 400}, "r")) is BadRequest
    status, told = sent(400, {"error": {"message": "bad", "type": "BadRequestError", "code": 400}})
    assert (status, told) == (
        400,
        {"message": "bad", "type": "invalid_request_error", "code": "invalid_value", "param": None},
    )


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, "invalid_value"),
        (413, "payload_too_large"),
        (422, "invalid_value"),
        (429, "rate_limit_exceeded"),
    ],
)
def test_a_code_is_never_null(status: int, code: str) -> None:
    bodies: list[object] = [
        {"error": {"message": "m", "code": None}},
        {"error": "m"},
        {"message": "m"},
        "m",
        {},
        {"error": {}},
    ]
    for body in bodies:
        answered, told = sent(status, body)
        assert (answered, told["code"]) == (status, code)
        assert told["message"]
