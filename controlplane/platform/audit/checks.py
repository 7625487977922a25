"""`manage.py check --database default`: the log is append-only in fact."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.core.checks import CheckMessage, Error, Tags, register
from django.db import connections

from controlplane.platform.audit.append_only import TABLE, installed


@register(Tags.database)
def audit_triggers_stand(*, databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """Report an audit log without its triggers, which were dropped by hand or lost with a recreated table."""
    found: list[CheckMessage] = []
    for alias in databases or ():
        connection = connections[alias]
        if TABLE in connection.introspection.table_names() and not installed(connection):
            hint = "run manage.py audit_protect, and find out who removed the triggers"
            text = f"the audit log of database {alias!r} is not append-only: its triggers are missing"
            found.append(Error(text, hint=hint, id="audit.E001"))
    return found
