"""Answers a POST with an Idempotency-Key: first by a backend, later from the store."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Awaitable, Callable
from typing import Final

from redis.exceptions import RedisError

from gateway.errors import BadRequest, IdempotencyConflict, IdempotencyInProgress, IdempotencyUnavailable
from gateway.http.asgi import Header, Message, Scope, Send, header, respond
from gateway.idempotency.seal import MAX_ANSWER_BYTES, StoredAnswer, Unreadable
from gateway.idempotency.store import LEASE_SECONDS, AnswerStore, Claim, State
from gateway.request_context import RequestContext

logger = logging.getLogger(__name__)

_HEADER: Final = b"idempotency-key"
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

Serve = Callable[[RequestContext], Awaitable[bool]]
"""Answers a request; True when the answer was whole."""


def idempotency_key(scope: Scope) -> str:
    """Return the request's Idempotency-Key, "" when absent. Raises BadRequest if it is malformed."""
    key = header(scope, _HEADER).decode("latin-1")
    if key and _KEY.fullmatch(key) is None:
        raise BadRequest(
            "Idempotency-Key must be 1 to 255 visible ASCII characters.", param="Idempotency-Key"
        )
    return key


class Idempotency:
    """Wraps request handling. Without Redis such a request is refused, which is better than billed twice."""

    def __init__(self, store: AnswerStore, serve: Serve) -> None:
        self._store, self._serve = store, serve

    async def serve(self, context: RequestContext, key: str) -> None:
        """Answer one request that has the idempotency key `key`.

        Raises:
            IdempotencyConflict: the key belongs to another request, or to an answer that is not kept.
            IdempotencyInProgress: its first request is still running.
            IdempotencyUnavailable: Redis does not answer.
            GatewayError: from the request itself.
        """
        claim = self._store.name(context.caller.key_id, context.scope["path"], key, context.id)
        if (answer := await self._claim(claim, context.body)) is not None:
            headers = [*answer.headers, _REPLAYED, *context.headers]
            await respond(context.send, 200, answer.body, headers)
            return
        recorder = Recorder(context.send)
        context.send = recorder.send
        renewal = asyncio.create_task(self._renew(claim))
        whole = False
        try:
            whole = await self._serve(context)
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
                "Idempotency-Key cannot be checked at this moment. Retry later, or omit the header."
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
            logger.warning("an idempotent answer could not be stored: %s", error)

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
