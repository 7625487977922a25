"""`manage.py audit_protect`: recreates the triggers of the audit log."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand
from django.db import connection

from controlplane.platform.audit.append_only import install


class Command(BaseCommand):
    """Changes nothing where they stand."""

    help = "Create the triggers that keep the audit log append-only."

    def handle(self, *args: Any, **options: Any) -> None:
        install(connection)
        self.stdout.write("the audit log is append-only")
