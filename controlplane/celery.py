"""The Celery application: `celery -A controlplane.celery worker` and `... beat`."""

from __future__ import annotations

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
app = Celery("graftwork")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
