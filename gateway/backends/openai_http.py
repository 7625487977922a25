"""Any OpenAI-compatible server, such as vLLM with the adapters loaded under their engine names."""

from __future__ import annotations

from typing import Any

from gateway.backends.base import BackendRequest
from gateway.backends.upstream import Upstream, UpstreamStream


class OpenAIHttpBackend:
    """Speaks plain OpenAI: the adapter is named by the model, the tenant's cache salt goes along."""

    def __init__(self, upstream: Upstream, key: str) -> None:
        self._upstream = upstream
        self._headers = {"authorization": f"Bearer {key}"} if key else {}

    def model_name(self, request: BackendRequest) -> str:
        return request.resolution.engine_name or request.resolution.route.served_name

    async def stream(self, request: BackendRequest) -> UpstreamStream:
        call = request.call
        body: dict[str, Any] = {**call.parameters, "model": self.model_name(request)}
        if request.cache_salt:
            body["cache_salt"] = request.cache_salt
        if call.stream:
            body["stream"] = True
            body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
        return await self._upstream.post(request, body, self._headers)

    async def close(self) -> None:
        await self._upstream.close()
