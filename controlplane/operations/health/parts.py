"""Checks all components of the installation concurrently."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, cast

from django.conf import settings
from django.db import DatabaseError, connection, transaction
from django.db.models import Count, Max, Min
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from redis.exceptions import RedisError

from controlplane.billing.quantities import first_day
from controlplane.deployments.models import Copy, Deployment, Target
from controlplane.fleet.overview import moment
from controlplane.metering.models import DeadUsageEvent
from controlplane.operations.health import serving, stores, work
from controlplane.operations.health.base import Check, Finding, Level, Part, checks_run, dated, worst
from controlplane.optimization.models import OPEN, ComparisonRun, OptimizationJob
from controlplane.platform.task_signs import connection as redis_connection
from controlplane.routes.models import RouteDelta
from controlplane.routes.selectors import route_version
from controlplane.webhooks.models import WebhookDelivery

_SINCE: Final = "graftwork:health:since"
"""Redis hash: part -> JSON [level, Unix seconds of the first check with this level]."""
_STATEMENT_MS: Final = 5000
_OVERDUE: Final = dt.timedelta(minutes=5)
_STALLED: Final = dt.timedelta(minutes=2)
TITLES: Final = {
    "database": gettext_lazy("Database"),
    "redis": gettext_lazy("Redis"),
    "gateways": gettext_lazy("Gateways"),
    "copies": gettext_lazy("Base model copies"),
    "deployments": gettext_lazy("Deployments"),
    "routes": gettext_lazy("Published routes"),
    "queues": gettext_lazy("Task queues and workers"),
    "beat": gettext_lazy("Scheduler (beat)"),
    "ingest": gettext_lazy("Usage ingestion"),
    "nightly_checks": gettext_lazy("Nightly checks of usage and ledger"),
    "usage_logs": gettext_lazy("Gateway usage logs"),
    "dead_letters": gettext_lazy("Dead letters"),
    "webhooks": gettext_lazy("Webhook deliveries"),
    "optimization": gettext_lazy("Optimization jobs"),
    "object_store": gettext_lazy("Object store"),
    "mail": gettext_lazy("Mail server"),
    "sagemaker": gettext_lazy("SageMaker"),
}
"""Titles of the components, in display order."""
_seen: dict[str, tuple[str, float]] = {}
"""Copy of the Redis hash, for outages of Redis."""


@dataclass(frozen=True, slots=True)
class HealthReport:
    """State of all components at the time `at`; the checks took `seconds`."""

    at: dt.datetime
    seconds: float
    parts: tuple[Part, ...]

    @property
    def level(self) -> Level:
        return worst([part.finding.level for part in self.parts])

    @property
    def bad(self) -> int:
        """Number of components that need attention."""
        return sum(part.finding.level in (Level.WARN, Level.DOWN) for part in self.parts)


def health_report() -> HealthReport:
    """Check all components and return the report.

    The database is checked in this thread, by the caller's connection. Other parts are checked in threads
    with one deadline.
    """
    started, now = time.monotonic(), timezone.now()
    found, checks = _by_database(now)
    found |= checks_run(checks)
    since = _since({name: finding.level for name, finding in found.items()}, found["redis"].level)
    parts = tuple(
        Part(name, str(title), dated(found[name], since[name]))
        for name, title in TITLES.items()
        if name in found
    )
    return HealthReport(now, round(time.monotonic() - started, 3), parts)


def _by_database(now: dt.datetime) -> tuple[dict[str, Finding], dict[str, Check]]:
    """Return the findings from the database, and the remaining checks for threads with their rows."""
    checks: dict[str, Check] = {
        "redis": stores.redis_server,
        "queues": work.celery_queues,
        "beat": work.beat,
        "ingest": work.ingest,
        "usage_logs": serving.usage_logs,
        "object_store": stores.object_store,
        "mail": stores.mail,
    }
    found = {"database": stores.database()}
    try:
        with transaction.atomic():
            _bound_statements()
            found |= _by_rows(now)
            oldest = first_day()
            version, copies = route_version(), list(Copy.objects.all())
            changed = RouteDelta.objects.aggregate(at=Max("created_at"))["at"]
            _bound_statements(off=True)
    except DatabaseError as error:
        text = _("The database query failed: %(error)s") % {"error": str(error).strip()[:300]}
        version, copies, changed, oldest = None, [], None, None
        found["database"] = Finding(Level.DOWN, text, _("Check the log and the load of the database server."))
    checks["gateways"] = partial(serving.gateways, version)
    checks["copies"] = partial(serving.copies, copies)
    checks["nightly_checks"] = partial(work.nightly_checks, oldest, now)
    checks["routes"] = partial(serving.routes, version, changed, now)
    return found, checks


def _bound_statements(*, off: bool = False) -> None:
    """Limit statement time on PostgreSQL, so that another session's lock does not block this page."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(f"SET LOCAL statement_timeout = {'DEFAULT' if off else _STATEMENT_MS}")


def _by_rows(now: dt.datetime) -> dict[str, Finding]:
    rows = list(Deployment.objects.filter(removed_at=None).select_related("target").order_by("name"))
    targets = Target.objects.filter(kind=Target.Kind.SAGEMAKER).count()
    return {
        "deployments": serving.deployments(rows, now),
        "sagemaker": serving.sagemaker(targets, rows),
        "dead_letters": _dead_letters(),
        "webhooks": _webhooks(now),
        "optimization": _optimization(now),
    }


def _dead_letters() -> Finding:
    totals = DeadUsageEvent.objects.aggregate(count=Count("*"), first=Min("received_at"), last=Max("pk"))
    if not totals["count"]:
        return Finding(Level.OK, _("No dead letters."))
    reason = DeadUsageEvent.objects.values_list("reason", flat=True).get(pk=totals["last"])
    text = ngettext(
        "%(count)d usage event could not be recorded. Reason: %(reason)s",
        "%(count)d usage events could not be recorded. Latest reason: %(reason)s",
        totals["count"],
    ) % {"count": totals["count"], "reason": reason[:200]}
    todo = _("Fix the causes that the reasons name, then replay the events on the queues page.")
    return Finding(Level.WARN, text, todo, totals["first"])


def _webhooks(now: dt.datetime) -> Finding:
    pending = (WebhookDelivery.Status.PENDING, WebhookDelivery.Status.SENDING)
    due = WebhookDelivery.objects.filter(status__in=pending, next_at__lt=now - _OVERDUE)
    totals = due.aggregate(count=Count("*"), first=Min("next_at"))
    if not totals["count"]:
        return Finding(Level.OK, _("No delivery is overdue."))
    text = ngettext(
        "%(count)d delivery is more than 5 minutes overdue.",
        "%(count)d deliveries are more than 5 minutes overdue.",
        totals["count"],
    ) % {"count": totals["count"]}
    todo = _("Start Celery workers for the queue graftwork.webhooks, and Celery beat.")
    return Finding(Level.WARN, text, todo, totals["first"])


def _optimization(now: dt.datetime) -> Finding:
    waiting, oldest = 0, now
    for model in (OptimizationJob, ComparisonRun):
        totals = model.objects.filter(status__in=OPEN, host="", created_at__lt=now - _STALLED).aggregate(
            count=Count("*"), first=Min("created_at")
        )
        waiting, oldest = waiting + totals["count"], min(oldest, totals["first"] or now)
    if not waiting:
        return Finding(Level.OK, _("No job is waiting for a worker."))
    text = ngettext(
        "%(count)d job has waited more than 2 minutes for a worker.",
        "%(count)d jobs have waited more than 2 minutes for a worker.",
        waiting,
    ) % {"count": waiting}
    todo = _("Start Celery workers for the queues graftwork.optimize.cpu or graftwork.optimize.gpu.")
    return Finding(Level.WARN, text, todo, oldest)


def _since(levels: Mapping[str, Level], redis_level: Level) -> dict[str, dt.datetime]:
    """Return the time of the first check that found each component at its current level."""
    now, client = time.time(), redis_connection(settings.GRAFTWORK.redis_url)
    known = dict(_seen)
    if redis_level is not Level.DOWN:
        try:
            stored = cast(Mapping[bytes, bytes], client.hgetall(_SINCE))
            known |= {name.decode(): _pair(value) for name, value in stored.items()}
        except (RedisError, ValueError, TypeError):
            redis_level = Level.DOWN
    fresh = {name: (str(level), now) for name, level in levels.items() if known.get(name, ("",))[0] != level}
    known |= fresh
    _seen.update(known)
    if fresh and redis_level is not Level.DOWN:
        with contextlib.suppress(RedisError):
            client.hset(_SINCE, mapping={name: json.dumps(value) for name, value in fresh.items()})
    return {name: moment(known[name][1]) or timezone.now() for name in levels}


def _pair(text: bytes) -> tuple[str, float]:
    level, at = json.loads(text)
    return str(level), float(at)
