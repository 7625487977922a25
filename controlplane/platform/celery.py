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
"""Of a worker's own process: its name, its queues, when it began to listen."""
_running: dict[str, float] = {}
"""Of the process that runs tasks: when each began, by its id."""


@worker_init.connect  # type: ignore[untyped-decorator]
def forget_heartbeat(**_: Any) -> None:
    """A worker that starts is not alive by what the one before it left."""
    if (path := app.conf.GRAFTWORK.heartbeat_file) is not None:
        path.unlink(missing_ok=True)


@heartbeat_sent.connect  # type: ignore[untyped-decorator]
def touch_heartbeat_file(sender: Any, **_: Any) -> None:
    """Lets a health check see by a file's age that this worker goes round, without a process that asks it.

    The signal comes before each heartbeat; what the broker did not take waits in the dispatcher's buffer.
    """
    path = app.conf.GRAFTWORK.heartbeat_file
    is_heard = not sender.eventer._outbound_buffer
    if path is not None and is_heard:
        path.touch()
    if _listening and is_heard:
        task_signs.worker_said(app.conf.broker_url, **_listening)


@worker_ready.connect  # type: ignore[untyped-decorator]
def begin_to_listen(sender: Any, **_: Any) -> None:
    """From now on its heartbeats say which queues it takes from."""
    queues = [queue.name for queue in sender.task_consumer.queues]
    _listening.update(name=sender.hostname, queues=queues, started_at=time.time())
    task_signs.worker_said(app.conf.broker_url, **_listening)


@worker_shutdown.connect  # type: ignore[untyped-decorator]
def end_listening(**_: Any) -> None:
    """A worker that was stopped is not missed."""
    if _listening:
        task_signs.worker_left(app.conf.broker_url, name=_listening["name"])
        _listening.clear()


@before_task_publish.connect  # type: ignore[untyped-decorator]
def date_message(headers: dict[str, Any], **_: Any) -> None:
    """Says in each message when it was sent, so that a queue's oldest has an age."""
    headers[task_signs.SENT_AT] = time.time()


@after_task_publish.connect  # type: ignore[untyped-decorator]
def note_beat(sender: str, headers: dict[str, Any], **_: Any) -> None:
    """Beat's messages alone: whether and when it sent each scheduled task."""
    if headers.get("celery_beat_task"):
        task_signs.beat_sent(app.conf.broker_url, task=sender)


@task_prerun.connect  # type: ignore[untyped-decorator]
def begin_run(task_id: str, **_: Any) -> None:
    """Starts a run's clock."""
    _running[task_id] = time.monotonic()


@task_postrun.connect  # type: ignore[untyped-decorator]
def end_run(task_id: str, task: Any, retval: Any, state: str | None, **_: Any) -> None:
    """Leaves what became of the run."""
    began = _running.pop(task_id, None)
    if began is None or not app.conf.broker_url:
        return
    # Of an exception its kind and text: a return value may be anything.
    reason = f"{type(retval).__name__}: {retval}" if isinstance(retval, Exception) else ""
    task_signs.task_ran(
        app.conf.broker_url, task=task.name, seconds=time.monotonic() - began, outcome=state or "",
        reason=reason,
    )  # fmt: skip
