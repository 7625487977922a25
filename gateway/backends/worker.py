"""The bundled worker: takes the whole adapter reference with the request and never calls back."""

from __future__ import annotations

from typing import Any

from contracts.prompt_progress import PROMPT_PROGRESS_HEADER
from gateway.backends.base import BackendRequest
from gateway.backends.upstream import Upstream, UpstreamStream


class WorkerBackend:
    """Calls `python -m worker_engine`."""

    def __init__(self, upstream: Upstream, fleet_token: str) -> None:
        self._upstream = upstream
        # A header rather than a body field: workers of an earlier release ignore it.
        self._headers = {"authorization": f"Bearer {fleet_token}", PROMPT_PROGRESS_HEADER: "1"}

    async def stream(self, request: BackendRequest) -> UpstreamStream:
        call, adapter = request.call, request.adapter
        body: dict[str, Any] = {**call.parameters, "model": request.model_name}
        body |= request.origin()
        body["cache_salt"] = request.cache_salt
        if adapter is not None:
            body["adapter"] = adapter.to_dict()
        if call.streams:
            body["stream"] = True
            body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
        return await self._upstream.post(request, body, self._headers)

    async def close(self) -> None:
        await self._upstream.close()
