"""Refusals as the LMI container writes them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiohttp import web

from worker_engine.errors import RequestError

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_REFUSED: Final = 424
"""What LMI answers when it cannot use a request: a bad parameter, an unknown adapter."""


def lmi_error(error: RequestError) -> dict[str, Any]:
    """`/invocations`: the message names the parameter; `param` is ours."""
    return {"error": str(error), "code": lmi_status(error), "param": error.param}


def lmi_status(error: RequestError) -> int:
    return _REFUSED if error.status in (400, 404) else error.status


def in_lmi_form(handler: Handler) -> Handler:
    """The handler, its refusals as `/invocations` answers them."""
    return _with_refusals(handler, lambda error: (lmi_error(error), lmi_status(error)))


def in_management_form(handler: Handler) -> Handler:
    """The handler, its refusals as the adapter management API answers them."""

    def refusal(error: RequestError) -> tuple[dict[str, Any], int]:
        body = {"code": error.status, "type": type(error).__name__, "message": str(error)}
        return body, error.status

    return _with_refusals(handler, refusal)


def _with_refusals(
    handler: Handler, refusal: Callable[[RequestError], tuple[dict[str, Any], int]]
) -> Handler:
    """The handler; `refusal` gives the body and the status of an error's answer."""

    async def handle(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except RequestError as error:
            body, status = refusal(error)
            headers = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
            return web.json_response(body, status=status, headers=headers)

    return handle
