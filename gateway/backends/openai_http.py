"""Any OpenAI-compatible server, such as vLLM with the adapters loaded under their engine names."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import orjson

from contracts.adapters.reference import AdapterRef
from contracts.capabilities.vllm import vllm_capability
from gateway.api.hidden_thought import shown_parameters
from gateway.api.schema import CLASSIFY, SCORING
from gateway.backends.base import BackendRequest
from gateway.backends.upstream import Refusal, Upstream, UpstreamStream
from gateway.backends.usage_options import UsageOptions
from gateway.errors import BadRequest, EndpointNotServed, UpstreamFailed
from gateway.routing.endpoints import not_served

_PATHS: Final = {CLASSIFY: "/classify"}
"""Paths of vLLM's that differ from the gateway's."""
LACKING_SECONDS: Final = 600.0
"""How long a copy that lacks an endpoint is not asked again; a newer server may have replaced it then."""
_BUDGET: Final = "thinking_token_budget"
_VLLM: Final = "vLLM "

logger = logging.getLogger(__name__)


class OpenAIHttpBackend:
    """Calls plain OpenAI: the model name selects the adapter, and the tenant's cache salt is included."""

    def __init__(self, upstream: Upstream, key: str) -> None:
        self._upstream = upstream
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        self._usage = UsageOptions()
        self._loads: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._lacking: dict[tuple[str, str], float] = {}

    async def stream(self, request: BackendRequest) -> UpstreamStream:
        endpoint = request.copy.id, request.call.path
        if self._lacking.get(endpoint, 0.0) > time.monotonic():
            raise _lacking(request)
        answer = await self._ask(request)
        if request.call.path in SCORING and isinstance(answer, Refusal) and _is_endpoint_missing(answer):
            self._lacking[endpoint] = time.monotonic() + LACKING_SECONDS
            raise _lacking(request)
        unknown = isinstance(answer, Refusal) and answer.status == 404 and request.copy.loads_adapters
        if unknown and (adapter := request.adapter) is not None:
            await self._load(request, adapter)
            answer = await self._ask(request)
        if isinstance(answer, Refusal):
            raise answer.error(request.request_id)
        return answer

    async def _ask(self, request: BackendRequest) -> UpstreamStream | Refusal:
        call = request.call
        demand_bounded_thought(request)
        url = request.copy.url + _PATHS.get(call.path, call.path)
        body: dict[str, Any] = {**shown_parameters(call.parameters), "model": request.model_name}
        if request.cache_salt:
            body["cache_salt"] = request.cache_salt
        if not call.streams:
            return await self._post(request, url, body)
        return await self._usage.ask(
            request.copy.id,
            not request.call.stream,
            lambda options: self._post(request, url, {**body, **options}),
        )

    async def _post(
        self, request: BackendRequest, url: str, body: dict[str, Any]
    ) -> UpstreamStream | Refusal:
        headers = {**self._headers, "content-type": "application/json", **request.headers}
        return await self._upstream.open(url, orjson.dumps(body), headers, stream=request.call.stream)

    async def _load(self, request: BackendRequest, adapter: AdapterRef) -> None:
        """Have vLLM load the adapter; concurrent requests share one load.

        Raises:
            UpstreamFailed: vLLM refused.
        """
        key = (request.copy.url, adapter.name)
        if (task := self._loads.get(key)) is None:
            task = self._loads[key] = asyncio.create_task(self._load_once(request, adapter))
            task.add_done_callback(lambda _: self._loads.pop(key, None))
        # A client that hangs up must not end a load that others wait for.
        await asyncio.shield(task)

    async def _load_once(self, request: BackendRequest, adapter: AdapterRef) -> None:
        parts = urlsplit(adapter.uri)
        path = unquote(parts.path).rstrip("/") if parts.scheme == "file" else adapter.uri
        body = {"lora_name": adapter.name, "lora_path": path}
        answer = await self._post(request, request.copy.url + "/v1/load_lora_adapter", body)
        if not isinstance(answer, Refusal):
            try:
                while await answer.read():
                    pass
            finally:
                answer.close()
        elif answer.status != 400 or b"already" not in answer.body:
            logger.warning(
                "copy %s cannot load %s (%d: %r); vLLM needs --enable-lora, "
                "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True and the adapter's files",
                request.copy.id,
                adapter.name,
                answer.status,
                answer.body[:500],
            )
            raise UpstreamFailed("The backend could not load this adapter; retry, or tell the operator.")

    async def close(self) -> None:
        for task in self._loads.values():
            task.cancel()
        await self._upstream.close()


def _lacking(request: BackendRequest) -> EndpointNotServed:
    reason = f"copy {request.copy.id} runs a model that has no such endpoint"
    return not_served(request.resolution.base, request.call.path, reason)


def _is_endpoint_missing(answer: Refusal) -> bool:
    """Return True if the server has no such route, or runs a model that does not support it.

    vLLM says so by 404, 501, or, in older versions, by a 400 "The model does not support Score API". It
    answers 404 for an unknown model too, and names the model as one that does not exist.
    """
    if answer.status == 404:
        return b"does not exist" not in answer.body
    return answer.status in (405, 501) or (
        answer.status == 400 and b"does not support" in answer.body and b" API" in answer.body
    )


def demand_bounded_thought(request: BackendRequest) -> None:
    """Refuse a bound of the thought that the copy's version of vLLM would ignore.

    A copy whose version is not known gets the bound.

    Raises:
        BadRequest: naming the bound.
    """
    engine, call = request.copy.engine, request.call
    if call.parameters.get(_BUDGET) is None or not engine.startswith(_VLLM):
        return
    capability = vllm_capability(engine.removeprefix(_VLLM))
    if capability is None or _BUDGET not in capability.parameters["chat"]:
        raise BadRequest(
            f"{_BUDGET} is not served by this model's copies, which run {engine}. Leave it out.",
            param=_BUDGET,
        )
