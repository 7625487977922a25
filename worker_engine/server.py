"""The worker's HTTP API: all routes, authorization, and error responses."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import AsyncIterator
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Middleware

from contracts.tracing import Tracing
from kernels import tuned
from worker_engine import metrics, residency
from worker_engine.adapters.merged import MergedAdapter
from worker_engine.errors import (
    BodyTimedOut,
    BodyTooLarge,
    GenerationFailed,
    InvalidRequest,
    MethodNotAllowed,
    RequestError,
    RouteNotFound,
    Unauthorized,
)
from worker_engine.http import openapi
from worker_engine.http.connection import SERVER, error_response, reason
from worker_engine.http.routes import SERVICE, Handler, Route
from worker_engine.kernel_choice import TRITON
from worker_engine.machine import package_version
from worker_engine.openai import embeddings, generation, models, tokens
from worker_engine.openai.parameters import object_schema
from worker_engine.openai.schema import CHAT, COMPLETION
from worker_engine.sagemaker import adapters, invocations
from worker_engine.service import Service
from worker_engine.spans import tracing_middleware

log = logging.getLogger(__name__)

MAX_BODY_BYTES: Final = 8 << 20
BODY_SECONDS: Final = 60.0
_STREAMS: Final = ("application/json", "text/event-stream")


def create_app(service: Service, tracing: Tracing | None = None) -> web.Application:
    """Return the worker's aiohttp application, which starts and stops the service."""
    middlewares: list[Middleware] = [_render_errors, _demand_token, _read_body]
    if tracing is not None:
        middlewares.insert(0, tracing_middleware(tracing))
    app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=middlewares)
    app.on_response_prepare.append(_name_server)
    app[SERVICE] = service
    for route in ROUTES:
        app.router.add_route(route.method, route.path, route.handler)
    app.cleanup_ctx.append(_run_service)
    return app


async def _run_service(app: web.Application) -> AsyncIterator[None]:
    """Run the service with the application. Raises ConfigError if an adapter of the folder is refused."""
    service = app[SERVICE]
    service.start()
    try:
        if service.adapters_dir is not None:
            await service.registry.register_folder(service.adapters_dir)
        yield
    finally:
        await asyncio.to_thread(service.stop)


@web.middleware
async def _render_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except RequestError as error:
        return error_response(error)
    except web.HTTPNotFound:
        return error_response(RouteNotFound(f"there is no {request.path}"))
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        refusal = MethodNotAllowed(f"{request.path} takes {allowed}, not {request.method}")
        return error_response(refusal, {"Allow": allowed})
    except web.HTTPRequestEntityTooLarge:
        return error_response(BodyTooLarge(f"the body is larger than {MAX_BODY_BYTES} bytes"))
    except web.RequestPayloadError as error:
        # After an unreadable body, the connection's next request cannot be located.
        answer = error_response(InvalidRequest(f"the body cannot be read: {reason(error)}"))
        answer.force_close()
        return answer
    except web.HTTPException:
        raise
    except ConnectionError:
        raise  # the client disconnected
    except Exception:
        log.exception("request failed")
        return error_response(GenerationFailed("internal error; the worker's log has the details"))


@web.middleware
async def _read_body(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Read the body before anything else, so that an incomplete body holds only its connection."""
    try:
        async with asyncio.timeout(BODY_SECONDS):
            await request.read()
    except TimeoutError:
        raise BodyTimedOut(f"the body did not arrive within {BODY_SECONDS:g} s") from None
    return await handler(request)


async def _name_server(request: web.Request, response: web.StreamResponse) -> None:
    response.headers["Server"] = SERVER


@web.middleware
async def _demand_token(request: web.Request, handler: Handler) -> web.StreamResponse:
    token = request.app[SERVICE].config.fleet_token
    if token and request.path not in _OPEN_PATHS:
        supplied = request.headers.get("Authorization", "").removeprefix("Bearer ")
        # Headers may hold bytes that are not UTF-8; aiohttp keeps them as surrogates.
        if not hmac.compare_digest(supplied.encode(errors="surrogateescape"), token.encode()):
            raise Unauthorized("this worker wants its fleet token as `Authorization: Bearer ...`")
    return await handler(request)


async def _health(request: web.Request) -> web.Response:
    return _status_response(health_report(request.app[SERVICE]))


def health_report(service: Service) -> dict[str, object]:
    """Return `status` and, while it is `ok`, how the engine computes.

    `/health` is public, so the reason why kernels are off is only logged.
    """
    if (status := service.status) != "ok":
        return {"status": status}
    engine = service.engine
    graphs = "off" if engine.graphs is None else "failed" if engine.graphs.problem else "on"
    return {
        "status": status,
        "device": engine.device.type,
        "kernels": {op: "triton" if state == TRITON else "pytorch" for op, state in engine.kernels.items()},
        "tuned_configs": tuned.loaded_files(),
        "decode_graphs": graphs,
        "overlap": engine.overlaps,
        "merging": merging_report(engine.merged),
        "speculation": service.config.speculation,
        "startup": service.startup.report(),
    }


def merging_report(merged: MergedAdapter | None) -> dict[str, object] | None:
    """Return how far an adapter is merged, and the mean time of decode steps of one adapter with and without.

    None where merging is off. It names no adapter, since `/health` is public.
    """
    if merged is None:
        return None
    layers, of = merged.progress
    means = {"merged": merged.timings.merged.mean_ms, "base": merged.timings.base.mean_ms}
    return {
        "layers": layers,
        "of": of,
        "active": merged.in_place,
        "merges": merged.counts.completed,
        "step_ms": {name: None if mean is None else round(mean, 3) for name, mean in means.items()},
    }


async def _ping(request: web.Request) -> web.Response:
    return _status_response({"status": request.app[SERVICE].status})


def _status_response(report: dict[str, object]) -> web.Response:
    taken = report["status"] == "ok"
    headers = {} if taken else {"Retry-After": "1"}
    return web.json_response(report, status=200 if taken else 503, headers=headers)


async def _metrics(request: web.Request) -> web.Response:
    return web.Response(text=metrics.render(request.app[SERVICE]), content_type="text/plain")


async def _load(request: web.Request) -> web.Response:
    """Report load and resident adapters to gateways, which poll this once a second to choose a copy."""
    service = request.app[SERVICE]
    return web.json_response(
        {"status": service.status, "pending": service.num_pending, "adapters": service.adapters.digests}
    )


async def _drain(request: web.Request) -> web.Response:
    """Stop accepting requests; answer once none runs or the drain time is over. For a container's preStop
    hook.
    """
    service = request.app[SERVICE]
    await service.drain(service.config.drain_seconds)
    return web.json_response({"status": service.status, "pending": service.num_pending})


async def _version(request: web.Request) -> web.Response:
    return web.json_response({"version": package_version("graftwork") or "unknown"})


async def _openapi(request: web.Request) -> web.Response:
    return web.json_response(openapi.document(ROUTES))


ROUTES: Final = (
    Route(
        "POST",
        "/v1/chat/completions",
        generation.chat_completions,
        "Go on with a chat",
        body=object_schema(CHAT, ["model", "messages"]),
        produces=_STREAMS,
    ),
    Route(
        "POST",
        "/v1/completions",
        generation.completions,
        "Go on with a text",
        body=object_schema(COMPLETION, ["model", "prompt"]),
        produces=_STREAMS,
    ),
    *embeddings.ROUTES,
    *models.ROUTES,
    *tokens.ROUTES,
    *invocations.ROUTES,
    *adapters.ROUTES,
    *residency.ROUTES,
    Route("GET", "/health", _health, "Whether requests are taken, and how steps are computed", open=True),
    Route("GET", "/ping", _ping, "Whether requests are taken (SageMaker's contract)", open=True),
    Route("GET", "/metrics", _metrics, "Prometheus metrics", produces=("text/plain",)),
    Route("GET", "/load", _load, "Requests here, and digests of the adapters in memory"),
    Route("POST", "/drain", _drain, "Take no more requests, and wait for those that run"),
    Route("GET", "/version", _version, "This worker's version (as vLLM tells its own)"),
    Route("GET", "/openapi.json", _openapi, "This document"),
)
"""Every operation of the worker."""
_OPEN_PATHS: Final = frozenset(route.path for route in ROUTES if route.open)
