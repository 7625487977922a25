"""The contract between the gateway and its backends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from contracts.adapters.reference import AdapterRef
from contracts.base_routes import CopyRoute
from gateway.api.schema import Call
from gateway.routing import Resolution


@dataclass(slots=True)
class BackendRequest:
    """One call of one copy.

    Attributes:
        call: the checked client request.
        resolution: base model and adapter to serve.
        copy: the copy to call.
        request_id: the gateway's own; the backend logs it.
        cache_salt: hex, the tenant's; separates the tenants' prefix caches.
        tenant: the tenant, for a backend that schedules fairly among tenants.
        weight: the tenant's share relative to others'.
        urgency: higher goes first where requests wait; 0 is ordinary.
        traceparent: W3C's header of the attempt's span, "" when it is not traced.
        hold_seconds: how long to wait for the copy to start; 0 where another copy may answer.
        check: raises the GatewayError that the request would get now; called after a wait.
    """

    call: Call
    resolution: Resolution
    copy: CopyRoute
    request_id: str
    cache_salt: str
    tenant: str
    weight: float = 1.0
    urgency: int = 0
    traceparent: str = ""
    hold_seconds: int = 0
    check: Callable[[Resolution], None] = field(default=lambda resolution: None)

    @property
    def adapter(self) -> AdapterRef | None:
        """The adapter that the copy is to apply; None for the base model, and if it is merged in the copy."""
        return None if self.copy.merged else self.resolution.adapter

    @property
    def model_name(self) -> str:
        """The copy's name for the model: the adapter's engine name, or the base model's served name."""
        return self.resolution.route.served_name if self.adapter is None else self.adapter.name

    def origin(self) -> dict[str, Any]:
        """Return the tenant, weight and priority as fields of the worker's API, without defaults."""
        fields: dict[str, Any] = {"tenant": self.tenant}
        if self.weight != 1:
            fields["tenant_weight"] = self.weight
        if self.urgency:
            fields["priority"] = self.urgency
        return fields

    @property
    def headers(self) -> dict[str, str]:
        """Return headers with the request's ids for the backend's logs and traces."""
        traced = {"traceparent": self.traceparent} if self.traceparent else {}
        return {"x-request-id": self.request_id, **traced}


class BackendStream(Protocol):
    """A started answer with HTTP 200: server-sent events if `Call.streams`, else one JSON body."""

    async def read(self) -> bytes:
        """Return the available bytes, at least one; b"" at the end.

        Raises:
            UpstreamBroken: the connection broke.
            UpstreamTimeout: nothing came for too long.
        """

    def close(self) -> None:
        """Cancel the backend's work if the end has not been read. Never fails or waits."""


class Backend(Protocol):
    """A kind of backend."""

    async def stream(self, request: BackendRequest) -> BackendStream:
        """Start `request`.

        Raises:
            BadRequest: this kind of copy does not take such a request; nothing was sent.
            UpstreamUnreachable: nothing was sent.
            UpstreamRefused: a 400, 413, 422 or 429 about this request.
            UpstreamBusy: a 503 that says when to retry.
            UpstreamBroken: a broken connection, a 502, another 503, or a 504.
            UpstreamFailed: any other status.
            UpstreamTimeout: no answer began in time.
        """

    async def close(self) -> None:
        """Close idle connections."""
