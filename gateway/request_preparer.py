"""Prepares a parsed request for a copy: resolves its model, and reserves it under its limits."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from time import perf_counter

from gateway.admission import Admission, Plan, Reservation, Ticket, clock, reservation
from gateway.admission.template_tokens import TemplateTokens
from gateway.answer import Answer
from gateway.api.schema import POOLING, SCORING, UNKNOWN_RULE
from gateway.http.asgi import Scope
from gateway.request_context import RequestContext
from gateway.routing import Authorizer, Resolution, fallbacks, resolve
from gateway.routing.endpoints import serving
from gateway.routing.images import images_not_served, reading_images, refuses_images
from gateway.routing.not_served import not_served
from gateway.routing.quarantine import QuarantineFeed
from gateway.routing.route_feed import RouteFeed
from gateway.routing.waiting_room import WaitingRoom


class RequestPreparer:
    """Resolves models, reserves requests under their limits, and waits for copies.

    `subject` keeps a caller on one arm of a split alias: a user of the tenant's, or the request.
    """

    def __init__(
        self,
        feed: RouteFeed,
        authorizer: Authorizer,
        admission: Admission,
        room: WaitingRoom,
        quarantine: QuarantineFeed,
    ) -> None:
        self._feed, self._authorizer = feed, authorizer
        self._admission, self._room, self._quarantine = admission, room, quarantine
        self._templates = TemplateTokens()

    def resolve(self, context: RequestContext, subject: str) -> None:
        """Look up the request's model and its fallbacks in the context's table.

        Raises:
            ModelNotFound: the model is not the caller's.
            AdapterNotServed: no copy can serve the adapter, and no fallback can.
            EndpointNotServed: no copy of its base model has the endpoint.
            ImagesNotServed: the request has images, and no copy of its models reads them.
            AdapterQuarantined: the adapter is held back, and there is no fallback that is not.
        """
        table, caller, call = context.table, context.caller, context.call
        resolution = resolve(table, caller.tenant, call.model, subject, allowed=caller.models)
        context.trace.base, context.trace.adapter = resolution.base, resolution.engine_name
        if call.path in SCORING:
            resolution = serving(resolution, call.path)
        context.models = (resolution,)
        # Embeddings, scores and labels of another model do not compare with this one's: no fallbacks.
        if resolution.fallbacks and call.path not in POOLING:
            others = fallbacks(table, caller.tenant, resolution, subject, allowed=caller.models)
            context.models = (resolution, *others)
        # Refuse before the reservation and the waiting room: neither a retry nor a wait would help.
        if resolution.is_excluded and all(other.is_excluded for other in context.models[1:]):
            raise not_served(resolution)
        context.models = self._quarantine.admitted(context.models)
        if call.images:
            self._resolve_images(context)
        context.check = partial(self._check, context.scope, call.model, subject)

    @staticmethod
    def _resolve_images(context: RequestContext) -> None:
        """Leave each model the copies that read images, and reserve by the rule of the first that has one."""
        count = len(context.call.images)
        reading = [
            reading_images(model, count) for model in context.models if not refuses_images(model, count)
        ]
        able = [model for model in reading if not model.is_excluded]
        if not able:
            raise not_served(reading[0]) if reading else images_not_served(context.models[0], count)
        context.models = tuple(reading_images(model, count) for model in context.models)
        context.call.image_rule = able[0].route.image_tokens or UNKNOWN_RULE

    def refresh(self, context: RequestContext, subject: str) -> None:
        """Authorize and resolve again after a wait: the key may be revoked, or the model changed."""
        context.table = self._feed.current()
        context.caller = self._authorizer.authorize(context.table, context.scope)
        self.resolve(context, subject)

    async def admit(self, context: RequestContext) -> Ticket:
        """Reserve the request under its limits. Raises RateLimited, LimitsUnavailable."""
        trace = context.trace
        plan, prompt, completion = self._reservation(context)
        before = perf_counter()
        try:
            ticket = await self._admission.admit(plan, prompt, completion)
        except BaseException:
            trace.record_queue_time(perf_counter() - before)
            raise
        finally:
            context.headers += plan.headers(clock.now())
        # If the leases in hand sufficed, the request did not wait: the time is the gateway's own.
        trace.record_queue_time(ticket.waited)
        return ticket

    def measure(self, answer: Answer) -> None:
        """Correct what is reserved for scores and reranks by the tokens that a copy counted for one."""
        usage, resolution = answer.attempt.usage, answer.request.resolution
        if answer.context.call.path in SCORING and usage.reported:
            self._templates.measure(
                resolution.base, answer.context.call, resolution.route.max_model_len, usage.prompt_tokens
            )

    async def admit_all(self, context: RequestContext, parts: Sequence[RequestContext]) -> None:
        """Reserve all parts of the request in `context`, or none. Raises RateLimited, LimitsUnavailable."""
        reservations = [self._reservation(part) for part in parts]
        before = perf_counter()
        try:
            tickets = await self._admission.admit_all(context.caller.tenant, reservations)
        finally:
            context.trace.record_queue_time(perf_counter() - before)
            context.headers += Plan.union([plan for plan, *_ in reservations]).headers(clock.now())
        for part, ticket in zip(parts, tickets, strict=True):
            part.ticket = ticket

    async def hold(
        self, context: RequestContext, models: Sequence[Resolution], *, waited: float = 0.0
    ) -> bool:
        """Wait for a copy of the first of `models` that can get one, unless any of them has a copy now.

        Returns True if it waited; `refresh` must follow. `waited`: seconds that the request waited before.
        """
        able = [
            model for model in models if not model.is_excluded and (model.copies or model.route.hold_seconds)
        ]
        if not able or able[0].copies:
            return False
        resolution, *others = able
        if not resolution.route.may_get_copy(resolution.adapter):
            return False
        if any(other.copies for other in others):
            self._room.ask(resolution.base)
            return False
        context.trace.pause()
        try:
            await self._room.copies(
                resolution,
                context.caller.tenant,
                len(context.body),
                images=len(context.call.images),
                waited=waited,
            )
        finally:
            context.trace.resume()
        return True

    def _reservation(self, context: RequestContext) -> Reservation:
        call, resolution = context.call, context.models[0]
        plan = self._admission.plan(context.table, context.caller, resolution.base, call.model)
        template = self._templates.bound(resolution.base)
        return plan, *reservation(call, len(context.body), resolution.route.max_model_len, template)

    def _check(self, scope: Scope, model: str, subject: str, served: Resolution) -> None:
        """Check after a wait that the caller may still call `model`, and that `served` still exists.

        Raises:
            GatewayError: otherwise.
        """
        table = self._feed.current()
        caller = self._authorizer.authorize(table, scope)
        resolve(table, caller.tenant, model, subject, allowed=caller.models)
        resolve(table, caller.tenant, served.model)
