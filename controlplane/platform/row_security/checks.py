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
    """The web process should not own the tables: policies hold for everyone but their owner."""
    if not databases or connection.vendor != "postgresql" or policies_hold():
        return []
    return [
        Warning(
            "this database role owns the tables, so row policies do not hold for it",
            hint="In the web process, log in as a role that `manage.py web_role` made; others may own them.",
            id="row_security.W001",
        )
    ]


@register(Tags.database, deploy=True)
def check_trigrams(
    app_configs: Any = None, databases: Sequence[str] | None = None, **_: Any
) -> list[CheckMessage]:
    """Without the indexes a search by name works, and reads every name of the tenant."""
    if not databases or not (missing := indexes_missing(connection)):
        return []
    hint = "As a role that may: CREATE EXTENSION pg_trgm. Then, as the owner: manage.py search_indexes."
    return [
        Warning(f"no index for searches by name: {', '.join(missing)}", hint=hint, id="row_security.W002")
    ]
