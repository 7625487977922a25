"""`manage.py billing_protect`: recreates the triggers of the ledger and of finalized invoices."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand
from django.db import connection

from controlplane.billing.ledger.append_only import install


class Command(BaseCommand):
    """Creates the missing triggers; existing ones stay."""

    help = "Create the triggers that make the ledger append-only and protect finalized invoices."

    def handle(self, *args: Any, **options: Any) -> None:
        install(connection)
        self.stdout.write("the ledger is append-only")
