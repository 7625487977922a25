"""Translation between the API that a client speaks and the API of backends."""

from __future__ import annotations

from gateway.api.schema import Call
from gateway.errors import GatewayError, error_event


class ApiDialect:
    """The dialect of backends: requests and answers pass through unchanged.

    Attributes:
        call: the checked request.
    """

    def __init__(self, call: Call) -> None:
        self.call = call

    def whole(self, body: bytes) -> bytes:
        """Translate a whole answer. Raises UpstreamFailed."""
        return body

    def events(self, block: bytes) -> bytes:
        """Translate whole events of a stream. Raises ValueError."""
        return block

    def translate(self, error: GatewayError) -> None:
        """Rewrite an error that names a parameter of the backends' dialect, for this dialect's client."""

    def failure(self, error: GatewayError) -> bytes:
        """Return the event that ends a stream which fails after its HTTP 200."""
        return error_event(error)
