"""Health checks of background work: queues and workers, beat, usage ingestion, nightly checks."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator
from typing import Any, Final, cast

from django.conf import settings
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from redis.exceptions import ResponseError

from contracts.redis_names import USAGE_GROUP, USAGE_STREAM
from controlplane.fleet.overview import moment
from controlplane.operations.health.base import Finding, Level
from controlplane.platform.task_queues import OPTIMIZE_CPU, OPTIMIZE_GPU, QUEUES
from controlplane.platform.task_signs import (
    BOOKS_CHECK,
    USAGE_CHECK,
    CheckSign,
    Queue,
    WorkerSign,
    checks,
    connection,
    queues,
    sent,
    workers,
)

SILENT_S: Final = 30.0
"""Seconds without a heartbeat after which a worker counts as silent; it sends one every two seconds."""
_OLD_S: Final = 300.0
_LAG_WARN_S, _LAG_DOWN_S = 60.0, 600.0
_INGEST_SILENT_MS: Final = 60_000
_CHECKED_S: Final = 2 * 86_400.0
_OPTIONAL: Final = frozenset((OPTIMIZE_CPU, OPTIMIZE_GPU))
"""Queues that need a worker only while tasks wait."""


def listening(signs: list[WorkerSign], queue: str) -> list[WorkerSign]:
    """List the live workers that serve `queue`."""
    now = time.time()
    return [sign for sign in signs if queue in sign.queues and now - sign.at < SILENT_S]


def celery_queues() -> Finding:
    """Check that each queue has a worker and no old tasks."""
    client = connection(settings.GRAFTWORK.redis_url)
    signs, found = workers(client), queues(client, QUEUES)
    alone = [item for item in found if not listening(signs, item.name) and _needs_worker(item)]
    now = time.time()
    old = [item for item in found if item.oldest_at is not None and now - item.oldest_at > _OLD_S]
    details = tuple(
        f"{item.name}: {item.depth} waiting, {len(listening(signs, item.name))} workers" for item in found
    )
    depth = sum(item.depth for item in found)
    if alone:
        names = ", ".join(item.name for item in alone)
        text = _("No worker consumes %(names)s; %(depth)d tasks are waiting in total.") % {
            "names": names,
            "depth": depth,
        }
        todo = _("Start a worker: celery -A controlplane.celery worker (-Q limits it to the named queues).")
        heard = [sign.at for sign in signs if any(item.name in sign.queues for item in alone)]
        since = moment(max(heard, default=None))
        return Finding(Level.DOWN, text, todo, since, details)
    if old:
        item = min(old, key=lambda item: item.oldest_at or now)
        text = _("The oldest task of %(name)s has waited %(age).0f s.") % {
            "name": item.name,
            "age": now - (item.oldest_at or now),
        }
        todo = _("Start more workers for the queue, or check what blocks the running tasks.")
        return Finding(Level.WARN, text, todo, moment(item.oldest_at), details)
    values = {"workers": sum(now - sign.at < SILENT_S for sign in signs), "depth": depth}
    return Finding(Level.OK, _("%(workers)d workers; %(depth)d tasks waiting.") % values, details=details)


def _needs_worker(item: Queue) -> bool:
    return item.name not in _OPTIONAL or item.depth > 0


def beat() -> Finding:
    """Check that beat sends the scheduled tasks."""
    times = sent(connection(settings.GRAFTWORK.redis_url))
    todo = _(
        "Start exactly one scheduler: celery -A controlplane.celery beat. A second one duplicates tasks."
    )
    if not times:
        return Finding(Level.DOWN, _("The scheduler has never reported."), todo)
    newest = max(times.values())
    age = time.time() - newest
    if age > SILENT_S:
        text = _("The scheduler has sent no task for %(age).0f s.") % {"age": age}
        return Finding(Level.DOWN, text, todo, moment(newest))
    return Finding(Level.OK, _("The scheduler sent a task %(age).0f s ago.") % {"age": max(0.0, age)})


def ingest() -> Finding:
    """Check that the usage stream has a reader, and its lag."""
    client = connection(settings.GRAFTWORK.redis_url)
    waiting, age = stream_lag(client)
    todo = _("Start manage.py ingest_usage, and check its log. Pending events are not lost.")
    values = {"count": waiting, "age": age}
    text = _("%(count)d events are waiting, the oldest for %(age).0f s.") % values
    idle = _ingest_idle_ms(client)
    if idle is None and not waiting:
        return Finding(
            Level.UNKNOWN, _("No usage has been reported yet, and no process reads the usage stream."), todo
        )
    if idle is None or idle > _INGEST_SILENT_MS:
        since = None if idle is None else dt.datetime.now(dt.UTC) - dt.timedelta(milliseconds=idle)
        return Finding(Level.DOWN, f"{_('No process reads the usage stream.')} {text}", todo, since)
    if not waiting:
        return Finding(Level.OK, _("All received events are in the database."))
    level = Level.DOWN if age > _LAG_DOWN_S else Level.WARN if age > _LAG_WARN_S else Level.OK
    return Finding(level, text, todo if level is not Level.OK else "")


def nightly_checks(oldest: dt.date | None, now: dt.datetime) -> Finding:
    """Check the last results of the nightly checks; `oldest` is the first UTC day with usage."""
    signs = checks(connection(settings.GRAFTWORK.redis_url))
    results = {name: signs.get(name) for name in (USAGE_CHECK, BOOKS_CHECK)}
    details = tuple(line for name, sign in results.items() for line in _check_lines(name, sign))
    differing = sum(sign.differing for sign in results.values() if sign is not None)
    if differing:
        text = ngettext(
            "%(count)d total does not match its source records.",
            "%(count)d totals do not match their source records.",
            differing,
        ) % {"count": differing}
        todo = _(
            "Do not finalize invoices for these days yet. The logs of metering.nightly and billing.nightly"
            " list each difference; manage.py check_usage repeats the usage check."
        )
        return Finding(Level.WARN, text, todo, details=details)
    late = [sign for sign in results.values() if sign is None or now.timestamp() - sign.at > _CHECKED_S]
    if not late:
        return Finding(Level.OK, _("Usage and ledger matched in the last check."), details=details)
    if oldest is None or now.date() - oldest <= dt.timedelta(seconds=_CHECKED_S):
        return Finding(Level.UNKNOWN, _("No usage is old enough for a nightly check."), details=details)
    todo = _(
        "Start beat and a worker; the queues page shows the last runs of metering.nightly and"
        " billing.nightly."
    )
    since = moment(min((sign.at for sign in late if sign is not None), default=None))
    return Finding(Level.WARN, _("A check has not run for 48 hours."), todo, since, details)


def _check_lines(name: str, sign: CheckSign | None) -> Iterator[str]:
    title = _("usage against its events") if name == USAGE_CHECK else _("ledger against usage")
    if sign is None:
        yield _("%(title)s: no result") % {"title": title}
        return
    yield _("%(title)s: %(start)s to %(end)s, checked %(at)s UTC, %(count)d differ") % {
        "title": title,
        "start": sign.start,
        "end": sign.end,
        "count": sign.differing,
        "at": f"{dt.datetime.fromtimestamp(sign.at, dt.UTC):%Y-%m-%d %H:%M}",
    }
    yield from sign.examples


def stream_lag(client: Any) -> tuple[int, float]:
    """Return (events in the usage stream, age of the oldest in seconds); ingested events leave it."""
    first = client.xrange(USAGE_STREAM, count=1)
    if not first:
        return 0, 0.0
    born = int(first[0][0].split(b"-")[0]) / 1000
    seconds, micros = client.time()
    return int(client.xlen(USAGE_STREAM)), max(0.0, seconds + micros / 1e6 - born)


def _ingest_idle_ms(client: Any) -> int | None:
    """Return the milliseconds since a consumer last read; None if the stream never had a consumer."""
    try:
        consumers = cast(list[dict[str, Any]], client.xinfo_consumers(USAGE_STREAM, USAGE_GROUP))
    except ResponseError:
        return None
    return min((int(consumer["idle"]) for consumer in consumers), default=None)
