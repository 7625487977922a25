"""The actor and address of the current change, kept in a context variable for `services.audit_record`."""

from __future__ import annotations

import re
import sys
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from celery import current_task
from django.http import HttpRequest, HttpResponse

from controlplane.platform.http.addresses import peer_is_trusted, request_address

_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,64}")


@dataclass(frozen=True, slots=True)
class Actor:
    """The actor of a change; `kind` is one of AuditRecord.Kind."""

    kind: str
    id: str = ""
    name: str = ""


@runtime_checkable
class HasActor(Protocol):
    """A `request.user` that names its actor."""

    def audit_actor(self) -> Actor: ...


@dataclass(frozen=True, slots=True)
class Origin:
    """The source of a change. `who` is called late: a request's user is known once its view has begun."""

    who: Callable[[], Actor]
    address: str = ""
    user_agent: str = ""
    request_id: str = ""


_current: ContextVar[Origin | None] = ContextVar("audit_origin", default=None)


def current_origin() -> Origin:
    """Return the current request's origin, else the system's: a task or a `manage.py` command."""
    return _current.get() or Origin(_system)


def answers_a_request() -> bool:
    """Return True while a request is being answered; False in tasks and commands."""
    return _current.get() is not None


@contextmanager
def acting(origin: Origin) -> Iterator[None]:
    """Use `origin` for the audit records written inside the block."""
    token = _current.set(origin)
    try:
        yield
    finally:
        _current.reset(token)


def operator(name: str) -> Origin:
    """Return the origin of a person at the server's command line, by their stated name."""
    return Origin(lambda: Actor("staff", "command line", name))


def _system() -> Actor:
    if current_task:
        return Actor("system", current_task.name)
    program, *arguments = [*sys.argv, ""]
    # `manage.py <command>`, else the program's own name.
    name = arguments[0] if Path(program).name == "manage.py" else Path(program).stem
    return Actor("system", name[:100])


def request_origin(request: HttpRequest) -> Origin:
    """Return the request's origin, with the request id that the response will carry."""
    client_id = request.headers.get("X-Request-ID", "")
    is_accepted = peer_is_trusted(request) and _REQUEST_ID.fullmatch(client_id)
    address = request_address(request)
    agent = request.headers.get("User-Agent", "").replace("\0", "")[:300]
    request_id = client_id if is_accepted else uuid.uuid4().hex

    def actor() -> Actor:
        user = getattr(request, "user", None)
        return user.audit_actor() if isinstance(user, HasActor) else Actor("anonymous")

    return Origin(actor, "" if address is None else str(address), agent, request_id)


class AuditOriginMiddleware:
    """Sets each request as the origin of its audit records; responses carry X-Request-ID."""

    async_capable, sync_capable = True, True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self._get_response = get_response
        self._is_async = iscoroutinefunction(get_response)
        if self._is_async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> HttpResponse | Awaitable[HttpResponse]:
        if self._is_async:
            return self._call_async(request)
        origin = request_origin(request)
        with acting(origin):
            return _marked(self._get_response(request), origin)

    async def _call_async(self, request: HttpRequest) -> HttpResponse:
        origin = request_origin(request)
        with acting(origin):
            return _marked(await self._get_response(request), origin)


def _marked(response: HttpResponse, origin: Origin) -> HttpResponse:
    response.headers["X-Request-ID"] = origin.request_id
    return response
