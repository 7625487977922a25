"""SageMaker endpoints: InvokeEndpoint[WithResponseStream], signed, or the endpoint's OpenAI path.

The module sagemaker_interfaces says which request takes which.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

import orjson

from contracts.base_routes import SageMakerTarget, adapter_component
from gateway.api.schema import CHAT
from gateway.backends.base import BackendRequest, BackendStream
from gateway.backends.containers import FORMS
from gateway.backends.containers.base import Translator
from gateway.backends.lmi import LineTranslator, whole_answer
from gateway.backends.sagemaker_errors import CAPACITY_SECONDS, SageMakerRefusal, adapter_missing
from gateway.backends.sagemaker_interfaces import (
    Interface,
    call_headers,
    expected_model,
    interface_of,
    request_body,
)
from gateway.backends.upstream import Refusal, Upstream, UpstreamStream
from gateway.backends.usage_options import UsageOptions
from gateway.backends.vllm_parameters import demand_bounded_thought
from gateway.backends.wake_calls import WakeCalls
from gateway.errors import (
    BadRequest,
    GatewayError,
    PayloadTooLarge,
    UpstreamBroken,
    UpstreamBusy,
    UpstreamFailed,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from gateway.http.aws.bearer_token import BearerTokens
from gateway.http.aws.credentials import CredentialSource, NoCredentials
from gateway.http.aws.event_stream import EventStreamError, EventStreamParser, Message
from gateway.http.aws.sigv4 import Credentials, Signer
from gateway.routing.waiting_room import WaitingRoom

logger = logging.getLogger(__name__)

MAX_BODY_BYTES: Final = 6_291_456
"""Largest body of the runtime."""
_INVOKED: Final = frozenset({"/v1/chat/completions", "/v1/completions"})
"""Paths whose bodies `/invocations` of a container can tell apart."""
_SUFFIXES: Final = {"cn-": "amazonaws.com.cn", "eusc-": "amazonaws.eu"}


class SageMakerBackend:
    """Calls containers behind a SageMaker endpoint, each in the form of its family."""

    def __init__(
        self, upstream: Upstream, credentials: CredentialSource, room: WaitingRoom | None = None
    ) -> None:
        """Requests wait in `room` for a component's first copy; without a room they are refused at once."""
        self._upstream = upstream
        self._wakes = None if room is None else WakeCalls(room)
        self._credentials = credentials
        self._usage = UsageOptions()
        self._signers: dict[str, Signer] = {}
        self._tokens: dict[str, BearerTokens] = {}

    async def stream(self, request: BackendRequest) -> BackendStream:
        target = request.copy.sagemaker
        if target is None:
            raise UpstreamFailed(f"Copy {request.copy.id} names no SageMaker endpoint; register it anew.")
        adapter = request.adapter
        if adapter is not None and target.loaded is not None and adapter.name not in target.loaded:
            raise adapter_missing()
        demand_bounded_thought(request)
        body = _body(request, target)
        answer = await self._awake_answer(request, target, body)
        if not isinstance(answer, Refusal):
            return answer
        refusal = _of_sagemaker(answer, request, target)
        container = (answer.status, answer.body) if refusal is None else refusal.container
        if target.container == "vllm" and adapter is not None and container and container[0] == 404:
            raise adapter_missing()
        if refusal is None:
            raise answer.error(request.request_id)
        own = _component(request, target) != target.component
        raise refusal.error(request.request_id, adapter=own, lmi=target.container not in FORMS)

    async def close(self) -> None:
        await self._upstream.close()

    async def _awake_answer(
        self, request: BackendRequest, target: SageMakerTarget, body: Mapping[str, Any]
    ) -> BackendStream | Refusal:
        """Return the copy's answer; if the copy sleeps, wait for it as long as the request may."""
        wakes, copy_id = self._wakes, request.copy.id
        if wakes is None:
            return await self._answer(request, target, body)

        async def ask(*, held: bool = True) -> BackendStream | Refusal | None:
            # SageMaker counts each call that finds no copy, and this count starts one.
            try:
                answer = await self._answer(request, target, body)
            except (UpstreamUnreachable, UpstreamBroken):
                if not held:
                    raise
                wakes.note(copy_id)
                return None
            refusal = _of_sagemaker(answer, request, target) if isinstance(answer, Refusal) else None
            if refusal is not None and (refusal.no_capacity or (held and refusal.later)):
                wakes.note(copy_id)
                return None
            if refusal is None or not refusal.later:
                wakes.woke(copy_id)
            return answer

        if not wakes.asleep(copy_id) and (answer := await ask(held=False)) is not None:
            return answer
        if not request.hold_seconds:
            # Another copy may answer, so this one is not called for a while.
            raise UpstreamBusy(CAPACITY_SECONDS)
        return await wakes.until(request, len(orjson.dumps(body)), ask)

    async def _answer(
        self, request: BackendRequest, target: SageMakerTarget, body: Mapping[str, Any]
    ) -> BackendStream | Refusal:
        """Invoke the endpoint; a streamed call asks for usage in the form that the copy accepts."""
        if not request.call.streams or target.container in FORMS:
            return await self._ask(request, target, body)
        return await self._usage.ask(
            request.copy.id,
            not request.call.stream,
            lambda options: self._ask(request, target, {**body, **options}),
        )

    async def _ask(
        self, request: BackendRequest, target: SageMakerTarget, body: Mapping[str, Any]
    ) -> BackendStream | Refusal:
        """Call once, and once more after a transient fault of AWS or expired credentials."""
        data = orjson.dumps(body)
        if len(data) > MAX_BODY_BYTES:
            raise PayloadTooLarge(f"The request exceeds the {MAX_BODY_BYTES} bytes that SageMaker takes.")
        answer = await self._send(request, target, data)
        if isinstance(answer, Refusal) and (refusal := _of_sagemaker(answer, request, target)) is not None:
            if refusal.expired:
                self._credentials.expired()
            if refusal.expired or refusal.transient:
                logger.warning("request %s: retried after %s", request.request_id, refusal.code)
                return await self._send(request, target, data)
        return answer

    async def _send(
        self, request: BackendRequest, target: SageMakerTarget, data: bytes
    ) -> BackendStream | Refusal:
        call, component = request.call, _component(request, target)
        try:
            credentials = await self._credentials.current()
        except NoCredentials as error:
            raise UpstreamUnreachable("No copy of this model answers at this moment; retry later.") from error
        url = (request.copy.url or runtime_url(target.region)) + f"/endpoints/{target.endpoint}"
        headers = {"content-type": "application/json"}
        if interface_of(request, target) is Interface.OPENAI:
            url += (f"/inference-components/{component}" if component else "") + f"/openai{call.path}"
            token = self._token(target.region, credentials)
            headers |= {"authorization": f"Bearer {token}", "x-request-id": request.request_id}
        else:
            url += "/invocations-response-stream" if call.streams else "/invocations"
            headers |= call_headers(request, target)
            if component:
                headers["X-Amzn-SageMaker-Inference-Component"] = component
            headers |= self._signer(target.region).headers("POST", url, headers, data, credentials)
        answer = await self._upstream.open(url, data, headers, stream=call.stream)
        return answer if isinstance(answer, Refusal) else _translated(answer, request, target)

    def _signer(self, region: str) -> Signer:
        if (signer := self._signers.get(region)) is None:
            signer = self._signers[region] = Signer("sagemaker", region)
        return signer

    def _token(self, region: str, credentials: Credentials) -> str:
        if (tokens := self._tokens.get(region)) is None:
            tokens = self._tokens[region] = BearerTokens(region)
        return tokens.token(credentials)


def _body(request: BackendRequest, target: SageMakerTarget) -> dict[str, Any]:
    call, adapter = request.call, request.adapter
    if call.path not in _INVOKED:
        raise BadRequest(f"{call.path} is not served by this model's copies on SageMaker.")
    if (form := FORMS.get(target.container)) is not None:
        return form.body(call, "" if adapter is None else adapter.name)
    return request_body(request, target)


def _translated(answer: UpstreamStream, request: BackendRequest, target: SageMakerTarget) -> BackendStream:
    """Return a container's answer in OpenAI's form."""
    call, request_id, model = request.call, request.request_id, request.model_name
    if (form := FORMS.get(target.container)) is not None:
        return SageMakerStream(answer, form.translator(call, request_id, model))
    chat, expected = call.path == CHAT, expected_model(request, target)
    if not call.streams:
        return _Whole(answer, request_id, model, chat, expected)
    lines = LineTranslator(request_id, model, chat=chat, expected=expected)
    framed = interface_of(request, target) is not Interface.OPENAI
    return SageMakerStream(answer, lines) if framed else _UnframedStream(answer, lines)


def _of_sagemaker(
    answer: Refusal, request: BackendRequest, target: SageMakerTarget
) -> SageMakerRefusal | None:
    """Return SageMaker's own refusal; None for a container's, which the OpenAI path passes on unchanged."""
    openai = interface_of(request, target) is Interface.OPENAI
    if openai and "x-amzn-errortype" not in answer.headers:
        return None
    return SageMakerRefusal.read(answer)


class SageMakerStream:
    """Translates an event stream's payload to server-sent events."""

    __slots__ = ("_ended", "_failure", "_frames", "_lines", "_response")

    def __init__(self, response: UpstreamStream, lines: Translator) -> None:
        self._response = response
        self._lines = lines
        self._frames = EventStreamParser()
        self._failure: GatewayError | None = None
        self._ended = False

    def close(self) -> None:
        self._response.close()

    async def read(self) -> bytes:
        while self._failure is None and not self._ended:
            try:
                data = await self._response.read()
                events = self._take(data) if data else self._end()
            except EventStreamError as error:
                self._failure = UpstreamBroken(f"The backend's answer was damaged on its way: {error}.")
                raise self._failure from error
            except GatewayError as error:
                self._failure = error
                raise
            if events:
                return events
        if self._failure is not None:
            raise self._failure
        return b""

    def _take(self, data: bytes) -> bytes:
        """Return the payload before a failure, which is billed; the failure is raised afterwards."""
        payload = []
        for message in self._frames.feed(data):
            if message.headers.get(":message-type") != "event":
                self._failure = _stream_failure(message)
                break
            if message.headers.get(":event-type") == "PayloadPart":
                payload.append(message.payload)
        return self._lines.feed(b"".join(payload))

    def _end(self) -> bytes:
        self._ended = True
        self._frames.end()
        return self._lines.end()


class _UnframedStream(SageMakerStream):
    """Translates the OpenAI path's stream, which has no event-stream frames."""

    __slots__ = ()

    def _take(self, data: bytes) -> bytes:
        return self._lines.feed(data)

    def _end(self) -> bytes:
        self._ended = True
        return self._lines.end()


class _Whole:
    """An answer that does not stream."""

    def __init__(
        self, response: UpstreamStream, request_id: str, model: str, chat: bool, expected: str
    ) -> None:
        self._response = response
        self._form = (request_id, model, chat, expected)
        self._ended = False

    async def read(self) -> bytes:
        if self._ended:
            return b""
        parts = []
        while part := await self._response.read():
            parts.append(part)
        self._ended = True
        request_id, model, chat, expected = self._form
        return whole_answer(b"".join(parts), request_id, model, chat=chat, expected=expected)

    def close(self) -> None:
        self._response.close()


def _stream_failure(message: Message) -> GatewayError:
    """Return the error for an exception or error frame."""
    headers = message.headers
    kind = str(headers.get(":exception-type") or headers.get(":error-code") or "error")
    try:
        detail = orjson.loads(message.payload)
    except orjson.JSONDecodeError:
        detail = None
    code = detail.get("ErrorCode") if isinstance(detail, dict) else None
    # The container's text may repeat the prompt, so it is not logged.
    logger.warning("SageMaker ended a stream: %s, code %.100r", kind, code)
    if code == "ModelInvocationTimeExceeded":
        return UpstreamTimeout("The backend did not finish in the time that SageMaker allows.")
    return UpstreamBroken("The backend broke off in the middle of its answer.")


def runtime_url(region: str) -> str:
    """Return the URL of the region's public runtime."""
    suffix = next((suffix for head, suffix in _SUFFIXES.items() if region.startswith(head)), "amazonaws.com")
    return f"https://runtime.sagemaker.{region}.{suffix}"


def _component(request: BackendRequest, target: SageMakerTarget) -> str:
    """Return the inference component to call: the adapter's own where adapters are components."""
    adapter = request.adapter
    if adapter is None or target.adapters != "components":
        return target.component
    return adapter_component(target.component, adapter.name)
