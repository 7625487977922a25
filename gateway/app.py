"""Composition root: builds the gateway from its settings and gives one raw ASGI callable."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Coroutine
from typing import Any, Final
from urllib.parse import unquote

import orjson
from redis.asyncio import Redis
from redis.exceptions import RedisError

from gateway import wal
from gateway.backends.base import Backend
from gateway.backends.openai_http import OpenAIHttpBackend
from gateway.backends.upstream import Upstream
from gateway.backends.worker import WorkerBackend
from gateway.completions import Completions
from gateway.errors import GatewayError, MethodNotAllowed, NoSuchRoute, RoutesUnavailable, render
from gateway.http import JSON, ClientGone, Cors, Header, Receive, Scope, Send, bearer, respond
from gateway.metering import Meter
from gateway.models import get_model, list_models
from gateway.openai_schema import PARAMETERS
from gateway.route_feed import RouteFeed
from gateway.routing import authenticate
from gateway.settings import Settings
from gateway.shipper import Shipper
from gateway.wal import Wal
from gateway.wire import uuid7

logger = logging.getLogger(__name__)

_MODELS: Final = "/v1/models"


class Gateway:
    """The ASGI application; its lifespan opens and closes everything it holds."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._cors = Cors(settings.cors_origins)
        self._tasks: list[asyncio.Task[None]] = []
        self._dead: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._serve(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._live(receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = uuid7()
        headers: list[Header] = [(b"x-request-id", request_id.encode()), *self._cors.headers(scope)]
        try:
            if scope["path"] in PARAMETERS and scope["method"] == "POST":
                await self._completions.serve(scope, receive, send, request_id, headers)
            elif scope["method"] == "OPTIONS":
                await self._cors.preflight(scope, send, request_id.encode())
            else:
                status, value = self._get(scope)
                await respond(send, status, orjson.dumps(value), [JSON, *headers])
        except GatewayError as error:
            status, body, extra = render(error)
            await respond(send, status, body, [JSON, *headers, *extra.items()])
        except ClientGone:
            return
        except Exception:
            # Sends nothing more when the response has begun; the server then cuts the connection.
            logger.exception("request %s failed", request_id)
            body = orjson.dumps({"error": _internal(request_id)})
            await respond(send, 500, body, [JSON, *headers])

    def _get(self, scope: Scope) -> tuple[int, object]:
        path = scope["path"]
        if path in PARAMETERS:
            raise MethodNotAllowed(f"{path} takes POST.")
        if scope["method"] not in ("GET", "HEAD"):
            raise NoSuchRoute(f"There is no {scope['method']} {path}.")
        if path == "/healthz":
            return 200, {"status": "ok"}
        if path == "/readyz":
            return self._readiness()
        if path == _MODELS or path.startswith(_MODELS + "/"):
            table = self._feed.current()
            caller = authenticate(table, bearer(scope))
            if path == _MODELS:
                return 200, list_models(table, caller.tenant)
            return 200, get_model(table, caller.tenant, unquote(path.removeprefix(_MODELS + "/")))
        raise NoSuchRoute(
            f"There is no GET {path}. The API is /v1/chat/completions, /v1/completions, /v1/models."
        )

    def _readiness(self) -> tuple[int, object]:
        reasons = [reason] if (reason := self._wal.admits()) else []
        reasons += [f"The {name} has ended; restart the gateway." for name in self._dead]
        version = None
        try:
            version = self._feed.current().version
        except RoutesUnavailable as error:
            reasons.append(error.message)
        status = "waiting" if reasons else "ready"
        return (503 if reasons else 200), {"status": status, "routes_version": version, "reasons": reasons}

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            self._open()
        except (OSError, RuntimeError) as error:
            message = f"gateway: cannot start: {error}"
            await send({"type": "lifespan.startup.failed", "message": message})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._close()
        await send({"type": "lifespan.shutdown.complete"})

    def _open(self) -> None:
        settings = self._settings
        self._redis = Redis.from_url(settings.redis_url, socket_timeout=5, socket_connect_timeout=2)
        self._upstream = Upstream()
        self._wal = Wal(wal.claim(settings.wal_dir))
        if self._wal.recovered:
            logger.warning("usage log: %d interrupted streams recovered", self._wal.recovered)
        self._feed = RouteFeed(self._redis, stale_seconds=settings.stale_seconds)
        self._meter = Meter(self._wal, settings.gateway_id)
        self._shipper = Shipper(self._wal, self._redis)
        backends: dict[str, Backend] = {
            "worker": WorkerBackend(self._upstream, settings.fleet_token),
            "openai_http": OpenAIHttpBackend(self._upstream, settings.openai_http_key),
        }
        self._completions = Completions(self._feed, self._meter, backends)
        self._start("route feed", self._feed.run())
        self._start("meter", self._meter.run())
        self._start("usage shipper", self._shipper.run())
        self._start("shipper of abandoned logs", self._ship_abandoned())

    def _start(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Background work never ends by itself: its end is a fault that only a restart mends."""
        if not task.cancelled():
            logger.critical("the %s has ended", task.get_name(), exc_info=task.exception())
            self._dead.append(task.get_name())

    async def _close(self) -> None:
        pending = set(self._tasks)
        while pending:
            # A cancellation that meets a timeout inside the Redis client comes out as the timeout, which
            # these loops wait out: so it is said until it is heard.
            for task in pending:
                task.cancel()
            _, pending = await asyncio.wait(pending, timeout=0.5)
        try:
            await asyncio.wait_for(self._shipper.drain(), 3)
        except (RedisError, OSError, TimeoutError) as error:
            logger.warning("usage log: not all is shipped, the next start goes on: %s", error)
        self._wal.close()
        await self._upstream.close()
        await self._redis.aclose()

    async def _ship_abandoned(self) -> None:
        """Ships logs whose process is gone and whose slot nobody took over."""
        while True:
            try:
                for slot in wal.abandoned(self._settings.wal_dir):
                    await self._ship(slot)
            except OSError as error:
                logger.warning("usage log: abandoned slots wait: %s", error)
            await asyncio.sleep(60)

    async def _ship(self, slot: wal.Slot) -> None:
        """Empties a slot; what cannot be shipped stays for the next time."""
        try:
            log = Wal(slot)
        except OSError as error:
            logger.warning("usage log: %s waits for room: %s", slot.folder, error)
            slot.release()
            return
        whole = False
        try:
            whole = await Shipper(log, self._redis).drain()
        except (RedisError, OSError) as error:
            logger.warning("usage log: %s waits for Redis: %s", slot.folder, error)
        finally:
            log.close(delete=whole)


def _internal(request_id: str) -> dict[str, str | None]:
    message = f"The gateway failed on this request. Name {request_id} when you report it."
    return {"message": message, "type": "server_error", "code": "internal_error", "param": None}


def create() -> Gateway:
    """The application of one serving process, from the environment.

    Raises:
        SettingsError: a variable is missing or malformed.
    """
    return Gateway(Settings.from_env(os.environ))
