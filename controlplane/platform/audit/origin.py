"""Who acts and from where, found by `services.audit_record` without being handed through every service."""

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
    """Who acts; `kind` is one of AuditRecord.Kind."""

    kind: str
    id: str = ""
    name: str = ""


@runtime_checkable
class HasActor(Protocol):
    """What may stand as `request.user` and does not remain anonymous."""

    def audit_actor(self) -> Actor: ...


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a change comes from. `who` is asked late: a request's user is known after its view began."""

    who: Callable[[], Actor]
    address: str = ""
    user_agent: str = ""
    request_id: str = ""


_current: ContextVar[Origin | None] = ContextVar("audit_origin", default=None)


def current_origin() -> Origin:
    """The request's that is being answered; else the system's: a task, or a command of `manage.py`."""
    return _current.get() or Origin(_system)


def answers_a_request() -> bool:
    """Whether somebody asked this process for what it does: not in tasks, and not in commands."""
    return _current.get() is not None


@contextmanager
def acting(origin: Origin) -> Iterator[None]:
    """What is recorded inside comes from `origin`."""
    token = _current.set(origin)
    try:
        yield
    finally:
        _current.reset(token)


def operator(name: str) -> Origin:
    """A person at the server's command line, by the name that they state."""
    return Origin(lambda: Actor("staff", "command line", name))


def _system() -> Actor:
    if current_task:
        return Actor("system", current_task.name)
    program, *arguments = [*sys.argv, ""]
    # `manage.py <command>`, else a program of its own.
    name = arguments[0] if Path(program).name == "manage.py" else Path(program).stem
    return Actor("system", name[:100])


def request_origin(request: HttpRequest) -> Origin:
    """The request's, with the id that the answer will carry."""
    given = request.headers.get("X-Request-ID", "")
    is_given = peer_is_trusted(request) and _REQUEST_ID.fullmatch(given)
    address = request_address(request)
    agent = request.headers.get("User-Agent", "").replace("\0", "")[:300]
    request_id = given if is_given else uuid.uuid4().hex

    def who() -> Actor:
        user = getattr(request, "user", None)
        return user.audit_actor() if isinstance(user, HasActor) else Actor("anonymous")

    return Origin(who, "" if address is None else str(address), agent, request_id)


class AuditOriginMiddleware:
    """Makes each request the origin of what is recorded while it is answered; answers carry X-Request-ID."""

    async_capable, sync_capable = True, True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self._get_response = get_response
        self._is_async = iscoroutinefunction(get_response)
        if self._is_async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> HttpResponse | Awaitable[HttpResponse]:
        if self._is_async:
            return self._later(request)
        origin = request_origin(request)
        with acting(origin):
            return _marked(self._get_response(request), origin)

    async def _later(self, request: HttpRequest) -> HttpResponse:
        origin = request_origin(request)
        with acting(origin):
            return _marked(await self._get_response(request), origin)


def _marked(response: HttpResponse, origin: Origin) -> HttpResponse:
    response.headers["X-Request-ID"] = origin.request_id
    return response
