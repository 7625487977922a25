"""Hands work to Celery by the task's name once the transaction has committed."""

from __future__ import annotations

import logging

from django.db import transaction
from kombu.exceptions import OperationalError

from controlplane.platform.celery import app

logger = logging.getLogger(__name__)


def enqueue(task: str, *, expires: float | None = None, **arguments: str | int) -> None:
    """Sends `task` with `arguments` after commit; a worker that gets to it `expires` seconds later drops it.

    A broker that is away does not fail the request, whose row is committed: every task that is
    enqueued here is also found again by a periodic one.
    """

    def send() -> None:
        try:
            app.send_task(task, kwargs=arguments, expires=expires)
        except OperationalError as error:
            logger.warning("%s %s was not enqueued, a periodic task will do it: %s", task, arguments, error)

    transaction.on_commit(send)
