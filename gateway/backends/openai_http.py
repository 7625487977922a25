"""Any OpenAI-compatible server, such as vLLM with the adapters loaded under their engine names."""

from __future__ import annotations

from typing import Any, Final

import orjson
from redis.asyncio import Redis

from contracts.base_routes import CopyRoute
from gateway.api.hidden_thought import shown_parameters
from gateway.api.schema import CLASSIFY, SCORING
from gateway.backends.adapter_loads import UNAVAILABLE, AdapterLoads
from gateway.backends.base import BackendRequest
from gateway.backends.copy_locks import CopyLocks
from gateway.backends.upstream import Refusal, Upstream, UpstreamStream
from gateway.backends.usage_options import UsageOptions
from gateway.backends.vllm_parameters import demand_bounded_thought, is_known
from gateway.errors import UpstreamBusy
from gateway.routing.copy_headers import CopyHeaders
from gateway.routing.endpoints import model_lacks
from gateway.routing.fleet import Fleet

_LOADS: Final = 2
"""Loads for one request: another gateway may unload the adapter in between."""
_PATHS: Final = {CLASSIFY: "/classify"}
"""Paths of vLLM's that differ from the gateway's."""
LACKING_SECONDS: Final = 30.0
"""How long a copy that lacks an endpoint is not asked again; a newer server may have replaced it then."""
_NO_ROUTE: Final = (b'{"detail":"notfound"}', b"notfound", b"404:notfound", b"404pagenotfound")
"""Answers of web servers to a path that they do not have, in small letters and without spaces."""


class OpenAIHttpBackend:
    """Calls plain OpenAI: the model name selects the adapter, and the tenant's cache salt is included.

    Args:
        redis: has the locks that gateways share; None for a gateway that is alone.
    """

    def __init__(
        self, upstream: Upstream, headers: CopyHeaders, fleet: Fleet, redis: Redis | None = None
    ) -> None:
        self._upstream, self._headers, self._fleet = upstream, headers, fleet
        self._usage = UsageOptions()
        self._loads = AdapterLoads(self._send, fleet, CopyLocks(redis))

    async def stream(self, request: BackendRequest) -> UpstreamStream:
        copy, adapter = request.copy, request.adapter
        path = request.call.path
        answer = await self._ask(request)
        if path in SCORING and isinstance(answer, Refusal) and _is_endpoint_missing(answer):
            self._fleet.copy(copy.id).refused_path(path, seconds=LACKING_SECONDS)
            raise model_lacks(request.resolution.base, path, [copy.id])
        if adapter is not None and copy.loads_adapters:
            for _ in range(_LOADS):
                if not isinstance(answer, Refusal) or not _is_model_missing(answer):
                    break
                self._fleet.copy(copy.id).unloaded(adapter.name)
                await self._loads.load(copy, adapter, request.resolution.route.placed_on(copy.id))
                answer = await self._ask(request)
            self._fleet.copy(copy.id).use(adapter.name)
        if not isinstance(answer, Refusal):
            return answer
        if _is_model_missing(answer) and adapter is not None and copy.loads_adapters:
            raise UpstreamBusy("1", code=UNAVAILABLE)
        raise answer.error(request.request_id)

    async def _ask(self, request: BackendRequest) -> UpstreamStream | Refusal:
        call = request.call
        demand_bounded_thought(request)
        url = request.copy.url + _PATHS.get(call.path, call.path)
        body: dict[str, Any] = {**shown_parameters(call.parameters), "model": request.model_name}
        if request.cache_salt and is_known(request, "cache_salt") is not False:
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
        own = self._headers.for_copy(request.copy)
        headers = {"content-type": "application/json", **own, **request.headers}
        return await self._upstream.open(url, orjson.dumps(body), headers, stream=request.call.stream)

    async def _send(
        self, copy: CopyRoute, path: str, body: dict[str, Any] | None
    ) -> UpstreamStream | Refusal:
        """Post a body that belongs to no request; without a body, get the path."""
        headers = self._headers.for_copy(copy)
        if body is None:
            return await self._upstream.open(copy.url + path, b"", headers, stream=True, method="GET")
        headers = {"content-type": "application/json", **headers}
        # A load reads files; the shorter of the two limits of silence applies.
        return await self._upstream.open(copy.url + path, orjson.dumps(body), headers, stream=True)

    async def close(self) -> None:
        self._loads.close()
        await self._upstream.close()


def _is_model_missing(answer: Refusal) -> bool:
    return answer.status == 404 and not _is_route_missing(answer)


def _is_route_missing(answer: Refusal) -> bool:
    return answer.status == 404 and b"".join(answer.body.lower().split()) in _NO_ROUTE


def _is_endpoint_missing(answer: Refusal) -> bool:
    """Return True if the server has no such route, or runs a model that does not support it.

    vLLM says so by 404, 501, or, in older versions, by a 400 "The model does not support Score API". It
    answers 404 for an unknown model too, and then says something else.
    """
    if answer.status in (404, 405, 501):
        return answer.status != 404 or _is_route_missing(answer)
    return answer.status == 400 and b"does not support" in answer.body and b" API" in answer.body
