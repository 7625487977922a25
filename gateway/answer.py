"""One copy's answer, from its call to its end: it is streamed, metered and recorded."""

from __future__ import annotations

import asyncio
import email.utils
import time
from time import perf_counter
from types import TracebackType
from typing import Final, Self

import orjson

from gateway.api.hidden_thought import body_without_thought, hides_thought
from gateway.api.schema import EMBEDDINGS, POOLING, SCORING
from gateway.api.scoring import prompt_bound
from gateway.api.sse import EventStream, find_error, find_usage, rename_model
from gateway.api.usage import estimate_completion, prompt_usage, text_bytes
from gateway.api.whole_answer import WholeAnswer
from gateway.backends.base import Backend, BackendRequest, BackendStream
from gateway.backends.error_event import stream_error
from gateway.errors import (
    GatewayError,
    NotServed,
    UpstreamBroken,
    UpstreamBusy,
    UpstreamFailed,
    UpstreamTimeout,
    UpstreamUnreachable,
    Waking,
    error_code,
    failure_status,
)
from gateway.routing.copy_slot import CopySlot
from gateway.usage.metering import Attempt

_PARSED_BYTES: Final = 64 << 10
"""Larger embeddings are not parsed: they are megabytes of numbers before a few bytes of usage."""


class Answer:
    """One copy's answer. As a context manager it records how the attempt ended.

    Until `begin` returns, the client has received nothing and another copy may be called. `begin` waits for a
    stream's first event, or for the complete answer if the client wants it whole.

    Attributes:
        request: the sent request; its resolution is the one that is actually served.
        events: the stream as far as it has been read.
    """

    __slots__ = ("_begun", "_first", "_names", "_place", "_stream", "attempt", "context", "events", "request")

    def __init__(self, request: BackendRequest, attempt: Attempt, place: CopySlot) -> None:
        self.request, self.attempt, self.context = request, attempt, attempt.context
        self._names = (request.model_name, request.call.model)
        alone = request.call.parameters.get("n", 1) == 1
        self.events = EventStream(
            attempt.usage,
            request.call.view,
            self._names,
            counts_thought=alone,
            hides_thought=hides_thought(request.call.parameters),
        )
        self._place = place
        self._stream: BackendStream | None = None
        self._first = b""
        self._begun = False

    async def begin(self, backend: Backend) -> None:
        """Call the copy, and wait for the first data for the client.

        Raises:
            GatewayError: from `Backend.stream`, or the answer failed before the client got any of it.
        """
        call, trace = self.request.call, self.context.trace
        trace.pause()
        try:
            self._stream = await backend.stream(self.request)
            if call.stream:
                self._first = await self._first_events()
            elif call.streams:
                self._first = await self._assemble()
            else:
                self._first = await self._read_json(b"")
        finally:
            trace.resume()
        self._place.succeeded()
        self._begun = True

    async def read(self) -> bytes:
        """Return the whole answer, or a stream's next complete events for the client, possibly none.

        `events` says whether they are the last. A broken answer counts against the copy.

        Raises:
            UpstreamFailed: the backend broke off.
            UpstreamTimeout: it went silent.
        """
        if self._first:
            first, self._first = self._first, b""
            return first
        try:
            return self._follow(await self._receive())
        except (UpstreamBroken, UpstreamTimeout) as error:
            self._place.failed(error)
            raise

    async def _first_events(self) -> bytes:
        """Return the events that begin a stream."""
        stream = self.events
        while True:
            block = self._follow(await self._receive())
            if block.startswith(b":") and b"data:" not in block:
                continue  # a keep-alive comment without data
            if block or stream.done:
                return block
            if stream.failed:
                raise self.failed(stream.error)

    async def _assemble(self) -> bytes:
        """Collect a stream into one body."""
        whole, stream = WholeAnswer(), self.events
        data = await self._receive()
        if data.lstrip().startswith(b"{"):
            return await self._read_json(data)  # a backend that does not stream
        try:
            while True:
                whole.take(self._follow(data))
                if stream.failed:
                    raise self.failed(stream.error)
                if stream.done:
                    return whole.body(stream.last_usage)
                data = await self._receive()
        except ValueError as error:
            raise UpstreamFailed(f"The backend's answer is damaged: {error}.") from error

    async def _receive(self) -> bytes:
        """Return the next bytes. Raises UpstreamBroken where the stream ends before its answer does."""
        if self._stream is None:
            raise RuntimeError("an answer is read once it has begun")
        if data := await self._stream.read():
            return data
        raise UpstreamBroken("The backend ended its answer before it was complete.")

    def _follow(self, data: bytes) -> bytes:
        """Meter `data`, and return the events to pass on. Raises UpstreamFailed."""
        now, attempt = perf_counter(), self.attempt
        try:
            block = self.events.feed(data)
        except ValueError as error:
            raise UpstreamFailed(str(error)) from error
        attempt.follow(self.events, now)
        self.context.trace.own += perf_counter() - now
        return block

    async def _read_json(self, body: bytes) -> bytes:
        """Read an answer that does not stream, of which `body` has arrived."""
        if self._stream is None:
            raise RuntimeError("an answer is read once it has begun")
        parts = [body]
        while part := await self._stream.read():
            parts.append(part)
        body, call = b"".join(parts), self.request.call
        if not body:
            raise UpstreamBroken("The backend ended its answer before it began; retry.")
        if call.path == EMBEDDINGS and len(body) > _PARSED_BYTES and body.lstrip().startswith(b"{"):
            usage = find_usage(body)
        else:
            try:
                value = orjson.loads(body)
                usage = value.get("usage")
            except (orjson.JSONDecodeError, AttributeError) as error:
                raise UpstreamFailed("The backend's answer is not a JSON object.") from error
            if (failure := find_error(value)) is not None:
                raise self.failed(failure)
        if isinstance(usage, dict):
            self.attempt.usage.take(prompt_usage(usage) if call.path in SCORING else usage)
        if not self.attempt.usage.reported:
            written = 0 if call.path in POOLING else estimate_completion(text_bytes(body))
            self.attempt.estimate = (self._prompt_estimate(), written)
        if hides_thought(call.parameters):
            body = body_without_thought(body)
        return rename_model(body, self._names)

    def _prompt_estimate(self) -> int:
        """Return the prompt tokens to bill where the copy states none."""
        call, route = self.request.call, self.request.resolution.route
        estimate = call.prompt_estimate
        if call.images:
            return min(estimate, route.max_model_len)
        return min(estimate, prompt_bound(call, route.max_model_len)) if call.path in SCORING else estimate

    def failed(self, error: object) -> GatewayError:
        """Return the client's error when the copy reports `error` in its answer; see `stream_error`."""
        failure = stream_error(error, self.request.request_id)
        # Before the answer has begun, `end` counts every kind of failure.
        if self._begun and isinstance(failure, UpstreamBroken):
            self._place.failed(failure)
        return failure

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end(error)

    def end(self, error: BaseException | None) -> None:
        """Record the attempt once, and release the copy."""
        attempt = self.attempt
        disconnected = isinstance(error, asyncio.CancelledError) and self.context.watch.disconnected
        if disconnected and self._stream is not None:
            # Only the bundled worker reports how much of the prompt it has read.
            attempt.estimate = attempt.estimate or (self._prompt_estimate(), 0)
        elif not self._begun:
            attempt.forget()
        if isinstance(error, GatewayError):
            if not self._begun:
                self._blame(error)
            attempt.finish(failure_status(error), error_code(error))
        elif isinstance(error, asyncio.CancelledError):
            if disconnected or self.context.cancel_code:
                attempt.finish("cancelled", self.context.cancel_code)
            else:
                attempt.finish("interrupted", "shutdown")
        elif error is not None:
            attempt.finish("error", "internal_error")
        elif self._begun:
            self._place.completed()
        if self._stream is not None:
            self._stream.close()
        self._place.release()

    def _blame(self, error: GatewayError) -> None:
        """Count an error before the first byte against the copy, if it is the copy's fault."""
        if isinstance(error, Waking | NotServed):
            return  # the copy is only starting, or was not asked
        if isinstance(error, UpstreamBroken | UpstreamUnreachable | UpstreamTimeout):
            self._place.failed(error)
        elif isinstance(error, UpstreamBusy) and error.of_copy:
            self._place.cool_down(_seconds(error.after))
        else:
            self._place.succeeded()


def _seconds(retry_after: str) -> float:
    """Return the seconds of a Retry-After header, a number or a date; 1 for anything else."""
    if retry_after.isdecimal():
        return float(retry_after)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(retry_after).timestamp() - time.time())
    except ValueError:
        return 1.0
