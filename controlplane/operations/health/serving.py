"""Health checks of serving: gateways, their disks, copies, deployments, published routes."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Final, cast

from django.conf import settings
from django.utils.translation import gettext as _

from contracts.errors import ContractError
from contracts.presence import GatewayStatus
from contracts.redis_names import GATEWAYS, ROUTES_SNAPSHOT, ROUTES_VERSION
from controlplane.deployments.models import Copy, Deployment, Target
from controlplane.fleet.looks import copies_look
from controlplane.fleet.overview import moment
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
        text = _("No gateway has been heard of within a day.")
        return Finding(
            Level.DOWN, text, _("Start one: python -m gateway, with the same GRAFTWORK_REDIS_URL.")
        )
    states = [(word, *_gateway(word, now, version)) for word in words]
    level = worst([found for _word, found, _text in states])
    fine = sum(found is Level.OK for _word, found, _text in states)
    silent = [word for word in words if now - word.at >= SILENT_S]
    if fine and level is Level.DOWN:
        level = Level.WARN
    text = _("%(fine)d of %(all)d gateway processes serve.") % {"fine": fine, "all": len(words)}
    todo = _("Start those that are silent anew, and read the log of those that refuse.")
    since = moment(min(word.at for word in silent)) if silent else None
    details = tuple(f"{word.id} ({word.pid}): {description}" for word, _found, description in states)
    return Finding(level, text, todo if level is not Level.OK else "", since, details)


def _gateway(word: GatewayStatus, now: float, version: int | None) -> tuple[Level, str]:
    age = now - word.at
    if age >= SILENT_S:
        return Level.DOWN, _("silent for %(age).0f s") % {"age": age}
    if not word.ready:
        return Level.DOWN, _("refuses: %(reasons)s") % {"reasons": " ".join(word.reasons)[:300]}
    if word.routes_age > _OLD_ROUTES_S:
        return Level.WARN, _("its routes are %(age).0f s old") % {"age": word.routes_age}
    said = _("serves, %(count)d requests under way, routes %(version)d of %(newest)d") % {
        "count": word.in_flight, "version": word.routes_version, "newest": version or 0,
    }  # fmt: skip
    return Level.OK, said


def usage_logs() -> Finding:
    """Check the gateways' disk space and the backlog of their usage logs."""
    now, words = gateway_words()
    alive = [word for word in words if now - word.at < SILENT_S]
    if not alive:
        return Finding(Level.UNKNOWN, _("No gateway tells."), _("See gateways."))
    free = min(word.disk_free / max(1, word.disk_total) for word in alive)
    backlog = sum(word.backlog_bytes for word in alive)
    values = {"mb": backlog / 1e6, "share": free * 100}
    text = _("%(mb).1f MB wait to be shipped; the fullest disk has %(share).0f %% free.") % values
    if free < _FULL:
        todo = _("Make room at once: a gateway that cannot record usage refuses requests.")
        return Finding(Level.DOWN, text, todo)
    if free < _LITTLE:
        return Finding(Level.WARN, text, _("Make room: a gateway that cannot record usage refuses requests."))
    if backlog > _BACKLOG:
        return Finding(Level.WARN, text, _("Redis takes the events too slowly, or is away: see there."))
    return Finding(Level.OK, text)


def copies(rows: Sequence[Copy]) -> Finding:
    """Check the copies by polling them."""
    if not rows:
        text = _("No copy of any base model is in the routes.")
        return Finding(Level.WARN, text, _("Make a deployment, or register a server at a base model's page."))
    looks = copies_look(rows)
    silent = [copy for copy in rows if looks[copy.pk].error]
    values = {"count": len(rows) - len(silent), "all": len(rows)}
    if not silent:
        return Finding(Level.OK, _("All %(all)d reachable.") % values)
    times = [moment(looks[copy.pk].silent_since) for copy in silent]
    since = min((at for at in times if at is not None), default=None)
    answering = {copy.base_model_id for copy in rows if not looks[copy.pk].error}
    level = Level.DOWN if {copy.base_model_id for copy in silent} - answering else Level.WARN
    details = tuple(f"{copy.pk}: {looks[copy.pk].error}" for copy in silent[:20])
    todo = _("Look at their processes and hosts; the fleet's page tells since when each is silent.")
    return Finding(level, _("%(count)d of %(all)d reachable.") % values, todo, since, details)


def routes(version: int | None, changed_at: dt.datetime | None, now: dt.datetime) -> Finding:
    """Check that Redis has the database's newest routes, given by `version` and `changed_at`."""
    if version is None:
        return Finding(Level.OK, _("There is nothing to publish yet."))
    client = connection(settings.GRAFTWORK.redis_url)
    published = int(cast(bytes | None, client.get(ROUTES_VERSION)) or -1)
    todo = _("Start manage.py publish_routes; gateways go on with the routes that they have.")
    if not client.exists(ROUTES_SNAPSHOT):
        return Finding(Level.DOWN, _("Redis holds no route table."), todo)
    age = (now - changed_at).total_seconds() if changed_at is not None else 0.0
    if published >= version:
        text = _("Version %(version)d is published.") % {"version": version}
        return Finding(Level.OK, text)
    values = {"behind": version - published, "age": age}
    text = _("%(behind)d changes are not published; the newest is %(age).0f s old.") % values
    return Finding(
        Level.DOWN if age > 60 else Level.WARN if age > _PUBLISH_S else Level.OK, text, todo, changed_at
    )


def deployments(rows: Sequence[Deployment], now: dt.datetime) -> Finding:
    """Check the deployments by the reconciler's last observations."""
    if not rows:
        return Finding(Level.UNUSED, _("There are none."))
    bad = [row for row in rows if row.status in (Deployment.Status.FAILED, Deployment.Status.DEGRADED)]
    late = [row for row in rows if row.next_at < now - _OVERDUE]
    details = tuple(f"{row.name}: {row.status}. {row.reason}"[:400] for row in bad[:20])
    if late:
        text = _("%(count)d have not been looked at for minutes.") % {"count": len(late)}
        todo = _("Start a Celery worker that takes from graftwork.deployments, and beat.")
        return Finding(Level.DOWN, text, todo, min(row.next_at for row in late), details)
    if bad:
        text = _("%(bad)d of %(all)d are failed or degraded.") % {"bad": len(bad), "all": len(rows)}
        return Finding(Level.WARN, text, _("Each one's page says what to do."), None, details)
    return Finding(Level.OK, _("All %(all)d are as they are to be, or on their way.") % {"all": len(rows)})


def sagemaker(targets: int, rows: Sequence[Deployment]) -> Finding:
    """Check SageMaker by the reconciler's last calls; makes no calls itself."""
    own = [row for row in rows if row.target.kind == Target.Kind.SAGEMAKER]
    if not targets:
        return Finding(Level.UNUSED, _("No target is SageMaker."))
    if not own:
        return Finding(Level.UNKNOWN, _("There is a target and no deployment in it: nothing was called yet."))
    failing = [row for row in own if row.failures]
    seen = max((row.observed_at for row in own if row.observed_at is not None), default=None)
    if not failing:
        return Finding(
            Level.OK, _("Its last look at each of %(all)d succeeded.") % {"all": len(own)}, "", None
        )
    details = tuple(f"{row.name}: {row.reason}"[:400] for row in failing)
    text = _("The last looks at %(bad)d of %(all)d failed.") % {"bad": len(failing), "all": len(own)}
    todo = _("Look at the credentials and the network of the Celery workers of graftwork.deployments.")
    return Finding(Level.DOWN if len(failing) == len(own) else Level.WARN, text, todo, seen, details)
