"""`manage.py check --database default`: verifies that the ledger is append-only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.core.checks import CheckMessage, Error, Tags, register
from django.db import connections

from controlplane.billing.ledger.append_only import TABLES, installed


@register(Tags.database)
def billing_triggers_stand(*, databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """Reports databases whose ledger triggers were removed by hand, or lost with a recreated table."""
    found: list[CheckMessage] = []
    for alias in databases or ():
        connection = connections[alias]
        if TABLES[0] in connection.introspection.table_names() and not installed(connection):
            hint = "Run manage.py billing_protect, and find out who removed them."
            text = f"the ledger of database {alias!r} is not append-only: triggers are missing"
            found.append(Error(text, hint=hint, id="billing.E001"))
    return found
