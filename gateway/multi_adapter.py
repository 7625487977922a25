"""Serves a completion that names an adapter for each prompt: one request to a copy for each.

Each prompt is a request of its own behind the call: with its own id, route, reservations, attempts and usage
events. So an adapter is billed for its own prompts to the token, and the worker computes the requests in one
batch. The client gets one answer. If a prompt fails, the others are cancelled and the call fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from time import perf_counter
from typing import Any, Final, TypeVar

from contracts.usage_event import part_id
from gateway.api.adapters import MergedAnswer, naming_prompt, split
from gateway.api.dialect import ApiDialect
from gateway.api.schema import Call
from gateway.dispatch import Dispatcher
from gateway.errors import (
    AdapterNotServed,
    BadRequest,
    GatewayError,
    ModelNotFound,
    Stopping,
    UpstreamFailed,
    error_event,
)
from gateway.http.asgi import EVENT_STREAM, JSON, respond
from gateway.lifecycle.drain import Drain
from gateway.observability import Observer, RequestTrace
from gateway.request_context import RequestContext
from gateway.request_preparer import RequestPreparer
from gateway.usage.metering import Attempt, Meter

T = TypeVar("T")

OTHER_PROMPT_FAILED: Final = "other_prompt_failed"
"""Error code of usage events of requests that were cancelled because another prompt of their call failed."""


class MultiAdapter:
    """Serves calls with `adapters`."""

    def __init__(
        self,
        preparer: RequestPreparer,
        dispatcher: Dispatcher,
        meter: Meter,
        observer: Observer,
        drain: Drain,
    ) -> None:
        self._preparer, self._dispatcher = preparer, dispatcher
        self._meter, self._observer, self._drain = meter, observer, drain

    async def serve(self, context: RequestContext, subject: str) -> bool:
        """Answer the call, whose `model` is resolved; True if the answer was complete.

        Raises:
            GatewayError: nothing has been sent yet, and this is the answer.
        """
        parts = [self._part(context, index, call) for index, call in enumerate(split(context.call))]
        self._resolve(context, parts, subject)
        await self._preparer.admit_all(context, parts)
        try:
            # A copy that serves one part's adapter may not serve another's. The call's time is that of all.
            began = perf_counter()
            for part in parts:
                if await self._preparer.hold(context, part.models, waited=perf_counter() - began):
                    self._preparer.refresh(context, subject)
                    self._resolve(context, parts, subject)
            merged = MergedAnswer(context.call, context.id, context.trace.started_ns // 1_000_000_000)
            answer = self._stream if context.call.stream else self._whole
            return await answer(context, parts, merged)
        finally:
            for part in parts:
                part.ticket.settle()
            _sum_up(context.trace, [part.trace for part in parts])

    def _part(self, context: RequestContext, index: int, call: Call) -> RequestContext:
        """Return the context of one prompt's request."""
        whole, trace = context.trace, RequestTrace(part_id(context.id, index), context.trace.endpoint)
        trace.started, trace.started_ns, trace.span = whole.started, whole.started_ns, whole.span
        prompt = call.parameters["prompt"]
        body = prompt.encode(errors="replace") if isinstance(prompt, str) else b""
        part = RequestContext(
            context.scope, context.receive, context.send, [], trace, context.table, context.caller, body
        )
        part.dialect, part.watch = ApiDialect(call), context.watch
        return part

    def _resolve(self, context: RequestContext, parts: Sequence[RequestContext], subject: str) -> None:
        """Look up the parts' models.

        Raises:
            ModelNotFound, AdapterNotServed: of a part.
            BadRequest: base models differ.
        """
        base = context.models[0].base
        for index, part in enumerate(parts):
            part.table, part.caller, name = context.table, context.caller, f"adapters[{index}]"
            try:
                self._preparer.resolve(part, subject)
            except (ModelNotFound, AdapterNotServed) as error:
                raise type(error)(f"{name}: {error.message}", param=name) from None
            if (other := part.models[0].base) != base:
                raise BadRequest(
                    f"{name} is of the base model {other!r}, and model is of {base!r}. "
                    "Send the prompts of each base model in a call of their own.",
                    param=name,
                )

    async def _whole(
        self, context: RequestContext, parts: Sequence[RequestContext], merged: MergedAnswer
    ) -> bool:
        """Send one body when every prompt is answered."""
        attempts: list[Attempt] = []
        context.trace.pause()
        try:
            reads = [self._read(part, index, merged, attempts) for index, part in enumerate(parts)]
            body = merged.body(await _all_or_none(reads, parts))
        except BaseException as error:
            _give_up(context, attempts, error)
            if isinstance(error, GatewayError):
                await self._meter.durable()
            raise
        context.trace.resume()
        for attempt in attempts:
            attempt.finish("ok")
        self._drain.protect()
        await self._meter.durable()
        context.trace.pause()
        await respond(context.send, 200, body, [JSON, *context.headers])
        return True

    async def _read(
        self, part: RequestContext, index: int, merged: MergedAnswer, attempts: list[Attempt]
    ) -> list[dict[str, Any]]:
        """Return the choices of one prompt. Its attempt, which is not finished, is added to `attempts`."""
        with naming_prompt(index), await self._dispatcher.open(part) as answer:
            merged.follow(index, answer.attempt.usage)
            choices = merged.choices(index, answer.request.resolution.model, await answer.read())
            attempts.append(answer.attempt)
            return choices

    async def _stream(
        self, context: RequestContext, parts: Sequence[RequestContext], merged: MergedAnswer
    ) -> bool:
        """Send the events of all prompts as they come."""
        trace, sender = context.trace, _Sender(context)
        trace.pause()
        whole = False
        try:
            follows = [self._follow(part, index, merged, sender) for index, part in enumerate(parts)]
            await _all_or_none(follows, parts)
            last, whole = merged.end(), True
            self._drain.protect()
        except GatewayError as error:
            if not sender.begun:
                raise
            last = self._fail(trace, error)
        except asyncio.CancelledError:
            if not sender.begun or not self._drain.cut():
                raise
            last = self._fail(trace, Stopping())
        await self._meter.durable()
        await sender.send(last, more=False)
        return whole

    async def _follow(self, part: RequestContext, index: int, merged: MergedAnswer, sender: _Sender) -> None:
        """Send the events of one prompt, and finish its attempt."""
        with naming_prompt(index), await self._dispatcher.open(part) as answer:
            attempt, events = answer.attempt, answer.events
            merged.follow(index, attempt.usage)
            model = answer.request.resolution.model
            while True:
                block = await answer.read()
                try:
                    block = merged.events(index, model, block) if block else b""
                except ValueError as error:
                    raise UpstreamFailed(str(error)) from error
                if events.done:
                    break
                if block:
                    await self._meter.before_showing(attempt)
                    await sender.send(block)
                if events.failed:
                    raise answer.failed(events.error)
            attempt.finish("ok")
            # Usage is durable before the client sees that the prompt's answer is complete.
            await self._meter.durable()
            if block:
                await sender.send(block)

    def _fail(self, trace: RequestTrace, failure: GatewayError) -> bytes:
        """Record a stream's failure; return the event that reports it to the client."""
        self._observer.failed(trace, failure, 200)
        return error_event(failure)


class _Sender:
    """Sends one stream's events for several tasks, one at a time.

    Attributes:
        begun: True once the response has begun.
    """

    def __init__(self, context: RequestContext) -> None:
        self._send, self._headers = context.send, context.headers
        self._turn = asyncio.Lock()
        self.begun = False

    async def send(self, block: bytes, *, more: bool = True) -> None:
        async with self._turn:
            if not self.begun:
                self.begun = True
                headers = [*EVENT_STREAM, *self._headers]
                await self._send({"type": "http.response.start", "status": 200, "headers": headers})
            await self._send({"type": "http.response.body", "body": block, "more_body": more})


async def _all_or_none(
    coroutines: Sequence[Coroutine[Any, Any, T]], parts: Sequence[RequestContext]
) -> list[T]:
    """Run one coroutine for each part; return their results in order.

    If one fails, the others are cancelled and its error is raised. All have ended when this returns.
    """
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        if any(not task.done() for task in tasks):
            for part in parts:
                part.cancel_code = OTHER_PROMPT_FAILED
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        # Read all exceptions: asyncio logs those that nothing reads.
        errors = [task.exception() for task in tasks if not task.cancelled()]
    for error in errors:
        if error is not None:
            raise error
    return [task.result() for task in tasks]


def _give_up(context: RequestContext, attempts: Sequence[Attempt], error: BaseException) -> None:
    """Record the attempts of prompts that were answered, although the client gets no answer."""
    disconnected = isinstance(error, asyncio.CancelledError) and context.watch.disconnected
    for attempt in attempts:
        if disconnected:
            attempt.finish("cancelled")
            continue
        # The client received nothing, so nothing is billed.
        attempt.forget()
        if isinstance(error, asyncio.CancelledError):
            attempt.finish("interrupted", "shutdown")
        else:
            attempt.finish("cancelled", OTHER_PROMPT_FAILED)


def _sum_up(whole: RequestTrace, parts: Sequence[RequestTrace]) -> None:
    """Record the facts of all parts as those of the call."""
    whole.attempts = sum(part.attempts for part in parts)
    whole.prompt = sum(part.prompt for part in parts)
    whole.cached = sum(part.cached for part in parts)
    whole.completion = sum(part.completion for part in parts)
    whole.ttft_ms = min((part.ttft_ms for part in parts if part.ttft_ms is not None), default=None)
    copies = {part.copy for part in parts}
    whole.copy = copies.pop() if len(copies) == 1 else ""
    whole.adapter = ""
