"""The Celery application: `celery -A controlplane.celery worker` and `... beat`."""

from __future__ import annotations

import os
import time
from typing import Any

from celery import Celery
from celery.signals import (
    after_task_publish,
    before_task_publish,
    heartbeat_sent,
    task_postrun,
    task_prerun,
    worker_init,
    worker_ready,
    worker_shutdown,
)

from controlplane.platform import task_signs

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
app = Celery("graftwork")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
_listening: dict[str, Any] = {}
"""In a worker's main process: its name, its queues and the time since which it listens."""
_running: dict[str, float] = {}
"""In a process that runs tasks: start time by task id."""


@worker_init.connect  # type: ignore[untyped-decorator]
def forget_heartbeat(**_: Any) -> None:
    """Remove the heartbeat file of an earlier worker, so that it does not vouch for this one."""
    if (path := app.conf.GRAFTWORK.heartbeat_file) is not None:
        path.unlink(missing_ok=True)


@heartbeat_sent.connect  # type: ignore[untyped-decorator]
def touch_heartbeat_file(sender: Any, **_: Any) -> None:
    """Touch the heartbeat file, so that a health check can tell from its age that this worker runs.

    The signal precedes each heartbeat; events that the broker has not taken are in the dispatcher's buffer.
    """
    path = app.conf.GRAFTWORK.heartbeat_file
    is_heard = not sender.eventer._outbound_buffer
    if path is not None and is_heard:
        path.touch()
    if _listening and is_heard:
        task_signs.worker_said(app.conf.broker_url, **_listening)


@worker_ready.connect  # type: ignore[untyped-decorator]
def begin_to_listen(sender: Any, **_: Any) -> None:
    """Record the worker's queues, which its heartbeats report from now on."""
    queues = [queue.name for queue in sender.task_consumer.queues]
    _listening.update(name=sender.hostname, queues=queues, started_at=time.time())
    task_signs.worker_said(app.conf.broker_url, **_listening)


@worker_shutdown.connect  # type: ignore[untyped-decorator]
def end_listening(**_: Any) -> None:
    """Remove a stopped worker from the health check."""
    if _listening:
        task_signs.worker_left(app.conf.broker_url, name=_listening["name"])
        _listening.clear()


@before_task_publish.connect  # type: ignore[untyped-decorator]
def date_message(headers: dict[str, Any], **_: Any) -> None:
    """Stamp each message with its send time, from which the age of a queue's oldest message follows."""
    headers[task_signs.SENT_AT] = time.time()


@after_task_publish.connect  # type: ignore[untyped-decorator]
def note_beat(sender: str, headers: dict[str, Any], **_: Any) -> None:
    """Record when beat last sent each scheduled task."""
    if headers.get("celery_beat_task"):
        task_signs.beat_sent(app.conf.broker_url, task=sender)


@task_prerun.connect  # type: ignore[untyped-decorator]
def begin_run(task_id: str, **_: Any) -> None:
    """Record a run's start time."""
    _running[task_id] = time.monotonic()


@task_postrun.connect  # type: ignore[untyped-decorator]
def end_run(task_id: str, task: Any, retval: Any, state: str | None, **_: Any) -> None:
    """Record a run's duration and outcome."""
    began = _running.pop(task_id, None)
    if began is None or not app.conf.broker_url:
        return
    # `retval` is an exception, or the task's return value, which is not recorded.
    reason = f"{type(retval).__name__}: {retval}" if isinstance(retval, Exception) else ""
    task_signs.task_ran(
        app.conf.broker_url,
        task=task.name,
        seconds=time.monotonic() - began,
        outcome=state or "",
        reason=reason,
    )
