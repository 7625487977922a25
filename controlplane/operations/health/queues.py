"""Report on task queues, their workers, and scheduled tasks with the outcome of their last run."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from celery.schedules import crontab
from django.conf import settings
from django.utils import timezone
from django.utils.translation import gettext as _
from redis.exceptions import RedisError

from controlplane.fleet.overview import moment
from controlplane.operations.health.work import listening, stream_lag
from controlplane.platform.task_queues import PROMPT, QUEUES, ROUTES
from controlplane.platform.task_signs import RunSign, WorkerSign, connection, queues, runs, sent, workers

_LATE: Final = 3
"""Intervals that a scheduled task may miss before it counts as late."""
_GRACE_S: Final = 30.0
_CRON_S: Final = 90_000.0


@dataclass(frozen=True, slots=True)
class WaitingQueue:
    """`oldest_at`: when the oldest message was sent; None for an empty queue or a message without a time."""

    name: str
    depth: int
    oldest_at: dt.datetime | None
    oldest_task: str
    workers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SeenWorker:
    name: str
    seen_at: dt.datetime | None
    started_at: dt.datetime | None
    queues: tuple[str, ...]
    alive: bool


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A task that beat sends.

    Attributes:
        every: the interval in words.
        sent_at: when beat last sent the task; ran_at, seconds, outcome, reason: end of its last run.
        late: beat has missed several intervals.
    """

    task: str
    queue: str
    every: str
    sent_at: dt.datetime | None
    ran_at: dt.datetime | None
    seconds: float | None
    outcome: str
    reason: str
    late: bool


@dataclass(frozen=True, slots=True)
class WorkReport:
    """`away`: error of Redis, which stores this data; '' if Redis responded."""

    at: dt.datetime
    away: str = ""
    queues: tuple[WaitingQueue, ...] = ()
    workers: tuple[SeenWorker, ...] = ()
    scheduled: tuple[Scheduled, ...] = ()
    usage_waiting: int = 0
    usage_oldest_s: float = 0.0


def work_report() -> WorkReport:
    """Return the current report; each Redis command times out after one second."""
    now, client = timezone.now(), connection(settings.GRAFTWORK.redis_url)
    try:
        signs, times, ran = workers(client), sent(client), runs(client)
        found = queues(client, QUEUES)
        waiting, oldest = stream_lag(client)
    except RedisError as error:
        return WorkReport(now, away=str(error) or type(error).__name__)
    rows = tuple(
        WaitingQueue(
            item.name,
            item.depth,
            moment(item.oldest_at),
            item.oldest_task,
            tuple(sign.name for sign in listening(signs, item.name)),
        )
        for item in found
    )
    seen = tuple(_worker(sign) for sign in signs)
    scheduled = tuple(
        _scheduled(name, entry, times, ran, now)
        for name, entry in sorted(settings.CELERY_BEAT_SCHEDULE.items())
    )
    return WorkReport(now, "", rows, seen, scheduled, waiting, oldest)


def _worker(sign: WorkerSign) -> SeenWorker:
    alive = any(listening([sign], queue) for queue in sign.queues)
    return SeenWorker(sign.name, moment(sign.at), moment(sign.started_at), sign.queues, alive)


def _scheduled(
    name: str,
    entry: Mapping[str, Any],
    times: Mapping[str, float],
    ran: Mapping[str, RunSign],
    now: dt.datetime,
) -> Scheduled:
    task, run = str(entry["task"]), ran.get(str(entry["task"]))
    queue = str(ROUTES.get(task, {}).get("queue", PROMPT))
    every, seconds = _rhythm(entry["schedule"])
    at = moment(times.get(task))
    late = at is not None and (now - at).total_seconds() > _LATE * seconds + _GRACE_S
    return Scheduled(
        task,
        queue,
        every,
        at,
        moment(run.at) if run else None,
        run.seconds if run else None,
        run.outcome if run else "",
        run.reason if run else "",
        late,
    )


def _rhythm(schedule: Any) -> tuple[str, float]:
    """Return the interval in words and in seconds."""
    if isinstance(schedule, crontab):
        values = {"hour": str(schedule._orig_hour), "minute": str(schedule._orig_minute).zfill(2)}
        return _("daily at %(hour)s:%(minute)s UTC") % values, _CRON_S
    seconds = float(schedule.run_every.total_seconds())
    if seconds % 3600 == 0:
        return _("every %(hours)d h") % {"hours": seconds // 3600}, seconds
    if seconds % 60 == 0:
        return _("every %(minutes)d min") % {"minutes": seconds // 60}, seconds
    return _("every %(seconds)d s") % {"seconds": seconds}, seconds
