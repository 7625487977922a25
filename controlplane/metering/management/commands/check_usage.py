"""`manage.py check_usage`: compares the sums of usage with the events that they were made of."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane.metering.reconcile import days_checked, sums_check, sums_drift
from controlplane.metering.services import keep_from


class Command(BaseCommand):
    """Prints each difference; exits with 1 if there is one."""

    help = "Compare each day's usage totals with its events."

    def add_arguments(self, parser: CommandParser) -> None:
        today = dt.datetime.now(dt.UTC).date()
        parser.add_argument(
            "--start", type=dt.date.fromisoformat, default=today, help="first UTC day (default: today)"
        )
        parser.add_argument(
            "--end", type=dt.date.fromisoformat, default=today, help="last UTC day (default: today)"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        start, end = options["start"], options["end"]
        if start < (oldest := keep_from()):
            raise CommandError(f"events are kept from {oldest}: totals of older days cannot be checked")
        days = [start + dt.timedelta(days=number) for number in range((end - start).days + 1)]
        first, last = days_checked(dt.datetime.now(dt.UTC).date())
        # Health shows the last check: recording one of fewer days than a night's would hide its findings.
        if start <= first and last <= end:
            found = sums_check(start=start, end=end)
        else:
            found = [drift for day in days for drift in sums_drift(day=day)]
        for drift in found:
            self.stdout.write(drift.text)
        if found:
            raise CommandError(f"{len(found)} totals differ from their events")
        self.stdout.write(f"{len(days)} days agree")
