"""HTTP routes to list, load, pin and evict adapters, used by the control plane's placement.

Adapters are identified by reference and digest, as gateways send them, not by registered names.
"""

from __future__ import annotations

import re
from typing import Final

from aiohttp import web

from contracts.adapters.reference import AdapterRef
from contracts.errors import ContractError
from contracts.openai.kinds import Flag
from worker_engine.adapters.pool import BY_PLACEMENT
from worker_engine.errors import InvalidRequest
from worker_engine.http.routes import SERVICE, Route
from worker_engine.openai.body import parse_object
from worker_engine.openai.fields import Fields
from worker_engine.openai.parameters import Parameter, SchemaOnly, object_schema

_PIN: Final = Flag(default=True)
_BODY: Final[dict[str, Parameter]] = {"adapter": SchemaOnly({"type": "object"}), "pin": _PIN}
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


async def list_resident(request: web.Request) -> web.Response:
    """GET /resident: list the adapters in memory."""
    service = request.app[SERVICE]
    pool, memory = service.adapters, service.engine.scheduler.adapters
    return web.json_response(
        {
            "bytes": pool.nbytes,
            "max_bytes": pool.max_bytes,
            "pinned_bytes": pool.pinned_bytes,
            "adapters": [
                {
                    "sha256": item.sha256,
                    "bytes": item.nbytes,
                    "pinned": sorted(item.pinned),
                    "tier": "device" if memory.has_pages(item.sha256) else "host",
                    "requests": item.users,
                    "idle_seconds": round(item.idle_seconds, 3),
                }
                for item in pool.residencies()
            ],
        }
    )


async def on_disk(request: web.Request) -> web.Response:
    """GET /resident/disk: list the digests of adapters in the disk cache."""
    return web.json_response({"sha256": await request.app[SERVICE].adapters.on_disk()})


async def load(request: web.Request) -> web.Response:
    """POST /resident: load an adapter and answer once it is in memory. Without `pin` it may be evicted."""
    service = request.app[SERVICE]
    fields = Fields(parse_object(await request.read()))
    fields.refuse_others(_BODY)
    try:
        ref = AdapterRef.from_dict(fields.get("adapter", None, dict, "an object"))
    except ContractError as error:
        raise InvalidRequest(str(error), param="adapter") from error
    if fields.read("pin", _PIN):
        await service.adapters.pin(ref, by=BY_PLACEMENT)
    else:
        async with service.adapters.acquire(ref):
            pass
    return web.json_response({"sha256": ref.sha256})


async def unpin(request: web.Request) -> web.Response:
    """POST /resident/{sha256}/unpin: allow eviction when room is needed."""
    pinned = request.app[SERVICE].adapters.unpin(_digest(request), by=BY_PLACEMENT)
    return web.json_response({"pinned": pinned})


async def evict(request: web.Request) -> web.Response:
    """DELETE /resident/{sha256}: unpin the adapter and evict it, now or with its last request."""
    pool, sha256 = request.app[SERVICE].adapters, _digest(request)
    pool.unpin(sha256, by=BY_PLACEMENT)
    return web.json_response({"gone": pool.evict(sha256)})


def _digest(request: web.Request) -> str:
    sha256 = request.match_info["sha256"]
    if _SHA256.fullmatch(sha256) is None:
        raise InvalidRequest("sha256 must be 64 lower-case hex digits", param="sha256")
    return sha256


_SCHEMA: Final = object_schema(_BODY, ["adapter"])
ROUTES: Final = (
    Route("GET", "/resident", list_resident, "Adapters in memory: their tier, pins, requests and last use"),
    Route("GET", "/resident/disk", on_disk, "Adapters whose files are in the disk cache"),
    Route("POST", "/resident", load, "Load an adapter ahead of its requests, and keep it", body=_SCHEMA),
    Route("POST", "/resident/{sha256}/unpin", unpin, "Let an adapter leave when room is needed"),
    Route("DELETE", "/resident/{sha256}", evict, "Let go of an adapter: now, or with its last request"),
)
