"""The API that a client speaks: its request as a call of a backend, the backend's answer as its own."""

from __future__ import annotations

from gateway.errors import GatewayError, error_event
from gateway.openai_schema import Call


class Form:
    """A client that speaks what the backend speaks: answers pass through as they are.

    Attributes:
        call: the checked request.
    """

    def __init__(self, call: Call) -> None:
        self.call = call

    def whole(self, body: bytes) -> bytes:
        """A whole answer. Raises UpstreamFailed."""
        return body

    def events(self, block: bytes) -> bytes:
        """Events of a stream, for whole events of the backend. Raises ValueError."""
        return block

    def failure(self, error: GatewayError) -> bytes:
        """The event that ends a stream which fails after its HTTP 200."""
        return error_event(error)
