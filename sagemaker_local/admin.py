"""`/_local`: routes that SageMaker does not have, for holders of the admin token."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from aiohttp import web

from sagemaker_local.clock import Clock
from sagemaker_local.faults import Fault, Faults
from sagemaker_local.gate import Gate
from sagemaker_local.runtime import Runtime
from sagemaker_local.state import ConfigError, Endpoint, State


class Admin:
    """Admin routes: endpoints, faults, rates, the clock, and the record of invocations."""

    def __init__(self, state: State, faults: Faults, runtime: Runtime, clock: Clock, gate: Gate) -> None:
        self._state, self._faults, self._runtime = state, faults, runtime
        self._clock, self._gate = clock, gate

    @property
    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/_local/health", self.health),
            web.put("/_local/endpoints/{endpoint}", self.put_endpoint),
            web.delete("/_local/endpoints/{endpoint}", self.delete_endpoint),
            web.put("/_local/faults", self.put_faults),
            web.put("/_local/rates", self.put_rates),
            web.get("/_local/clock", self.clock),
            web.put("/_local/clock", self.put_clock),
            web.get("/_local/invocations", self.invocations),
        ]

    async def health(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def put_endpoint(self, request: web.Request) -> web.Response:
        """Put an endpoint; the body is one of the configuration file."""
        try:
            endpoint = Endpoint.from_dict(await request.json())
        except (ConfigError, json.JSONDecodeError) as error:
            raise web.HTTPBadRequest(text=str(error)) from error
        self._state.put(request.match_info["endpoint"], endpoint)
        return web.json_response({})

    async def delete_endpoint(self, request: web.Request) -> web.Response:
        self._state.delete(request.match_info["endpoint"])
        return web.json_response({})

    async def put_faults(self, request: web.Request) -> web.Response:
        """Replace the pending faults by the list in the body."""
        try:
            value: Any = await request.json()
            self._faults.set([Fault.from_dict(item) for item in value])
        except (ValueError, TypeError) as error:
            raise web.HTTPBadRequest(text=str(error)) from error
        return web.json_response({})

    async def put_rates(self, request: web.Request) -> web.Response:
        """Replace the configured rates: operations a second by name, "*" for all others."""
        value = await _object(request)
        if not all(isinstance(rate, int | float) and rate > 0 for rate in value.values()):
            raise web.HTTPBadRequest(text="rates are positive numbers")
        self._gate.rates = value
        return web.json_response({})

    async def clock(self, request: web.Request) -> web.Response:
        return web.json_response({"now": self._clock.now(), "running": self._clock.running})

    async def put_clock(self, request: web.Request) -> web.Response:
        """Move the clock on by `{"advance": seconds}`, or stop it by `{"running": false}`."""
        value = await _object(request)
        seconds, running = value.get("advance", 0), value.get("running", self._clock.running)
        known = set(value) <= {"advance", "running"} and isinstance(running, bool)
        if not known or not isinstance(seconds, int | float) or not 0 <= seconds <= 366 * 86_400:
            raise web.HTTPBadRequest(
                text="a clock takes advance, seconds up to a year, and running, true or false"
            )
        self._clock.run(running)
        await self._clock.advance(seconds)
        return await self.clock(request)

    async def invocations(self, request: web.Request) -> web.Response:
        """List the result of every invocation so far."""
        return web.json_response([asdict(item) for item in self._runtime.invocations])


async def _object(request: web.Request) -> dict[str, Any]:
    try:
        value = await request.json()
    except json.JSONDecodeError as error:
        raise web.HTTPBadRequest(text=str(error)) from error
    if not isinstance(value, dict):
        raise web.HTTPBadRequest(text="the body must be an object")
    return value
