"""Composition root: builds the gateway from its settings as a raw ASGI application."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import os
from typing import Final
from urllib.parse import unquote

import orjson
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from contracts.tracing import Tracing
from contracts.usage_event import uuid7
from gateway.admission import Admission, Broker, line
from gateway.api.bodies import Bodies
from gateway.api.models import get_model, list_models
from gateway.backends.base import Backend
from gateway.backends.openai_http import OpenAIHttpBackend
from gateway.backends.sagemaker import SageMakerBackend
from gateway.backends.upstream import Upstream, backend_tls
from gateway.backends.worker import WorkerBackend
from gateway.completions import PATHS, Completions
from gateway.dispatch import Dispatcher
from gateway.errors import GatewayError, MethodNotAllowed, NoSuchRoute, ResponseBroken, Stopping, render
from gateway.http.asgi import JSON, Cors, Header, Receive, Scope, Send, bearer, respond
from gateway.http.aws.credentials import BotocoreCredentials
from gateway.idempotency import AnswerStore, Idempotency, idempotency_key
from gateway.lifecycle.drain import Drain
from gateway.lifecycle.health import Health
from gateway.lifecycle.presence import Presence
from gateway.lifecycle.state import GatewayState
from gateway.observability import Observer, RequestTrace, exposition, logs
from gateway.observability.metrics import Metrics
from gateway.request_context import RequestContext
from gateway.routing import Authorizer
from gateway.routing.fleet import Fleet
from gateway.routing.poller import LoadPoller
from gateway.routing.route_feed import RouteFeed
from gateway.routing.waiting_room import WaitingRoom
from gateway.settings import Settings
from gateway.usage.metering import Meter
from gateway.usage.prompt_log import PromptLog
from gateway.usage.shipper import Shipper
from gateway.usage.wal import Wal
from gateway.usage.wal_slots import Slot, abandoned, claim

logger = logging.getLogger(__name__)

_MODELS: Final = "/v1/models"
_INGEST_SECONDS: Final = 10
"""How long an abandoned, shipped log is held until its events are ingested; then until the next attempt."""
_ROUTES_SECONDS: Final = 30.0
"""How long a process waits for its first route table before it accepts connections."""
_PROBES: Final = frozenset({"/healthz", "/readyz", "/metrics"})


class Gateway:
    """The ASGI application; its lifespan opens and closes all its resources."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._cors = Cors(settings.cors_origins)
        self._authorizer = Authorizer(settings.trusted_proxies)
        self._bodies = Bodies(most=settings.body_bytes, seconds=settings.body_seconds)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._serve(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._live(receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = uuid7()
        headers: list[Header] = [(b"x-request-id", request_id.encode()), *self._cors.headers(scope)]
        if scope["path"] in _PROBES and scope["method"] in ("GET", "HEAD"):
            await self._probe(scope, send, headers)
            return
        trace = self._observer.begin(scope, request_id)
        task = None
        try:
            task = self._drain.register()
            if scope["path"] in PATHS and scope["method"] == "POST":
                await self._post(scope, receive, send, headers, trace)
            elif scope["method"] == "OPTIONS":
                await self._cors.preflight(scope, send, request_id.encode())
            else:
                await respond(send, 200, orjson.dumps(self._get(scope)), [JSON, *headers])
        except GatewayError as error:
            status, body, extra = render(error)
            self._observer.failed(trace, error, status)
            await respond(send, status, body, [JSON, *headers, *extra.items()])
        except asyncio.CancelledError:
            self._observer.interrupted(trace)
            if not self._drain.cut():
                raise
            status, body, extra = render(Stopping())
            await respond(send, status, body, [JSON, *headers, *extra.items()])
        except Exception as error:
            self._observer.crashed(trace)
            # The exception's text may hold the client's data, so it is not logged.
            logger.error("request %s failed", request_id, extra={"fields": logs.stack(error)})
            await self._apologize(send, request_id, headers)
        finally:
            if task is not None:
                self._drain.unregister(task)
            self._observer.end(trace)

    async def _post(
        self, scope: Scope, receive: Receive, send: Send, headers: list[Header], trace: RequestTrace
    ) -> None:
        """Authorize the caller, read the body and answer. Raises GatewayError."""
        key = idempotency_key(scope)
        table = self._feed.current()
        caller = self._authorizer.authorize(table, scope)
        trace.tenant, trace.key_id = caller.tenant, caller.key_id
        trace.pause()
        body = await self._bodies.read(scope, receive)
        trace.resume()
        context = RequestContext(scope, receive, send, headers, trace, table, caller, body)
        if key:
            await self._idempotency.serve(context, key)
        else:
            await self._completions.serve(context)

    async def _apologize(self, send: Send, request_id: str, headers: list[Header]) -> None:
        """Answer 500 unless the response has begun; the server then cuts the connection."""
        body = orjson.dumps({"error": _internal(request_id)})
        try:
            await respond(send, 500, body, [JSON, *headers])
        except Exception:
            # `from None`: the server would log the original exception with its text.
            raise ResponseBroken(f"request {request_id} failed after its response had begun") from None

    async def _probe(self, scope: Scope, send: Send, headers: list[Header]) -> None:
        """Answer health checks, and metrics to callers with the metrics token, else 404."""
        if scope["path"] != "/metrics":
            status, value = self._health.alive() if scope["path"] == "/healthz" else self._health.ready()
            await respond(send, status, orjson.dumps(value), [JSON, *headers])
        elif self._may_scrape(scope):
            self._observer.metrics.publish(self._state)
            text = await asyncio.to_thread(exposition.render, self._settings.wal_dir)
            await respond(send, 200, text, [(b"content-type", exposition.CONTENT_TYPE), *headers])
        else:
            status, body, _ = render(NoSuchRoute("There is no GET /metrics."))
            await respond(send, status, body, [JSON, *headers])

    def _may_scrape(self, scope: Scope) -> bool:
        token = self._settings.metrics_token
        return bool(token) and hmac.compare_digest(bearer(scope).encode(), token.encode())

    def _get(self, scope: Scope) -> object:
        path = scope["path"]
        if path in PATHS:
            raise MethodNotAllowed(f"{path} takes POST.")
        if scope["method"] not in ("GET", "HEAD"):
            raise NoSuchRoute(f"There is no {scope['method']} {path}.")
        if path == _MODELS or path.startswith(_MODELS + "/"):
            table = self._feed.current()
            caller = self._authorizer.authorize(table, scope)
            if path == _MODELS:
                return list_models(table, caller)
            return get_model(table, caller, unquote(path.removeprefix(_MODELS + "/")))
        raise NoSuchRoute(f"There is no GET {path}. The API is {', '.join(sorted(PATHS))} and {_MODELS}.")

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            self._open()
        except (OSError, RuntimeError) as error:
            message = f"gateway: cannot start: {error}"
            await send({"type": "lifespan.startup.failed", "message": message})
            return
        # A restarted process without routes would refuse models that its siblings serve.
        await self._feed.first(_ROUTES_SECONDS)
        await send({"type": "lifespan.startup.complete"})
        await self._drain.wait(asyncio.ensure_future(receive()))
        await self._close()
        await send({"type": "lifespan.shutdown.complete"})

    def stop(self) -> None:
        """Begin to drain: the server was asked to stop, and is about to close idle connections."""
        self._drain.begin()

    def _open(self) -> None:
        settings = self._settings
        self._redis = Redis.from_url(settings.redis_url, socket_timeout=5, socket_connect_timeout=2)
        trusted = backend_tls(settings.backend_ca)
        self._upstream = Upstream(tls=trusted)
        self._wal = Wal(claim(settings.wal_dir))
        if self._wal.recovered:
            logger.warning("usage log: %d interrupted streams recovered", self._wal.recovered)
        self._feed = RouteFeed(self._redis, stale_seconds=settings.stale_seconds)
        self._drain = drain = Drain(settings.drain_seconds)
        self._health = Health(self._wal, self._feed, drain)
        room = WaitingRoom(self._feed, self._redis, most=settings.held)
        self._tracing = Tracing.start("graftwork-gateway", os.environ)
        self._observer = Observer(
            Metrics(self._wal.folder, adapters=settings.metrics_adapters),
            PATHS,
            tracing=self._tracing,
            access_log=settings.access_log,
        )
        self._meter = Meter(self._wal, settings.gateway_id, self._observer)
        self._shipper = Shipper(self._wal, self._redis)
        backends: dict[str, Backend] = {
            "worker": WorkerBackend(self._upstream, settings.fleet_token),
            "openai_http": OpenAIHttpBackend(self._upstream, settings.openai_http_key),
            "sagemaker": SageMakerBackend(self._upstream, BotocoreCredentials(), room),
        }
        self._fleet = Fleet()
        self._dispatcher = Dispatcher(self._meter, backends, self._fleet)
        self._limits_redis = line(settings.redis_url)
        self._broker = Broker(self._limits_redis, self._wal.slot.id)
        admission = Admission(
            self._broker, queue_seconds=settings.queue_seconds, queue_length=settings.queue_length
        )
        self._prompts = PromptLog(self._redis)
        self._completions = Completions(
            self._feed,
            self._authorizer,
            admission,
            self._meter,
            self._dispatcher,
            self._observer,
            drain,
            room,
            self._prompts,
        )
        self._answers_redis = Redis.from_url(
            settings.redis_url, socket_timeout=1, socket_connect_timeout=1, retry=Retry(NoBackoff(), 0)
        )
        answers = AnswerStore(self._answers_redis, settings.fleet_token)
        self._idempotency = Idempotency(answers, self._completions.serve)
        self._state = GatewayState(
            self._wal, self._shipper, self._feed, self._fleet, self._broker, self._dispatcher.counters, room
        )
        start = self._health.start
        start("route feed", self._feed.run())
        poller = LoadPoller(self._feed, self._fleet, settings.fleet_token, tls=trusted)
        start("load poller", poller.run())
        start("limits", self._broker.run())
        start("waiting room", room.run())
        start("meter", self._meter.run())
        start("usage shipper", self._shipper.run())
        start("prompt log", self._prompts.run())
        start("shipper of abandoned logs", self._ship_abandoned())
        start("metrics", self._observer.run(self._state))
        self._presence = Presence(self._redis, settings.gateway_id, self._state, self._health)
        start("presence", self._presence.run())

    async def _close(self) -> None:
        pending = set(self._health.tasks)
        while pending:
            # A timeout inside the Redis client can replace a cancellation, and these loops wait timeouts out.
            # So the cancellation is repeated until it takes effect.
            for task in pending:
                task.cancel()
            _, pending = await asyncio.wait(pending, timeout=0.5)
        with contextlib.suppress(RedisError, OSError, TimeoutError):
            await asyncio.wait_for(self._prompts.ship(), 1)
        try:
            await asyncio.wait_for(self._shipper.drain(), 3)
        except (RedisError, OSError, TimeoutError) as error:
            logger.warning("usage log: events remain unshipped until the next start: %s", error)
        # In parallel: with Redis away each close waits for one of the few seconds that a stop has.
        await asyncio.gather(self._broker.close(), self._presence.withdraw())
        await self._limits_redis.aclose()
        await self._answers_redis.aclose()
        self._wal.close()
        await self._upstream.close()
        await self._redis.aclose()
        self._observer.metrics.end()
        if self._tracing is not None:
            await asyncio.to_thread(self._tracing.close)

    async def _ship_abandoned(self) -> None:
        """Ship logs of slots whose process is gone and which no other process took over."""
        while True:
            try:
                for slot in abandoned(self._settings.wal_dir):
                    await self._ship(slot)
            except OSError as error:
                logger.warning("usage log: abandoned slots are not shipped yet: %s", error)
            await asyncio.sleep(60)

    async def _ship(self, slot: Slot) -> None:
        """Empty a slot; events that cannot be shipped stay for the next time."""
        try:
            log = Wal(slot)
        except OSError as error:
            logger.warning("usage log: %s cannot be opened for shipping: %s", slot.folder, error)
            slot.release()
            return
        shipper, whole = Shipper(log, self._redis), False
        try:
            if await shipper.drain():
                for _ in range(_INGEST_SECONDS * 5):
                    if whole := await shipper.ingested():
                        await self._presence.forget(slot.id)
                        break
                    await asyncio.sleep(0.2)
        except (RedisError, OSError) as error:
            logger.warning("usage log: Redis is unreachable; %s is not shipped yet: %s", slot.folder, error)
        finally:
            log.close(delete=whole)


def _internal(request_id: str) -> dict[str, str | None]:
    message = f"The gateway failed on this request. Name {request_id} when you report it."
    return {"message": message, "type": "server_error", "code": "internal_error", "param": None}
