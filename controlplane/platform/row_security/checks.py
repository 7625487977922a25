"""`manage.py check --deploy --database default` in the web process's environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.core.checks import CheckMessage, Tags, Warning, register
from django.db import connection

from controlplane.platform.row_security.grants import policies_hold
from controlplane.platform.row_security.name_search import indexes_missing


@register(Tags.database, deploy=True)
def check_role(
    app_configs: Any = None, databases: Sequence[str] | None = None, **_: Any
) -> list[CheckMessage]:
    """Warn if the web process owns the tables, since row policies do not apply to their owner."""
    if not databases or connection.vendor != "postgresql" or policies_hold():
        return []
    return [
        Warning(
            "this database role owns the tables, so row policies do not apply to it",
            hint="In the web process, log in as a role created by `manage.py web_role`.",
            id="row_security.W001",
        )
    ]


@register(Tags.database, deploy=True)
def check_trigrams(
    app_configs: Any = None, databases: Sequence[str] | None = None, **_: Any
) -> list[CheckMessage]:
    """Warn about missing indexes: without them a search by name reads every name of the tenant."""
    if not databases or not (missing := indexes_missing(connection)):
        return []
    text = f"missing indexes for searches by name: {', '.join(missing)}"
    hint = "Run CREATE EXTENSION pg_trgm as a privileged role, then manage.py search_indexes as the owner."
    return [Warning(text, hint=hint, id="row_security.W002")]
