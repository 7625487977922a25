"""The contract between the gateway and what serves tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gateway.openai_schema import Call
from gateway.routing import Resolution
from gateway.wire import CopyRoute


@dataclass(frozen=True, slots=True)
class BackendRequest:
    """One call of one copy.

    Attributes:
        call: the checked client request.
        resolution: base model and adapter that it goes to.
        copy: where to.
        request_id: the gateway's own; the backend logs under it.
        cache_salt: hex, the tenant's: keeps prefix caches of tenants apart.
        tenant: whose request it is, for a backend that shares itself fairly among tenants.
    """

    call: Call
    resolution: Resolution
    copy: CopyRoute
    request_id: str
    cache_salt: str
    tenant: str


class BackendStream(Protocol):
    """An answer with HTTP 200 that has begun: server-sent events if the call streams, else one JSON body."""

    async def read(self) -> bytes:
        """What has arrived, at least one byte; b"" at the end.

        Raises:
            UpstreamFailed: the connection broke.
            UpstreamTimeout: nothing came for too long.
        """

    def close(self) -> None:
        """Cancels the backend's work if the end has not been read. Never fails or waits."""


class Backend(Protocol):
    """A kind of backend: one verb and a close."""

    def model_name(self, request: BackendRequest) -> str:
        """What the backend calls the model in its answers."""

    async def stream(self, request: BackendRequest) -> BackendStream:
        """Starts `request`.

        Raises:
            UpstreamUnreachable: nothing was sent; another copy may be tried.
            UpstreamRefused: a 400, 413, 422 or 429 about this request.
            UpstreamBusy: a 503 that says when to retry.
            UpstreamFailed: any other status, or a broken connection.
            UpstreamTimeout: no answer began in time.
        """

    async def close(self) -> None:
        """Closes idle connections."""
