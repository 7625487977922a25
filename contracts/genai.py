"""OpenTelemetry's semantic conventions for generative AI: the one place that knows their names.

The conventions are in development and change from release to release; these are version 1.41. They also name
prompts and answers, which are never recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

Attributes = Mapping[str, str | int | float | bool]

PROVIDER: Final = "graftwork"
_OPERATIONS: Final = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
    "/v1/score": "score",
    "/v1/rerank": "rerank",
    "/v1/classify": "classify",
}
"""The last three are not in the conventions, which allow names of one's own."""


def operation(path: str) -> str:
    """Return the operation name for an endpoint's path."""
    return _OPERATIONS.get(path, "generate_content")


def span_name(path: str, model: str) -> str:
    """Return `chat llama`, or the operation alone while the model is unknown."""
    return f"{operation(path)} {model}".rstrip()


def operation_of(path: str) -> dict[str, str | int | float | bool]:
    """Return the attributes of a call whose model is not known yet."""
    return {"gen_ai.operation.name": operation(path), "gen_ai.provider.name": PROVIDER}


def request(path: str, model: str) -> dict[str, str | int | float | bool]:
    """Return the attributes of a call of `model`."""
    return {**operation_of(path), "gen_ai.request.model": model}


def response(model: str) -> dict[str, str | int | float | bool]:
    """Return the attribute that names the model that answered."""
    return {"gen_ai.response.model": model}


def usage(*, prompt: int, cached: int, completion: int) -> dict[str, str | int | float | bool]:
    """Return the token attributes; `cached` tokens are part of `prompt`."""
    return {
        "gen_ai.usage.input_tokens": prompt,
        "gen_ai.usage.cache_read.input_tokens": cached,
        "gen_ai.usage.output_tokens": completion,
    }


def first_token(seconds: float) -> dict[str, str | int | float | bool]:
    """Return the time from the request to the first token."""
    return {"gen_ai.response.time_to_first_chunk": seconds}


def failure(kind: str) -> dict[str, str | int | float | bool]:
    """Return the error attribute; `kind` must come from a small set."""
    return {"error.type": kind}
