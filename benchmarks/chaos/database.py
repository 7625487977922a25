"""The control plane's database as the run sees it. As a program it prints what was billed, as JSON."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

from benchmarks.chaos.plant import MODEL
from benchmarks.chaos.reconcile import Row
from benchmarks.processes import new_database, run_python


@dataclass(frozen=True, slots=True)
class Bill:
    """Rows, and whether the daily sums agree with them; `dead` are entries that could not be read."""

    rows: Sequence[Row]
    sums_agree: bool
    dead: Sequence[str]


def read_bill(database_url: str) -> Bill:
    """In a process of its own, so that this one needs no Django."""
    text = _run(database_url, "-m", "benchmarks.chaos.database")
    value = json.loads(text.splitlines()[-1])
    return Bill([Row(*row) for row in value["rows"]], value["sums_agree"], value["dead"])


_NAMES: Final = """
import django, sys; django.setup()
from controlplane.catalog.models import BaseModel
from controlplane.tenants.models import Tenant
BaseModel.objects.create(name=sys.argv[1], max_model_len=2048, modules={}, dtype="bfloat16")
for slug in sys.argv[2:]:
    Tenant.objects.create(pk=slug, name=slug)
"""


@contextlib.contextmanager
def fresh_database(server: str, folder: Path, tenants: Sequence[str] = ("acme",)) -> Iterator[str]:
    """URL of a migrated database: of its own on PostgreSQL server `server`, or SQLite when that is "".

    It knows the base model that the run's events name, and `tenants`: usage of others would be dead.
    """
    if not server:
        url = f"sqlite:///{folder / 'graftwork.db'}"
        _make(url, tenants)
        yield url
        return
    with new_database(server) as url:
        _make(url, tenants)
        yield url


def _make(url: str, tenants: Sequence[str]) -> None:
    _run(url, "manage.py", "migrate", "--verbosity", "0")
    _run(url, "-c", _NAMES, MODEL, *tenants)


def set_open(database_url: str, *, open_: bool) -> None:
    """An outage of the run's own database on PostgreSQL: no connection stands, and none can be made."""
    url = urlsplit(database_url)
    name = url.path.removeprefix("/")
    with psycopg.connect(url._replace(path="/postgres").geturl(), autocommit=True) as connection:
        allow = sql.SQL("ALTER DATABASE {} WITH ALLOW_CONNECTIONS {}")
        connection.execute(allow.format(sql.Identifier(name), sql.SQL("true" if open_ else "false")))
        if not open_:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,)
            )


def _run(database_url: str, *arguments: str) -> str:
    environ = os.environ | {
        "DJANGO_SETTINGS_MODULE": "controlplane.settings",
        "GRAFTWORK_DATABASE_URL": database_url,
        "GRAFTWORK_SECRET_KEY": "chaos",
    }
    return run_python(environ, *arguments)


def _print_bill() -> None:
    import django

    django.setup()
    from django.db.models import Sum

    from controlplane.metering.models import DeadUsageEvent, UsageEventRow, UsageRollup

    rows = UsageEventRow.objects.values_list(
        "request_id", "attempt", "status", "prompt_tokens", "cached_tokens", "completion_tokens", "estimated"
    )
    names = ("prompt_tokens", "cached_tokens", "completion_tokens")
    of_rows: dict[str, Any] = UsageEventRow.objects.aggregate(**{name: Sum(name) for name in names})
    of_rollups: dict[str, Any] = UsageRollup.objects.aggregate(**{name: Sum(name) for name in names})
    requests = UsageRollup.objects.aggregate(requests=Sum("requests"))["requests"] or 0
    agree = of_rows == of_rollups and requests == rows.count()
    dead = list(DeadUsageEvent.objects.values_list("reason", flat=True))
    print(json.dumps({"rows": list(rows), "sums_agree": agree, "dead": dead}))


if __name__ == "__main__":
    _print_bill()
