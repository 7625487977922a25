"""The API that a client speaks: its request as a call of a backend, the backend's answer as its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from gateway.errors import GatewayError, UpstreamFailed, error_event
from gateway.openai_schema import Call
from gateway.prompts import BYTES_A_TOKEN, estimate_tokens
from gateway.sse import find_usage


class Form:
    """A client that speaks what the backend speaks: answers pass through as they are.

    Attributes:
        call: the checked request.
    """

    def __init__(self, call: Call) -> None:
        self.call = call

    def usage(self, body: bytes) -> Mapping[str, Any] | None:
        """The `usage` of a whole answer, None when there is none. Raises UpstreamFailed."""
        try:
            usage = orjson.loads(body).get("usage")
        except (orjson.JSONDecodeError, AttributeError) as error:
            raise UpstreamFailed("The backend's answer is not a JSON object.") from error
        return usage if isinstance(usage, dict) else None

    def estimate(self, body: bytes) -> tuple[int, int]:
        """(prompt tokens, completion tokens) of a whole answer that brings no usage."""
        return estimate_tokens(self.call.parameters), len(body) // BYTES_A_TOKEN

    def whole(self, body: bytes) -> bytes:
        """A whole answer. Raises UpstreamFailed."""
        return body

    def events(self, block: bytes) -> bytes:
        """Events of a stream, for whole events of the backend. Raises ValueError."""
        return block

    def failure(self, error: GatewayError) -> bytes:
        """The event that ends a stream which fails after its HTTP 200."""
        return error_event(error)


class EmbeddingsForm(Form):
    """Embeddings: megabytes of numbers, which are not parsed for the few bytes of usage behind them."""

    def usage(self, body: bytes) -> Mapping[str, Any] | None:
        if not body.lstrip().startswith(b"{"):
            raise UpstreamFailed("The backend's answer is not a JSON object.")
        return find_usage(body)

    def estimate(self, body: bytes) -> tuple[int, int]:
        return estimate_tokens(self.call.parameters), 0
