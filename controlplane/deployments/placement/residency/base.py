"""Contract of residency clients: read which adapters a copy has in memory; pin, unpin and evict them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import httpx

from contracts.adapters.reference import AdapterRef
from controlplane.deployments.provisioners.base import ProvisioningError
from controlplane.platform.http.tls import tls_context

CONNECT_SECONDS: Final = 3.0
POLL_SECONDS: Final = 5.0
LOAD_SECONDS: Final = 60.0
"""Loading reads files, perhaps from a bucket; it must not outlast a lease."""


@dataclass(frozen=True, slots=True)
class Resident:
    """An adapter in a copy's memory.

    Attributes:
        tier: `device`, `host`, or `server` if the server does not report it.
        pinned: it was placed there and stays, or is registered on a server that knows only names.
        sha256: digest of its content; "" if the server knows only names.
        nbytes, requests, idle_seconds: None if the server does not report them.
    """

    tier: str
    pinned: bool
    sha256: str = ""
    nbytes: int | None = None
    requests: int | None = None
    idle_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Memory:
    """Adapters in a copy's memory.

    Attributes:
        adapters: by the first 12 digits of the digest or by engine name, whichever the server knows.
        max_bytes, pinned_bytes, nbytes: totals over all adapters; None if the server does not report them.
        disk: first 12 digits of each digest with files on the copy's disk; filled in on request.
    """

    adapters: Mapping[str, Resident] = field(default_factory=dict)
    nbytes: int | None = None
    max_bytes: int | None = None
    pinned_bytes: int | None = None
    disk: frozenset[str] = frozenset()

    def entry(self, ref: AdapterRef) -> Resident | None:
        """Return the adapter's entry; None if it is not in memory."""
        return self.adapters.get(ref.name) or self.adapters.get(ref.sha256[:12])


class Residency(Protocol):
    """Access to one copy's memory.

    Every method but `close` raises ProvisioningError, which is transient if the copy does not answer.
    """

    def memory(self) -> Memory:
        """Return the adapters in memory now."""

    def on_disk(self) -> frozenset[str]:
        """Return the first 12 digits of each digest on disk; empty if the server does not report them."""

    def pin(self, ref: AdapterRef) -> None:
        """Load the adapter and keep it in memory; returns once it is loaded. Idempotent."""

    def unpin(self, ref: AdapterRef) -> None:
        """Allow the server to drop the adapter when it needs room."""

    def evict(self, ref: AdapterRef) -> bool:
        """Unpin the adapter and drop it after its last request; return True if it has already left."""

    def close(self) -> None:
        """Close connections."""


class CopyClient:
    """HTTP client of one copy; raises its refusals as ProvisioningError."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self.url = url
        self._http = httpx.Client(
            headers=headers, timeout=POLL_SECONDS, trust_env=False, verify=tls_context()
        )

    def call(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, seconds: float = POLL_SECONDS
    ) -> httpx.Response:
        """Call the copy's API.

        Raises:
            ProvisioningError: it refuses; transient if it does not answer or has no room at this moment.
        """
        try:
            limits = httpx.Timeout(seconds, connect=CONNECT_SECONDS)
            answer = self._http.request(method, self.url + path, json=body, timeout=limits)
        except httpx.HTTPError as error:
            raise ProvisioningError(
                f"{self.url} does not respond: {error}", transient=True, code="away"
            ) from error
        if answer.is_success:
            return answer
        text = f"{self.url} refuses {method} {path} ({answer.status_code}): {_reason(answer)}"
        transient = answer.status_code in (408, 429) or answer.status_code >= 500
        raise ProvisioningError(text, transient=transient, code=str(answer.status_code))

    def close(self) -> None:
        self._http.close()


def _reason(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"]["message"])[:500]
    except (ValueError, KeyError, TypeError):
        return answer.text[:300]
