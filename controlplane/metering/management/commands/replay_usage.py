"""`manage.py replay_usage`: ingests the dead letters again, after their cause is fixed."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from controlplane.metering.replay import dead_usage_replay


class Command(BaseCommand):
    """Prints how many events were new; the others remain dead letters, with the present reason."""

    help = "Ingest dead usage events again."

    def handle(self, *args: Any, **options: Any) -> None:
        counted, left = dead_usage_replay()
        self.stdout.write(f"{counted} events were ingested, {left} are still dead")
