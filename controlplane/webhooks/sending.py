"""Sends one attempt to an endpoint: a signed POST by the guarded HTTP client."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import httpx2

from controlplane.errors import OutgoingRefusedError, UnsealError
from controlplane.platform.http.outgoing import outgoing_client
from controlplane.platform.sealing import unseal
from controlplane.webhooks.models import WebhookEndpoint, WebhookEvent
from controlplane.webhooks.signing import signed_headers

TIMEOUT_S: Final = 10.0
"""Seconds for connecting, and for each read and write."""
_TOTAL_S: Final = 2 * TIMEOUT_S
"""Time limit for the whole request, so that a slow endpoint does not occupy a worker."""
_MAX_ANSWER: Final = 500
_LONGEST_WAIT_S: Final = 86_400


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of an attempt.

    Attributes:
        status: HTTP status; None without an answer.
        answer: beginning of the body, or the error.
        retry_after: least seconds to wait, as the endpoint asks.
    """

    status: int | None
    answer: str
    duration_ms: int
    retry_after: int = 0

    @property
    def is_delivered(self) -> bool:
        return self.status is not None and 200 <= self.status < 300


def event_body(event: WebhookEvent) -> bytes:
    """Return the request's body, the same bytes at each attempt."""
    body = {"type": event.type, "timestamp": event.created_at.isoformat(), "data": event.data}
    return json.dumps(body, separators=(",", ":"), sort_keys=True).encode()


def send(event: WebhookEvent, endpoint: WebhookEndpoint) -> Outcome:
    """Send one attempt and return its outcome, also for errors. Redirects are not followed."""
    start = time.monotonic()
    try:
        body = event_body(event)
        headers = signed_headers(
            message_id=event.pk, timestamp=int(time.time()), body=body, keys=_keys(endpoint)
        )
        headers |= {"content-type": "application/json", "user-agent": "graftwork-webhooks/1"}
        with (
            outgoing_client(total=_TOTAL_S, timeout=TIMEOUT_S) as client,
            client.stream("POST", endpoint.url, content=body, headers=headers) as reply,
        ):
            return Outcome(reply.status_code, _beginning(reply), _since(start), _retry_after(reply))
    except httpx2.TimeoutException:
        return Outcome(None, "timed out", _since(start))
    except (OutgoingRefusedError, UnsealError, httpx2.HTTPError) as error:
        text = str(error) or type(error).__name__
        return Outcome(None, text.replace("\0", "")[:_MAX_ANSWER], _since(start))


def _keys(endpoint: WebhookEndpoint) -> list[str]:
    sealed = [endpoint.secret, endpoint.old_secret] if endpoint.overlaps else [endpoint.secret]
    return [unseal(text, place=endpoint.sealing_place) for text in sealed]


def _beginning(reply: httpx2.Response) -> str:
    """Return the beginning of the body as far as it arrives in time; the status is known already.

    The body is read raw, since decompressed data could be of any size.
    """
    data = b""
    with suppress(httpx2.TimeoutException):
        for piece in reply.iter_raw():
            data += piece
            if len(data) >= _MAX_ANSWER:
                break
    return data[:_MAX_ANSWER].decode(errors="replace").replace("\0", "")[:_MAX_ANSWER]


def _retry_after(reply: httpx2.Response) -> int:
    text = reply.headers.get("retry-after", "")
    return min(int(text), _LONGEST_WAIT_S) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def _since(start: float) -> int:
    return int((time.monotonic() - start) * 1000)
