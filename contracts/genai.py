"""OpenTelemetry's semantic conventions for generative AI: the one place that knows their names.

They are in development and change from release to release; these are of version 1.41. Prompts and answers,
for which the conventions have names too, are never told.
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
}


def operation(path: str) -> str:
    """What a call of an endpoint is called."""
    return _OPERATIONS.get(path, "generate_content")


def span_name(path: str, model: str) -> str:
    """`chat llama`, or the operation alone while the model is not known."""
    return f"{operation(path)} {model}".rstrip()


def operation_of(path: str) -> dict[str, str | int | float | bool]:
    """Attributes of a call whose model is not known yet."""
    return {"gen_ai.operation.name": operation(path), "gen_ai.provider.name": PROVIDER}


def request(path: str, model: str) -> dict[str, str | int | float | bool]:
    """Attributes of a call of `model`."""
    return {**operation_of(path), "gen_ai.request.model": model}


def response(model: str) -> dict[str, str | int | float | bool]:
    """What really answered."""
    return {"gen_ai.response.model": model}


def usage(*, prompt: int, cached: int, completion: int) -> dict[str, str | int | float | bool]:
    """Tokens; cached ones are among the prompt's."""
    return {
        "gen_ai.usage.input_tokens": prompt,
        "gen_ai.usage.cache_read.input_tokens": cached,
        "gen_ai.usage.output_tokens": completion,
    }


def first_token(seconds: float) -> dict[str, str | int | float | bool]:
    """From the request to the first token."""
    return {"gen_ai.response.time_to_first_chunk": seconds}


def failure(kind: str) -> dict[str, str | int | float | bool]:
    """A word for what went wrong, of a small set."""
    return {"error.type": kind}
