"""Health checks of serving: gateways, their disks, copies, deployments, published routes."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Final, cast

from django.conf import settings
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from contracts.errors import ContractError
from contracts.presence import GatewayStatus
from contracts.redis_names import GATEWAYS, ROUTES_SNAPSHOT, ROUTES_VERSION
from controlplane.deployments.models import Copy, Deployment, Target
from controlplane.fleet.overview import moment
from controlplane.fleet.polls import copies_poll
from controlplane.operations.health.base import Finding, Level, worst
from controlplane.platform.task_signs import connection

SILENT_S: Final = 10.0
"""Seconds without a status report after which a gateway counts as silent; it reports every two."""
_OLD_ROUTES_S: Final = 30.0
_PUBLISH_S: Final = 10.0
_BACKLOG: Final = 64 << 20
_LITTLE: Final = 0.1
_FULL: Final = 0.03
_OVERDUE: Final = dt.timedelta(minutes=5)


def gateway_words() -> tuple[float, list[GatewayStatus]]:
    """Return Redis's time and the last status of each gateway process of the last day. Raises RedisError."""
    client = connection(settings.GRAFTWORK.redis_url)
    seconds, micros = client.time()
    words = []
    for text in cast(Mapping[bytes, bytes], client.hgetall(GATEWAYS)).values():
        try:
            words.append(GatewayStatus.from_json(text))
        except ContractError:
            continue  # written by another release
    now = seconds + micros / 1e6
    recent = [word for word in words if now - word.at < 86_400]
    return now, sorted(recent, key=lambda word: (word.id, word.started_at))


def gateways(version: int | None) -> Finding:
    """Check the gateways by their published status; `version` is that of the routes in the database."""
    now, words = gateway_words()
    if not words:
        text = _("No gateway has reported within the last 24 hours.")
        return Finding(
            Level.DOWN, text, _("Start a gateway with the same GRAFTWORK_REDIS_URL: python -m gateway.")
        )
    states = [(word, *_gateway(word, now, version)) for word in words]
    level = worst([found for _word, found, _text in states])
    fine = sum(found is Level.OK for _word, found, _text in states)
    silent = [word for word in words if now - word.at >= SILENT_S]
    if fine and level is Level.DOWN:
        level = Level.WARN
    text = _("%(fine)d of %(all)d gateway processes are serving.") % {"fine": fine, "all": len(words)}
    todo = _("Restart the silent gateways, and check the logs of the gateways that are not ready.")
    since = moment(min(word.at for word in silent)) if silent else None
    details = tuple(f"{word.id} ({word.pid}): {description}" for word, _found, description in states)
    return Finding(level, text, todo if level is not Level.OK else "", since, details)


def _gateway(word: GatewayStatus, now: float, version: int | None) -> tuple[Level, str]:
    age = now - word.at
    if age >= SILENT_S:
        return Level.DOWN, _("no report for %(age).0f s") % {"age": age}
    if not word.ready:
        return Level.DOWN, _("not ready: %(reasons)s") % {"reasons": " ".join(word.reasons)[:300]}
    if word.routes_age > _OLD_ROUTES_S:
        return Level.WARN, _("routes are %(age).0f s old") % {"age": word.routes_age}
    said = _("serving, %(count)d requests in flight, routes %(version)d of %(newest)d") % {
        "count": word.in_flight,
        "version": word.routes_version,
        "newest": version or 0,
    }
    return Level.OK, said


def usage_logs() -> Finding:
    """Check the gateways' disk space and the backlog of their usage logs."""
    now, words = gateway_words()
    alive = [word for word in words if now - word.at < SILENT_S]
    if not alive:
        return Finding(Level.UNKNOWN, _("No gateway is reporting."), _("See Gateways."))
    free = min(word.disk_free / max(1, word.disk_total) for word in alive)
    backlog = sum(word.backlog_bytes for word in alive)
    values = {"mb": backlog / 1e6, "share": free * 100}
    text = _("%(mb).1f MB of usage not yet shipped; the fullest disk has %(share).0f %% free.") % values
    if free < _FULL:
        todo = _("Free disk space immediately: a gateway that cannot record usage rejects requests.")
        return Finding(Level.DOWN, text, todo)
    if free < _LITTLE:
        todo = _("Free disk space: a gateway that cannot record usage rejects requests.")
        return Finding(Level.WARN, text, todo)
    if backlog > _BACKLOG:
        return Finding(Level.WARN, text, _("Redis is unavailable or too slow for the event rate: see Redis."))
    return Finding(Level.OK, text)


def copies(rows: Sequence[Copy]) -> Finding:
    """Check the copies by polling them."""
    if not rows:
        text = _("The route table has no copy of a base model.")
        return Finding(
            Level.WARN, text, _("Create a deployment, or register a server on the page of a base model.")
        )
    polled = copies_poll(rows)
    silent = [copy for copy in rows if polled[copy.pk].error]
    values = {"count": len(rows) - len(silent), "all": len(rows)}
    if not silent:
        text = ngettext("%(all)d copy is reachable.", "All %(all)d copies are reachable.", len(rows))
        return Finding(Level.OK, text % values)
    times = [moment(polled[copy.pk].silent_since) for copy in silent]
    since = min((at for at in times if at is not None), default=None)
    answering = {copy.base_model_id for copy in rows if not polled[copy.pk].error}
    level = Level.DOWN if {copy.base_model_id for copy in silent} - answering else Level.WARN
    details = tuple(f"{copy.pk}: {polled[copy.pk].error}" for copy in silent[:20])
    todo = _("Check the processes and hosts; the fleet page shows when each copy last responded.")
    return Finding(level, _("%(count)d of %(all)d copies are reachable.") % values, todo, since, details)


def routes(version: int | None, changed_at: dt.datetime | None, now: dt.datetime) -> Finding:
    """Check that Redis has the database's newest routes, given by `version` and `changed_at`."""
    if version is None:
        return Finding(Level.OK, _("No routes to publish yet."))
    client = connection(settings.GRAFTWORK.redis_url)
    published = int(cast(bytes | None, client.get(ROUTES_VERSION)) or -1)
    todo = _("Start manage.py publish_routes; gateways keep serving with their current routes.")
    if not client.exists(ROUTES_SNAPSHOT):
        return Finding(Level.DOWN, _("Redis has no route table."), todo)
    age = (now - changed_at).total_seconds() if changed_at is not None else 0.0
    if published >= version:
        text = _("Version %(version)d is published.") % {"version": version}
        return Finding(Level.OK, text)
    values = {"behind": version - published, "age": age}
    text = _("%(behind)d route changes are not published; the latest is %(age).0f s old.") % values
    return Finding(
        Level.DOWN if age > 60 else Level.WARN if age > _PUBLISH_S else Level.OK, text, todo, changed_at
    )


def deployments(rows: Sequence[Deployment], now: dt.datetime) -> Finding:
    """Check the deployments by the reconciler's last observations."""
    if not rows:
        return Finding(Level.UNUSED, _("No deployments."))
    bad = [row for row in rows if row.status in (Deployment.Status.FAILED, Deployment.Status.DEGRADED)]
    late = [row for row in rows if row.next_at < now - _OVERDUE]
    details = tuple(f"{row.name}: {row.status}. {row.reason}"[:400] for row in bad[:20])
    if late:
        text = ngettext(
            "%(count)d deployment is more than 5 minutes overdue for reconciliation.",
            "%(count)d deployments are more than 5 minutes overdue for reconciliation.",
            len(late),
        ) % {"count": len(late)}
        todo = _("Start a Celery worker for the queue graftwork.deployments, and Celery beat.")
        return Finding(Level.DOWN, text, todo, min(row.next_at for row in late), details)
    if bad:
        text = _("%(bad)d of %(all)d deployments are failed or degraded.") % {
            "bad": len(bad),
            "all": len(rows),
        }
        return Finding(
            Level.WARN, text, _("See the page of each deployment for the recommended action."), None, details
        )
    text = ngettext(
        "%(all)d deployment is in its desired state or converging.",
        "All %(all)d deployments are in their desired state or converging.",
        len(rows),
    )
    return Finding(Level.OK, text % {"all": len(rows)})


def sagemaker(targets: int, rows: Sequence[Deployment]) -> Finding:
    """Check SageMaker by the reconciler's last calls; makes no calls itself."""
    own = [row for row in rows if row.target.kind == Target.Kind.SAGEMAKER]
    if not targets:
        return Finding(Level.UNUSED, _("No SageMaker target is configured."))
    if not own:
        text = _("The SageMaker targets have no deployment, so no call was made yet.")
        return Finding(Level.UNKNOWN, text)
    failing = [row for row in own if row.failures]
    seen = max((row.observed_at for row in own if row.observed_at is not None), default=None)
    if not failing:
        text = _("The last call for each of %(all)d deployments succeeded.") % {"all": len(own)}
        return Finding(Level.OK, text, "", None)
    details = tuple(f"{row.name}: {row.reason}"[:400] for row in failing)
    text = _("The last calls for %(bad)d of %(all)d deployments failed.") % {
        "bad": len(failing),
        "all": len(own),
    }
    todo = _("Check the AWS credentials and the network of the graftwork.deployments Celery workers.")
    return Finding(Level.DOWN if len(failing) == len(own) else Level.WARN, text, todo, seen, details)
