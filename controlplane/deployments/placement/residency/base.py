"""A copy's memory of adapters, as its server tells of it and lets it be changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import httpx

from contracts.adapters.reference import AdapterRef
from controlplane.deployments.provisioners.base import ProvisioningError
from controlplane.platform.http.tls import tls_context

CONNECT_SECONDS: Final = 3.0
LOOK_SECONDS: Final = 5.0
LOAD_SECONDS: Final = 60.0
"""Loading reads files, perhaps from a bucket; longer than a lease it may not take."""


@dataclass(frozen=True, slots=True)
class Held:
    """An adapter in a copy's memory.

    Attributes:
        tier: `device`, `host`, or `server` where the server does not tell.
        pinned: it was placed there, and stays.
        sha256: "" where the server knows names alone.
        nbytes, requests, idle_seconds: None where the server does not tell.
    """

    tier: str
    pinned: bool
    sha256: str = ""
    nbytes: int | None = None
    requests: int | None = None
    idle_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Memory:
    """What a copy holds, by the first 12 digits of a digest or by engine name, whichever its server knows.

    Attributes:
        max_bytes, pinned_bytes, nbytes: of all adapters; None where the server does not tell.
        disk: first 12 digits of the digests whose files are on its disk; filled in where that is asked for.
    """

    adapters: Mapping[str, Held] = field(default_factory=dict)
    nbytes: int | None = None
    max_bytes: int | None = None
    pinned_bytes: int | None = None
    disk: frozenset[str] = frozenset()

    def of(self, ref: AdapterRef) -> Held | None:
        """The adapter there; None where it is not in memory."""
        return self.adapters.get(ref.name) or self.adapters.get(ref.sha256[:12])


class Residency(Protocol):
    """One copy's. Every method but `close` raises ProvisioningError, transient when the copy is away."""

    def memory(self) -> Memory:
        """What is there now."""

    def on_disk(self) -> frozenset[str]:
        """First 12 digits of digests whose files are on its disk; none where the server does not tell."""

    def pin(self, ref: AdapterRef) -> None:
        """Loads it and keeps it; returns when it is in memory. Done twice, nothing changes."""

    def unpin(self, ref: AdapterRef) -> None:
        """Lets it leave when room is needed."""

    def evict(self, ref: AdapterRef) -> bool:
        """Unpins it and lets it go, with its last request where it has some; whether it has left."""

    def close(self) -> None:
        """Lets connections go."""


class CopyClient:
    """Calls to one copy, its refusals as ProvisioningError."""

    def __init__(self, url: str, token: str) -> None:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        self.url = url
        self._http = httpx.Client(
            headers=headers, timeout=LOOK_SECONDS, trust_env=False, verify=tls_context()
        )

    def call(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, seconds: float = LOOK_SECONDS
    ) -> httpx.Response:
        """Raises ProvisioningError: transient, when it does not answer or has no room at this moment."""
        try:
            limits = httpx.Timeout(seconds, connect=CONNECT_SECONDS)
            answer = self._http.request(method, self.url + path, json=body, timeout=limits)
        except httpx.HTTPError as error:
            raise ProvisioningError(
                f"{self.url} does not answer: {error}", transient=True, code="away"
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
