"""`manage.py audit_prune`: removes old records of the audit log, by command of an operator."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from controlplane.errors import InvalidInputError
from controlplane.platform.audit.origin import acting, operator
from controlplane.platform.audit.services import audit_prune


class Command(BaseCommand):
    """Archives and removes records in one transaction, and records the removal in each log."""

    help = "Remove audit records older than a number of days, after writing them to a file."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--older-than", type=int, required=True, metavar="DAYS")
        parser.add_argument("--by", required=True, help="name of the operator, for the audit record")
        where = parser.add_mutually_exclusive_group(required=True)
        where.add_argument("--archive", type=Path, help="new file for the removed records, as JSON lines")
        where.add_argument("--no-archive", action="store_true", help="removed permanently")

    def handle(self, *args: Any, **options: Any) -> None:
        before = timezone.now() - dt.timedelta(days=options["older_than"])
        try:
            with acting(operator(options["by"])):
                removed = _prune(before, options["archive"])
        except (InvalidInputError, FileExistsError) as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"removed {sum(removed.values())} records of {len(removed)} logs")


def _prune(before: dt.datetime, archive: Path | None) -> dict[str, int]:
    if archive is None:
        return audit_prune(before=before)
    with archive.open("x") as file:
        return audit_prune(before=before, archive=file)
