"""Finds a copy that begins to answer: retries and fallbacks happen before the client gets a byte.

Another copy is tried only while nothing has been sent to the client, and only after these failures: the copy
could not be reached, broke before its first byte, or answered 502, 503, 504, or 429 for this tenant.
A request that a copy's engine died with goes to no other one, since it may be the cause. Each attempt is
metered separately; attempts after a request's first are taken from a retry budget.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from gateway.admission import PRIORITY
from gateway.answer import Answer
from gateway.api.schema import SCORING
from gateway.backends.base import Backend, BackendRequest
from gateway.errors import (
    EndpointNotServed,
    EngineDied,
    GatewayError,
    UpstreamBroken,
    UpstreamBusy,
    UpstreamFailed,
    UpstreamRefused,
    UpstreamUnreachable,
    error_code,
)
from gateway.request_context import RequestContext
from gateway.routing import Resolution
from gateway.routing.counters import RoutingCounters
from gateway.routing.endpoints import lacking, model_lacks
from gateway.routing.fleet import ANYWHERE, Fleet
from gateway.routing.not_served import not_served
from gateway.routing.prefix import prompt_prefix
from gateway.routing.retry_budget import RetryBudget
from gateway.usage.metering import Meter

logger = logging.getLogger(__name__)

MAX_TRIES: Final = 3
"""Most copies of one model that a request tries."""


class Dispatcher:
    """Sends requests to copies."""

    def __init__(self, meter: Meter, backends: Mapping[str, Backend], fleet: Fleet) -> None:
        self._meter, self._backends, self._fleet = meter, backends, fleet
        self._budget = RetryBudget()
        self.counters = RoutingCounters()

    async def open(self, context: RequestContext) -> Answer:
        """Return the first answer that begins, from a copy of the request's models in order.

        Raises:
            GatewayError: the last attempt's, when no copy began to answer.
            UsageLogUnavailable: usage could not be recorded.
        """
        self._budget.deposit()
        failure: GatewayError | None = None
        for number, request in enumerate(self._attempts(context), 1):
            if number > 1:
                if not self._budget.withdraw():
                    self.counters.retries_denied += 1
                    break
                self.counters.retries += 1
            backend = self._backends[request.copy.kind]
            answer = self._start(context, request, number)
            try:
                await answer.begin(backend)
            except GatewayError as error:
                answer.end(error)
                failure = error
                if not _another_may_do(error):
                    break
                logger.warning("request %s: copy %s: %s", context.id, request.copy.id, error_code(error))
            except BaseException as error:
                answer.end(error)
                raise
            else:
                self.counters.fallbacks += request.resolution is not context.models[0]
                return answer
        if failure is None:
            self.counters.no_copy += 1
            raise self._no_copy(context.models[0], context.call.path)
        await self._meter.durable()
        raise failure

    def _start(self, context: RequestContext, request: BackendRequest, number: int) -> Answer:
        """Start to meter one call of a copy."""
        resolution, copy = request.resolution, request.copy
        attempt = self._meter.start(context, resolution, copy, number)
        if attempt.span is not None:
            request.traceparent = attempt.span.traceparent
        self.counters.attempts += 1
        place = self._fleet.acquire(copy, request.adapter, resolution.base)
        return Answer(request, attempt, place)

    def _attempts(self, context: RequestContext) -> Iterator[BackendRequest]:
        """Yield the attempts in order; each copy is chosen by the fleet's state at that time."""
        call, salt, plan, models = context.call, context.cache_salt, context.ticket.plan, context.models
        prefix = partial(prompt_prefix, call.parameters, salt)
        for number, resolution in enumerate(models):
            tried: set[str] = set()
            unable = self._lacking(resolution, call.path)
            homes = resolution.route.homes.get(resolution.engine_name, ANYWHERE)
            canary, passed_over = resolution.route.canary, resolution.passed_over
            while len(tried) < MAX_TRIES:
                if canary is not None and len(tried) == MAX_TRIES - 1:
                    passed_over = canary.copies  # the last try is not the new ones', however many there are
                copy = self._fleet.choose(
                    resolution.merged_copies, None, prefix, tried | unable, passed_over=passed_over
                ) or self._fleet.choose(
                    resolution.copies, resolution.adapter, prefix, tried | unable, homes, passed_over
                )
                if copy is None:
                    break
                if copy.kind not in self._backends:
                    raise UpstreamFailed(
                        f"This gateway does not support copy {copy.id}'s kind {copy.kind!r}."
                    )
                tried.add(copy.id)
                # A request does not wait for a sleeping copy while another one may answer.
                hold = resolution.route.hold_seconds
                if hold and self._ready(models[number:], tried):
                    hold = 0
                yield BackendRequest(
                    call,
                    resolution,
                    copy,
                    context.id,
                    salt,
                    context.caller.tenant,
                    plan.weight,
                    PRIORITY - plan.priority,
                    hold_seconds=hold,
                    check=context.check,
                )

    def _ready(self, models: Sequence[Resolution], tried: Collection[str]) -> bool:
        """Return True if one of `models` has a copy outside `tried` that accepts requests now."""
        return any(
            copy.id not in tried and self._fleet.copy(copy.id).ready
            for resolution in models
            for copy in resolution.copies
        )

    def _lacking(self, resolution: Resolution, path: str) -> frozenset[str]:
        """Return the ids of copies that are known to lack the endpoint."""
        return lacking(resolution.copies, path, self._fleet) if path in SCORING else frozenset()

    def _no_copy(self, resolution: Resolution, path: str) -> GatewayError:
        if resolution.is_excluded:
            return not_served(resolution)
        unable = self._lacking(resolution, path)
        if unable and len(unable) == len(resolution.copies):
            return model_lacks(resolution.base, path, sorted(unable))
        if not resolution.copies and any(not copy.merged for copy in resolution.route.copies):
            return UpstreamUnreachable(
                f"No copy of {resolution.base!r} that can serve {resolution.model!r} runs at this moment; "
                "retry later."
            )
        if not resolution.copies:
            return UpstreamUnreachable(
                f"The base model {resolution.base!r} is not deployed at this moment; retry later."
            )
        wait = self._fleet.wait(resolution.copies)
        return UpstreamUnreachable(
            f"No copy of {resolution.base!r} accepts requests at this moment; retry in {wait} s.",
            retry_after=wait,
        )


def _another_may_do(error: GatewayError) -> bool:
    """Return True if another copy or a fallback model may serve the request after `error`."""
    if isinstance(error, UpstreamRefused):
        return error.upstream_status == 429
    if isinstance(error, EngineDied):
        return False
    return isinstance(error, UpstreamUnreachable | UpstreamBroken | UpstreamBusy | EndpointNotServed)
