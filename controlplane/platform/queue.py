"""Enqueues Celery tasks by name after the transaction has committed."""

from __future__ import annotations

import logging

from django.db import transaction
from kombu.exceptions import OperationalError

from controlplane.platform.celery import app

logger = logging.getLogger(__name__)


def enqueue(task: str, *, expires: float | None = None, **arguments: str | int) -> None:
    """Send `task` with `arguments` after commit; it is dropped if no worker starts it in `expires` seconds.

    An unavailable broker does not fail the request, whose row is committed: a periodic task also finds the
    work of every task that is enqueued here.
    """

    def send() -> None:
        try:
            app.send_task(task, kwargs=arguments, expires=expires)
        except OperationalError as error:
            logger.warning("%s %s was not enqueued, a periodic task will do it: %s", task, arguments, error)

    transaction.on_commit(send)
