"""The context of one POST to the API, which every step of its walk receives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from contracts.route_table import RouteTable
from gateway.admission import Ticket
from gateway.api.dialect import ApiDialect
from gateway.api.schema import Call
from gateway.http.asgi import HangUpWatch, Header, Receive, Scope, Send
from gateway.observability import RequestTrace
from gateway.routing import Caller, Resolution


@dataclass(slots=True, eq=False, repr=False)
class RequestContext:
    """One request, from the time when its caller is known and its body is read.

    `Completions` sets the fields from `dialect` on, in this order, before it sends the request to a copy.

    Attributes:
        headers: go on every response, and gain the limits' headers.
        table: the routes that `caller` and `models` were looked up in.
        dialect: holds the checked request and translates its answer.
        models: what may serve it, in order: the requested model, then its fallbacks.
        check: raises the GatewayError that the request would get now if a resolution served it.
        ticket: its reservations; gets the usage of each attempt.
        cancel_code: error code of its attempts if the gateway cancels it for another prompt's failure.
    """

    scope: Scope
    receive: Receive
    send: Send
    headers: list[Header]
    trace: RequestTrace
    table: RouteTable
    caller: Caller
    body: bytes
    dialect: ApiDialect = field(init=False)
    models: tuple[Resolution, ...] = field(init=False)
    check: Callable[[Resolution], None] = field(init=False)
    watch: HangUpWatch = field(init=False)
    ticket: Ticket = field(init=False)
    cancel_code: str = field(init=False, default="")

    @property
    def id(self) -> str:
        return self.trace.request_id

    @property
    def call(self) -> Call:
        return self.dialect.call

    @property
    def cache_salt(self) -> str:
        """Hex, the tenant's; separates the tenants' prefix caches."""
        return self.table.tenants[self.caller.tenant].cache_salt
