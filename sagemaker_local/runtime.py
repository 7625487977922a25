"""SageMaker's runtime: signed invocations of workers' `/invocations`, whole or as an event stream."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import aiohttp
from aiohttp import web

from sagemaker_local import frames, limits
from sagemaker_local.aws.signature import Account, SignedRequest
from sagemaker_local.errors import ModelError, RuntimeRefusal
from sagemaker_local.faults import BEFORE, Fault, Faults
from sagemaker_local.state import State, Target

WHOLE_SECONDS: Final = 60.0
"""Time limit for a container's answer, or for its begin."""
COMPONENT: Final = "X-Amzn-SageMaker-Inference-Component"
CUSTOM: Final = "X-Amzn-SageMaker-Custom-Attributes"
_ADAPTER: Final = "X-Amzn-SageMaker-Adapter-Identifier"
_BROKEN: Final = frames.exception(
    "ModelStreamError",
    {
        "Message": "The connection between the client and the model was reset or closed.",
        "ErrorCode": "StreamBroken",
    },
)
_JSON: Final = "application/json"


@dataclass(slots=True)
class Invocation:
    """The result of one call, as `/_local/invocations` lists it."""

    endpoint: str
    component: str
    adapter: str
    headers: dict[str, str]
    fault: str = ""
    parts: int = 0
    ended: str = ""
    """`whole`, `refused`, `fault`, `broken` (by the container) or `gone` (the caller)."""
    ended_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Call:
    """An invocation that was accepted for its container."""

    request: web.Request
    target: Target
    body: bytes
    headers: dict[str, str]
    invocation: Invocation
    fault: Fault | None


Answer = Callable[[Call], Awaitable[web.StreamResponse]]


@dataclass(slots=True)
class Runtime:
    """The routes under `/endpoints`."""

    account: Account
    state: State
    faults: Faults
    part_bytes: int = 0
    invocations: list[Invocation] = field(default_factory=list)

    @property
    def routes(self) -> list[web.RouteDef]:
        chats = "openai/v1/chat/completions"
        return [
            web.post("/endpoints/{endpoint}/invocations", self.invoke),
            web.post("/endpoints/{endpoint}/invocations-response-stream", self.invoke_with_stream),
            web.post(f"/endpoints/{{endpoint}}/{chats}", self.openai),
            web.post(f"/endpoints/{{endpoint}}/inference-components/{{component}}/{chats}", self.openai),
        ]

    async def invoke(self, request: web.Request) -> web.StreamResponse:
        """Handle InvokeEndpoint."""
        return await self._serve(request, "InvokeEndpoint", request.headers.get("Accept"), self._whole)

    async def invoke_with_stream(self, request: web.Request) -> web.StreamResponse:
        """Handle InvokeEndpointWithResponseStream."""
        accept = request.headers.get("X-Amzn-SageMaker-Accept")
        return await self._serve(request, "InvokeEndpointWithResponseStream", accept, self._stream)

    async def openai(self, request: web.Request) -> web.StreamResponse:
        """Handle the OpenAI path, which takes chats: the container's own answer, behind a bearer token."""
        endpoint = request.match_info["endpoint"]
        component = request.match_info.get("component", "")
        invocation = self._note(endpoint, component, request)
        try:
            self.account.check_bearer(request.headers.get("Authorization", ""))
            target = self._target(invocation, self._fault(invocation, streams=False))
            url = f"{target.container.url}/v1/chat/completions"
            body, headers = await request.read(), _forwarded(request, target, _JSON)
            with target.load:
                async with _client(request).post(url, data=body, headers=headers) as answer:
                    response = web.StreamResponse(status=answer.status)
                    response.content_type = answer.content_type
                    await response.prepare(request)
                    async for chunk in answer.content.iter_any():
                        await response.write(chunk)
                        invocation.parts += 1
                    invocation.ended = "whole"
                return response
        except RuntimeRefusal as refusal:
            invocation.ended = "refused"
            return refusal.response()
        except (asyncio.CancelledError, ConnectionResetError):
            invocation.ended = "gone"
            raise
        finally:
            invocation.ended_at = time.time()

    async def _serve(
        self, request: web.Request, operation: str, accept: str | None, answer: Answer
    ) -> web.StreamResponse:
        endpoint, component = request.match_info["endpoint"], request.headers.get(COMPONENT, "")
        invocation = self._note(endpoint, component, request)
        try:
            body = await request.read()
            url = f"{request.scheme}://{request.host}{request.raw_path}"
            self.account.check(SignedRequest(request.method, url, request.headers, body))
            limits.check(operation, endpoint, request.headers, body)
            fault = self._fault(invocation, streams=answer == self._stream)
            target = self._target(invocation, fault)
            headers = _forwarded(request, target, accept or _JSON)
            return await answer(Call(request, target, body, headers, invocation, fault))
        except RuntimeRefusal as refusal:
            invocation.ended = "refused"
            return refusal.response()
        except (asyncio.CancelledError, ConnectionResetError):
            invocation.ended = invocation.ended or "gone"
            raise
        finally:
            invocation.ended_at = time.time()

    def _note(self, endpoint: str, component: str, request: web.Request) -> Invocation:
        shown = {name.lower(): value for name, value in request.headers.items()}
        shown.pop("authorization", None)
        shown.pop("x-amz-security-token", None)
        self.invocations.append(Invocation(endpoint, component, "", shown))
        return self.invocations[-1]

    def _fault(self, invocation: Invocation, *, streams: bool) -> Fault | None:
        fault = self.faults.take(invocation.endpoint, invocation.component, streams=streams)
        invocation.fault = "" if fault is None else fault.kind
        return fault

    def _target(self, invocation: Invocation, fault: Fault | None) -> Target:
        if fault is not None and fault.kind in BEFORE:
            raise BEFORE[fault.kind]()
        variant = invocation.headers.get("x-amzn-sagemaker-target-variant")
        target = self.state.target(invocation.endpoint, invocation.component or None, variant)
        invocation.adapter = target.adapter
        return target

    async def _whole(self, call: Call) -> web.StreamResponse:
        async with _started_answer(call) as answer:
            try:
                content = await asyncio.wait_for(answer.read(), WHOLE_SECONDS)
            except (aiohttp.ClientError, TimeoutError) as error:
                raise ModelError(0, "Your invocation timed out or broke in the container.") from error
        call.invocation.ended = "whole"
        headers = _answer_headers(call, answer)
        return web.Response(body=content, content_type=answer.content_type, headers=headers)

    async def _stream(self, call: Call) -> web.StreamResponse:
        invocation, fault = call.invocation, call.fault
        async with _started_answer(call) as answer:
            kind = {"X-Amzn-SageMaker-Content-Type": answer.headers.get("Content-Type", "")}
            response = web.StreamResponse(headers={**kind, **_answer_headers(call, answer)})
            response.content_type = "application/vnd.amazon.eventstream"
            await response.prepare(call.request)
            async for piece in self._pieces(answer):
                met = fault is not None and invocation.parts == fault.after
                if met and fault is not None and not await _goes_on(fault, piece, call.request, response):
                    invocation.ended = "fault"
                    return response
                if piece is None:
                    invocation.ended = "broken"
                    await response.write(_BROKEN)
                    return response
                await response.write(frames.part(piece))
                invocation.parts += 1
        invocation.ended = "whole"
        return response

    async def _pieces(self, answer: aiohttp.ClientResponse) -> AsyncIterator[bytes | None]:
        """Yield the container's output in parts; None if it breaks off."""
        try:
            async for chunk in answer.content.iter_any():
                size = self.part_bytes or len(chunk)
                for start in range(0, len(chunk), size):
                    yield chunk[start : start + size]
        except (aiohttp.ClientError, OSError):
            yield None


async def _goes_on(
    fault: Fault, piece: bytes | None, request: web.Request, response: web.StreamResponse
) -> bool:
    """Apply the fault; True if the stream goes on after it."""
    if fault.kind == "delay":
        await asyncio.sleep(fault.seconds)
        return True
    if fault.kind == "drop":
        if request.transport is not None:
            request.transport.abort()
    elif fault.kind == "corrupt":
        frame = bytearray(frames.part(piece or b""))
        frame[len(frame) // 2] ^= 0x20
        await response.write(bytes(frame) + frames.part(piece or b""))
    elif fault.kind == "model_stream_error":
        body = {"Message": "The model failed to finish.", "ErrorCode": "ModelInvocationTimeExceeded"}
        await response.write(frames.exception("ModelStreamError", body))
    else:
        body = {"Message": "The stream processing failed."}
        await response.write(frames.exception("InternalStreamFailure", body))
    return False


@asynccontextmanager
async def _started_answer(call: Call) -> AsyncIterator[aiohttp.ClientResponse]:
    """Call the container and yield its started answer; a status other than 2xx is a ModelError."""
    url = f"{call.target.container.url}/invocations"
    asked = _client(call.request).post(url, data=call.body, headers=call.headers)
    with call.target.load:
        try:
            answer = await asyncio.wait_for(asked, WHOLE_SECONDS)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ModelError(0, "Your invocation timed out or could not reach the container.") from error
        try:
            if not 200 <= answer.status < 300:
                raise ModelError(answer.status, (await answer.read()).decode("utf-8", "replace"))
            yield answer
        finally:
            # Closed rather than released, so that a caller's disconnect ends the container's work too.
            answer.close()


def _answer_headers(call: Call, answer: aiohttp.ClientResponse) -> dict[str, str]:
    """Return an answer's headers, with the container's custom attributes."""
    custom = {CUSTOM: answer.headers[CUSTOM]} if CUSTOM in answer.headers else {}
    return {"x-Amzn-Invoked-Production-Variant": call.target.variant, **custom}


CLIENT: Final = web.AppKey("client", aiohttp.ClientSession)


def _client(request: web.Request) -> aiohttp.ClientSession:
    return request.app[CLIENT]


def _forwarded(request: web.Request, target: Target, accept: str) -> dict[str, str]:
    """Return the headers that the container gets of the caller's."""
    headers = {"Content-Type": request.headers.get("Content-Type", _JSON), "Accept": accept}
    if CUSTOM in request.headers:
        headers[CUSTOM] = request.headers[CUSTOM]
    if target.adapter:
        headers[_ADAPTER] = target.adapter
    if target.container.token:
        headers["Authorization"] = f"Bearer {target.container.token}"
    return headers
