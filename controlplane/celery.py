"""Entry point of `celery -A controlplane.celery`."""

from controlplane.platform.celery import app as app
