"""The gateway as a raw ASGI application: probes, the API's routes, and errors."""

from __future__ import annotations

import asyncio
import hmac
import logging
from typing import Final
from urllib.parse import unquote

import orjson

from contracts.usage_event import uuid7
from gateway.api.bodies import Bodies
from gateway.api.models import get_model, list_models
from gateway.api.schema import ALIASES
from gateway.completions import PATHS
from gateway.errors import GatewayError, MethodNotAllowed, NoSuchRoute, ResponseBroken, Stopping, render
from gateway.http.asgi import JSON, Cors, Header, Receive, Scope, Send, bearer, respond
from gateway.idempotency import idempotency_key
from gateway.observability import RequestTrace, exposition, logs
from gateway.request_context import RequestContext
from gateway.resources import Resources
from gateway.routing import Authorizer
from gateway.settings import Settings

logger = logging.getLogger(__name__)

_MODELS: Final = "/v1/models"
_ROUTES_SECONDS: Final = 30.0
"""How long a process waits for its first route table before it accepts connections."""
_PROBES: Final = frozenset({"/healthz", "/readyz", "/metrics"})


class Gateway:
    """The ASGI application; its lifespan opens and closes its resources."""

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
        request_id, resources = uuid7(), self._resources
        # Every later step, such as a key's restriction to endpoints, knows one path of an endpoint.
        scope["path"] = ALIASES.get(scope["path"], scope["path"])
        headers: list[Header] = [(b"x-request-id", request_id.encode()), *self._cors.headers(scope)]
        if scope["path"] in _PROBES and scope["method"] in ("GET", "HEAD"):
            await self._probe(scope, send, headers)
            return
        trace = resources.observer.begin(scope, request_id)
        task = None
        try:
            task = resources.drain.register()
            if scope["path"] in PATHS and scope["method"] == "POST":
                await self._post(scope, receive, send, headers, trace)
            elif scope["method"] == "OPTIONS":
                await self._cors.preflight(scope, send, request_id.encode())
            else:
                await respond(send, 200, orjson.dumps(self._get(scope)), [JSON, *headers])
        except GatewayError as error:
            status, body, extra = render(error)
            resources.observer.failed(trace, error, status)
            await respond(send, status, body, [JSON, *headers, *extra.items()])
        except asyncio.CancelledError:
            resources.observer.interrupted(trace)
            if not resources.drain.cut():
                raise
            status, body, extra = render(Stopping())
            await respond(send, status, body, [JSON, *headers, *extra.items()])
        except Exception as error:
            resources.observer.crashed(trace)
            # The exception's text may hold the client's data, so it is not logged.
            logger.error("request %s failed", request_id, extra={"fields": logs.stack(error)})
            await self._apologize(send, request_id, headers)
        finally:
            if task is not None:
                resources.drain.unregister(task)
            resources.observer.end(trace)

    async def _post(
        self, scope: Scope, receive: Receive, send: Send, headers: list[Header], trace: RequestTrace
    ) -> None:
        """Authorize the caller, read the body and answer. Raises GatewayError."""
        key, resources = idempotency_key(scope), self._resources
        table = resources.feed.current()
        caller = self._authorizer.authorize(table, scope)
        trace.tenant, trace.key_id = caller.tenant, caller.key_id
        trace.pause()
        body = await self._bodies.read(scope, receive)
        trace.resume()
        context = RequestContext(scope, receive, send, headers, trace, table, caller, body)
        if key:
            await resources.idempotency.serve(context, key)
        else:
            await resources.completions.serve(context)

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
            status, value = (
                self._resources.health.alive()
                if scope["path"] == "/healthz"
                else self._resources.health.ready()
            )
            await respond(send, status, orjson.dumps(value), [JSON, *headers])
        elif self._may_scrape(scope):
            self._resources.observer.metrics.publish(self._resources.state)
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
            table = self._resources.feed.current()
            caller = self._authorizer.authorize(table, scope)
            if path == _MODELS:
                return list_models(table, caller)
            return get_model(table, caller, unquote(path.removeprefix(_MODELS + "/")))
        raise NoSuchRoute(f"There is no GET {path}. The API is {', '.join(sorted(PATHS))} and {_MODELS}.")

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            self._resources = Resources(self._settings, self._authorizer)
            self._resources.start()
        except (OSError, RuntimeError) as error:
            message = f"gateway: cannot start: {error}"
            await send({"type": "lifespan.startup.failed", "message": message})
            return
        # A restarted process without routes would refuse models that its siblings serve.
        await self._resources.feed.first(_ROUTES_SECONDS)
        await send({"type": "lifespan.startup.complete"})
        await self._resources.drain.wait(asyncio.ensure_future(receive()))
        await self._resources.close()
        await send({"type": "lifespan.shutdown.complete"})

    def stop(self) -> None:
        """Begin to drain: the server was asked to stop, and is about to close idle connections."""
        self._resources.drain.begin()


def _internal(request_id: str) -> dict[str, str | None]:
    message = f"The gateway failed on this request. Name {request_id} when you report it."
    return {"message": message, "type": "server_error", "code": "internal_error", "param": None}
