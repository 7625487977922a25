"""The Celery application: `celery -A controlplane.celery worker` and `... beat`."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery
from celery.signals import heartbeat_sent, worker_init

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
app = Celery("graftwork")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


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
    if path is not None and not sender.eventer._outbound_buffer:
        path.touch()
