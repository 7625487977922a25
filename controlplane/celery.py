"""The Celery application: `celery -A controlplane.celery worker` and `... beat`."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery
from celery.signals import heartbeat_sent

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
app = Celery("graftwork")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


@heartbeat_sent.connect  # type: ignore[untyped-decorator]
def touch_heartbeat_file(**_: Any) -> None:
    """Lets a health check see by a file's age that this worker goes round, without a process that asks it."""
    if (path := app.conf.GRAFTWORK.heartbeat_file) is not None:
        path.touch()
