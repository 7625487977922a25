"""The HTTP client that all backends share: sends one request, and translates its errors."""

from __future__ import annotations

import logging
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from gateway.backends.base import BackendRequest
from gateway.backends.context_length import CODE, in_openai_words
from gateway.backends.error_event import ENGINE_DEAD
from gateway.errors import (
    EngineDied,
    GatewayError,
    UpstreamBroken,
    UpstreamBusy,
    UpstreamFailed,
    UpstreamRefused,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from gateway.http import client as http_client

logger = logging.getLogger(__name__)

SILENCE_SECONDS: Final = 300.0
"""Longest wait for a stream's next byte: a long prompt in a long queue."""
WHOLE_SECONDS: Final = 3600.0
"""Longest wait for an answer that does not stream, and so is silent until its last token. Hang-ups end it."""
_ERROR_BYTES: Final = 64 << 10
_CLIENTS: Final = frozenset({400, 413, 422, 429})
"""Statuses about the client's own request. All others are between the backend and the gateway."""
_CODES: Final = {
    400: "invalid_value",
    413: "payload_too_large",
    422: "invalid_value",
    429: "rate_limit_exceeded",
}
"""Error codes by status, for backends that give none, or only the status, as vLLM does."""
_VLLM_TYPES: Final = frozenset({"BadRequestError", "BadRequest", "validation"})


def backend_tls(ca: Path | None) -> ssl.SSLContext:
    """Return the TLS context that verifies copies by the system's authorities and, if given, `ca`.

    Raises:
        OSError: `ca` cannot be read, or holds no certificate in PEM.
    """
    context = ssl.create_default_context()
    if ca is not None:
        context.load_verify_locations(cafile=ca)
    return context


class Upstream:
    """A pool of connections to copies.

    Args:
        tls: context that verifies `https://` servers; None for the system's authorities.
    """

    def __init__(
        self,
        *,
        silence_seconds: float = SILENCE_SECONDS,
        whole_seconds: float = WHOLE_SECONDS,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._silence = {True: silence_seconds, False: whole_seconds}
        self._client = http_client.HttpClient(tls=tls)

    async def post(
        self, request: BackendRequest, body: Mapping[str, Any], headers: Mapping[str, str]
    ) -> UpstreamStream:
        """Start `request` at the client's path; see `Backend.stream` for the errors."""
        headers = {**headers, "content-type": "application/json", **request.headers}
        url = request.copy.url + request.call.path
        response = await self.open(url, orjson.dumps(body), headers, stream=request.call.stream)
        if isinstance(response, Refusal):
            raise response.error(request.request_id)
        return response

    async def open(
        self, url: str, data: bytes, headers: Mapping[str, str], *, stream: bool, method: str = "POST"
    ) -> UpstreamStream | Refusal:
        """Send `data`; return a started answer with HTTP 200, or a refusal read to its end.

        Args:
            url: percent-encoded, sent as it is.
            stream: True if the client wants events; otherwise a server may be silent until its end.

        Raises:
            UpstreamUnreachable: nothing was sent.
            UpstreamBroken, UpstreamTimeout: the connection broke, or no answer began.
        """
        silence = self._silence[stream]
        try:
            answer = await self._client.send(method, url, data, headers, silence=silence)
        except http_client.Refused as error:
            raise UpstreamUnreachable("No copy of this model answers at this moment; retry later.") from error
        except http_client.TimedOut as error:
            raise UpstreamTimeout("The backend did not answer in time; retry later.") from error
        except http_client.Broken as error:
            raise UpstreamBroken("The backend closed the connection without an answer; retry.") from error
        stream_of = UpstreamStream(self._client, answer, silence)
        return stream_of if answer.status == 200 else await _read_refusal(stream_of, answer)

    async def close(self) -> None:
        await self._client.close()


class UpstreamStream:
    """A started response."""

    __slots__ = ("_answer", "_client", "_silence")

    def __init__(
        self, client: http_client.HttpClient, answer: http_client.Connection, silence: float
    ) -> None:
        self._client = client
        self._answer: http_client.Connection | None = answer
        self._silence = silence

    async def read(self) -> bytes:
        if self._answer is None:
            raise RuntimeError("an answer is not read once it is closed")
        try:
            return await self._answer.read()
        except http_client.TimedOut as error:
            raise UpstreamTimeout(f"The backend sent nothing for {self._silence:g} s.") from error
        except http_client.Broken as error:
            raise UpstreamBroken("The backend broke off in the middle of its answer.") from error

    def close(self) -> None:
        # Release only once: the connection may belong to another request by then.
        if self._answer is not None:
            self._client.release(self._answer)
            self._answer = None


_ENGINE_DEAD: Final = re.compile(rb'"message"\s*:\s*"' + ENGINE_DEAD.encode())
"""The message's beginning: texts of clients, which an error may repeat, stand elsewhere or escaped."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A whole response with a status other than 200; header names are in lower case."""

    status: int
    body: bytes
    headers: Mapping[str, str]

    @property
    def engine_died(self) -> bool:
        """True for vLLM's answer after its engine died: the server is about to end."""
        return self.status == 500 and _ENGINE_DEAD.search(self.body) is not None

    def error(self, request_id: str) -> GatewayError:
        """Return the client's error; details that are not for the client are logged."""
        openai = self._openai_error()
        retry_after = self.headers.get("retry-after")
        if self.status not in _CLIENTS:
            # The text may hold paths and tokens and repeat the prompt, so it is not passed on. The backend's
            # own log has it under the same request id.
            logger.warning(
                "request %s: the backend answered %d in %d bytes, code %.100r, type %.100r",
                request_id,
                self.status,
                len(self.body),
                openai.get("code"),
                openai.get("type"),
            )
            if self.engine_died:
                return EngineDied()
            if self.status == 503 and retry_after is not None:
                return UpstreamBusy(retry_after, code=str(openai.get("code")))
            kind = UpstreamBroken if self.status in (502, 503, 504) else UpstreamFailed
            return kind(f"The backend failed on this request. Name {request_id} when you report it.")
        return refused(self.status, {"message": self._text(), **openai}, retry_after)

    def _openai_error(self) -> dict[str, Any]:
        """Return the error object, which older vLLM sends as the whole body."""
        value = self._json()
        error = value.get("error", value if value.get("object") == "error" else None)
        return error if isinstance(error, dict) else {}

    def _text(self) -> str:
        """Return the message of a body without an error object."""
        value = self._json()
        texts = (value.get(name) for name in ("error", "message", "detail"))
        named = next((text for text in texts if isinstance(text, str) and text), None)
        return named or self.body[:500].decode("utf-8", "replace") or f"the backend answered {self.status}"

    def _json(self) -> dict[str, Any]:
        try:
            value = orjson.loads(self.body)
        except orjson.JSONDecodeError:
            return {}
        return value if isinstance(value, dict) else {}


def refused(status: int, error: Mapping[str, Any], retry_after: str | None = None) -> UpstreamRefused:
    """Return a backend's refusal in OpenAI's form, in which `code` is a word.

    A request that exceeds the context gets OpenAI's status, code and text, whatever the server sends.
    """
    text, code = str(error.get("message") or ""), error.get("code")
    if not isinstance(code, str) or not code or code.isdecimal():
        code = _CODES[status]
    if overflow := in_openai_words(text, code):
        status, text, code = 400, overflow, CODE
    kind = str(error.get("type") or "")
    if not kind or kind in _VLLM_TYPES or code == CODE:
        kind = "invalid_request_error"
    body = {"message": text, "type": kind, "code": code, "param": error.get("param")}
    return UpstreamRefused(status, orjson.dumps({"error": body}), code, retry_after)


async def _read_refusal(stream: UpstreamStream, answer: http_client.Connection) -> Refusal:
    body = b""
    try:
        while len(body) < _ERROR_BYTES and (part := await stream.read()):
            body += part
    except (UpstreamBroken, UpstreamTimeout):
        body = b""
    finally:
        stream.close()
    return Refusal(answer.status, body[:_ERROR_BYTES], answer.headers)
