"""Answers a POST with an Idempotency-Key: first by a backend, later from the store."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Awaitable, Callable
from typing import Final

from redis.exceptions import RedisError

from gateway.api.bodies import Bodies
from gateway.errors import (
    BadRequest,
    IdempotencyConflict,
    IdempotencyInProgress,
    IdempotencyUnavailable,
)
from gateway.http.asgi import Header, Message, Receive, Scope, Send, header, respond
from gateway.idempotency.seal import MAX_ANSWER_BYTES, StoredAnswer, Unreadable
from gateway.idempotency.store import LEASE_SECONDS, AnswerStore, Claim, State
from gateway.observability import RequestTrace
from gateway.routing import Authorizer
from gateway.routing.route_feed import RouteFeed

logger = logging.getLogger(__name__)

HEADER: Final = b"idempotency-key"
_KEY: Final = re.compile(r"[\x21-\x7e]{1,255}")
_REPLAYED: Final[Header] = (b"idempotent-replayed", b"true")
_KEPT_HEADERS: Final = frozenset(
    {
        b"content-type",
        b"cache-control",
        b"x-accel-buffering",
        b"x-graftwork-served-model",
        b"x-graftwork-adapter",
    }
)

Serve = Callable[[Scope, Receive, Send, RequestTrace, list[Header]], Awaitable[bool]]
"""Answers a request; True when the answer was whole."""


class Idempotency:
    """Wraps request handling. Without Redis such a request is refused, which is better than billed twice."""

    def __init__(
        self, feed: RouteFeed, authorizer: Authorizer, bodies: Bodies, store: AnswerStore, serve: Serve
    ) -> None:
        self._feed, self._authorizer, self._bodies, self._store = feed, authorizer, bodies, store
        self._serve = serve

    async def serve(
        self, scope: Scope, receive: Receive, send: Send, trace: RequestTrace, headers: list[Header]
    ) -> None:
        """Answer one request that has the header.

        Raises:
            BadRequest: the key is malformed.
            IdempotencyConflict: the key belongs to another request, or to an answer that is not kept.
            IdempotencyInProgress: its first request is still running.
            IdempotencyUnavailable: Redis does not answer.
            GatewayError: from the request itself.
        """
        key = header(scope, HEADER).decode("latin-1")
        if _KEY.fullmatch(key) is None:
            raise BadRequest(
                "Idempotency-Key must be 1 to 255 visible ASCII characters.", param="Idempotency-Key"
            )
        caller = self._authorizer.authorize(self._feed.current(), scope)
        trace.tenant, trace.key_id = caller.tenant, caller.key_id
        trace.pause()
        body = await self._bodies.read(scope, receive)
        trace.resume()
        claim = self._store.name(caller.key_id, scope["path"], key, trace.request_id)
        if (answer := await self._claim(claim, body)) is not None:
            await respond(send, 200, answer.body, [*answer.headers, _REPLAYED, *headers])
            return
        recorder = Recorder(send)
        renewal = asyncio.create_task(self._renew(claim))
        whole = False
        try:
            again = _replay(body, receive)
            whole = await self._serve(scope, again, recorder.send, trace, headers)
        finally:
            renewal.cancel()
            await self._end(claim, recorder, whole)
        # The answer must be stored before the client sees its end.
        await recorder.finish()

    async def _claim(self, claim: Claim, body: bytes) -> StoredAnswer | None:
        try:
            state, answer = await self._store.claim(claim, body)
        except Unreadable:
            raise IdempotencyConflict(
                "The answer under this Idempotency-Key can no longer be read. Send another key."
            ) from None
        except (RedisError, OSError, TimeoutError) as error:
            raise IdempotencyUnavailable(
                "Requests with an Idempotency-Key cannot be told apart at this moment. Retry later, or send "
                "the request without the header."
            ) from error
        if state is State.OTHER:
            raise IdempotencyConflict(
                "This Idempotency-Key was sent with another body. Send each request under a key of its own."
            )
        if state is State.DROPPED:
            raise IdempotencyConflict(
                "The request under this Idempotency-Key was answered, but the answer was too large to keep. "
                "Send another key to have it computed, and billed, again."
            )
        if state is State.OPEN:
            raise IdempotencyInProgress(
                "The first request under this Idempotency-Key is being answered. Retry in a moment."
            )
        return answer

    async def _end(self, claim: Claim, recorder: Recorder, whole: bool) -> None:
        try:
            if whole and recorder.status == 200:
                await self._store.keep(claim, recorder.answer())
            else:
                await self._store.free(claim)
        except (RedisError, OSError, TimeoutError) as error:
            logger.warning("an idempotent answer is not kept: %s", error)

    async def _renew(self, claim: Claim) -> None:
        while True:
            await asyncio.sleep(LEASE_SECONDS / 4)
            with contextlib.suppress(RedisError, OSError, TimeoutError):
                await self._store.renew(claim)


class Recorder:
    """Passes an answer on, except its last message, and keeps a copy.

    Attributes:
        status: HTTP status, 0 before it is known.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._headers: list[Header] = []
        self._parts: list[bytes] = []
        self._size = 0
        self._last: Message | None = None
        self.status = 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self._headers = [item for item in message["headers"] if item[0] in _KEPT_HEADERS]
        else:
            part = message.get("body", b"")
            self._size += len(part)
            if self._size <= MAX_ANSWER_BYTES:
                self._parts.append(part)
            if not message.get("more_body"):
                self._last = message
                return
        await self._send(message)

    async def finish(self) -> None:
        """Send the last message."""
        if self._last is not None:
            await self._send(self._last)

    def answer(self) -> StoredAnswer | None:
        """Return the answer, or None if it is too large to be kept."""
        if self._size > MAX_ANSWER_BYTES:
            return None
        return StoredAnswer(self._headers, b"".join(self._parts))


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that first repeats the body, which has been read."""
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return first.pop() if first else await receive()

    return again
