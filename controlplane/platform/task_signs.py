"""Status of Celery in Redis: live workers, last runs and check results, and send times of messages.

Workers and beat write it; pages and `/api/v1/health/parts` read it. Only the first day of the next check
depends on it, so an outage of Redis loses status and delays no task. Celery's `inspect` would take a second
each time, and gets no reply from a worker that hangs.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, cast

import redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

logger = logging.getLogger(__name__)

SENT_AT: Final = "graftwork_sent_at"
"""Header of each message: Unix seconds."""
WORKERS: Final = "graftwork:celery:workers"
"""Redis hash: worker's name -> JSON of WorkerSign."""
SENT: Final = "graftwork:celery:sent"
"""Redis hash: scheduled task -> Unix seconds when beat sent it last."""
RUNS: Final = "graftwork:celery:runs"
"""Redis hash: task -> JSON of RunSign."""
CHECKS: Final = "graftwork:celery:checks"
"""Redis hash: check -> JSON of CheckSign."""
USAGE_CHECK: Final = "usage"
BOOKS_CHECK: Final = "books"
_WORKER_EXPIRY_S: Final = 86_400
_REASON: Final = 300
_EXAMPLES: Final = 20


@dataclass(frozen=True, slots=True)
class WorkerSign:
    """A Celery worker at its last heartbeat; `at` and `started_at` in Unix seconds."""

    name: str
    at: float
    started_at: float
    queues: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RunSign:
    """The last run of a task; `outcome` is Celery's state, `reason` the error."""

    at: float
    seconds: float
    outcome: str
    reason: str


@dataclass(frozen=True, slots=True)
class CheckSign:
    """The last nightly check of stored sums against the rows that they sum up.

    Attributes:
        at: Unix seconds.
        start, end: the UTC days, both included, as YYYY-MM-DD.
        differing: how many sums differed.
        examples: descriptions of some of them.
    """

    at: float
    start: str
    end: str
    differing: int
    examples: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue's waiting messages; `oldest_at` is None if it is empty or its messages have no send time."""

    name: str
    depth: int
    oldest_at: float | None
    oldest_task: str


@lru_cache(maxsize=4)
def connection(url: str) -> redis.Redis:
    """Return the process's client, which answers or fails within a second; fork-safe as redis-py's pools."""
    return redis.Redis.from_url(url, socket_timeout=1, socket_connect_timeout=1, retry=Retry(NoBackoff(), 0))


def worker_said(url: str, *, name: str, started_at: float, queues: Iterable[str]) -> None:
    """Record a worker's heartbeat."""
    value = {"at": time.time(), "started_at": started_at, "queues": sorted(queues)}
    _write(url, WORKERS, name, json.dumps(value))


def worker_left(url: str, *, name: str) -> None:
    """Remove a stopped worker, so that it is not reported as silent."""
    try:
        connection(url).hdel(WORKERS, name)
    except RedisError as error:
        logger.debug("the stop of %s is not recorded in Redis: %s", name, error)


def beat_sent(url: str, *, task: str) -> None:
    """Record that beat has sent a scheduled task."""
    _write(url, SENT, task, str(time.time()))


def task_ran(url: str, *, task: str, seconds: float, outcome: str, reason: str = "") -> None:
    """Record the end of a run."""
    value = {"at": time.time(), "seconds": seconds, "outcome": outcome, "reason": reason[:_REASON]}
    _write(url, RUNS, task, json.dumps(value))


def check_ended(
    url: str, *, check: str, start: dt.date, end: dt.date, differing: int, examples: Sequence[str] = ()
) -> None:
    """Record the result of a nightly check of the days `start` to `end`."""
    value = {"at": time.time(), "start": str(start), "end": str(end), "differing": differing}
    texts = [text[: 2 * _REASON] for text in examples[:_EXAMPLES]]
    _write(url, CHECKS, check, json.dumps({**value, "examples": texts}))


def check_from(url: str, *, check: str, usual: dt.date, oldest: dt.date) -> dt.date:
    """Return the first day for the next check.

    That is `usual`, or the first day of the last check if it found differences, since its result will be
    overwritten. The day is never before `oldest`, and is `oldest` if Redis does not answer.
    """
    try:
        sign = checks(connection(url)).get(check)
    except RedisError as error:
        logger.warning(
            "the last result of the check of %s is unknown, so all days are checked: %s", check, error
        )
        return oldest
    if sign is None or not sign.differing:
        return max(usual, oldest)
    return max(oldest, min(usual, dt.date.fromisoformat(sign.start)))


def _write(url: str, key: str, field: str, value: str) -> None:
    try:
        connection(url).hset(key, field, value)
    except RedisError as error:
        logger.debug("the status of %s is not recorded: %s", field, error)


def workers(client: redis.Redis) -> list[WorkerSign]:
    """List the workers heard of within a day, by name. Raises RedisError."""
    found = [
        WorkerSign(name, value["at"], value["started_at"], tuple(value["queues"]))
        for name, value in _objects(client, WORKERS)
    ]
    return sorted(
        (sign for sign in found if time.time() - sign.at < _WORKER_EXPIRY_S), key=lambda sign: sign.name
    )


def sent(client: redis.Redis) -> dict[str, float]:
    """Return the Unix time at which beat last sent each scheduled task. Raises RedisError."""
    found = cast(Mapping[bytes, bytes], client.hgetall(SENT))
    return {task.decode(): float(at) for task, at in found.items()}


def runs(client: redis.Redis) -> dict[str, RunSign]:
    """Return the last run of each task. Raises RedisError."""
    return {
        task: RunSign(value["at"], value["seconds"], value["outcome"], value["reason"])
        for task, value in _objects(client, RUNS)
    }


def checks(client: redis.Redis) -> dict[str, CheckSign]:
    """Return the last result of each nightly check. Raises RedisError."""
    return {
        name: CheckSign(**{**value, "examples": tuple(value["examples"])})
        for name, value in _objects(client, CHECKS)
    }


def queues(client: redis.Redis, names: Iterable[str]) -> list[Queue]:
    """Return depth and oldest message of each queue. Raises RedisError."""
    queue_names = list(names)
    pipeline = client.pipeline(transaction=False)
    for name in queue_names:
        # Messages are pushed on the left and popped on the right.
        pipeline.llen(name)
        pipeline.lindex(name, -1)
    answers = pipeline.execute()
    rows = zip(queue_names, answers[::2], answers[1::2], strict=True)
    return [_queue(name, depth, message) for name, depth, message in rows]


def _queue(name: str, depth: int, message: bytes | None) -> Queue:
    try:
        headers = json.loads(message or b"{}").get("headers") or {}
        at = headers.get(SENT_AT)
        task = str(headers.get("task", ""))
    except (ValueError, AttributeError):
        return Queue(name, depth, None, "")
    return Queue(name, depth, float(at) if isinstance(at, int | float) else None, task)


def _objects(client: redis.Redis, key: str) -> list[tuple[str, dict[str, Any]]]:
    found = cast(Mapping[bytes, bytes], client.hgetall(key))
    return [(name.decode(), json.loads(value)) for name, value in found.items()]
