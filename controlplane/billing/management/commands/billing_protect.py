"""`manage.py billing_protect`: makes the triggers of the books and of finalized invoices anew."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand
from django.db import connection

from controlplane.billing.ledger.append_only import install


class Command(BaseCommand):
    """Changes nothing where they stand."""

    help = "Make the triggers that keep the books append-only and finalized invoices as they are."

    def handle(self, *args: Any, **options: Any) -> None:
        install(connection)
        self.stdout.write("the books are append-only")
