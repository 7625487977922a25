"""Reads of the route table's rows."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from django.db import transaction

from controlplane.routes.models import RouteCounter, RouteDelta, RouteEntryRow
from gateway.wire import RouteChange, RouteTable


def route_version() -> int | None:
    """Version of the newest committed change; None before the first."""
    return RouteCounter.objects.values_list("version", flat=True).first()


def route_adapter_exists(*, name: str) -> bool:
    """Whether any tenant has a published adapter of this name."""
    return RouteEntryRow.objects.filter(path__startswith="adapters/", path__endswith=f"/{name}").exists()


def route_paths(*, paths: Iterable[str]) -> set[str]:
    """Those of `paths` that have an entry."""
    return set(RouteEntryRow.objects.filter(path__in=list(paths)).values_list("path", flat=True))


def route_changes_after(*, version: int, limit: int = 500) -> list[RouteChange]:
    """The oldest `limit` changes above `version`, in order."""
    rows = RouteDelta.objects.filter(version__gt=version).order_by("version")[:limit]
    return [
        RouteChange.from_json(json.dumps({"version": row.version, "path": row.path, "entry": row.entry}))
        for row in rows
    ]


@transaction.atomic
def route_table() -> RouteTable:
    """The whole table, exactly as of its version: the counter's lock keeps changes out meanwhile."""
    version = RouteCounter.objects.select_for_update().values_list("version", flat=True).first()
    table: dict[str, Any] = {"version": version or 0, "keys": {}, "tenants": {}, "bases": {}, "adapters": {}}
    for row in RouteEntryRow.objects.order_by("path").iterator():
        kind, _, name = row.path.partition("/")
        if kind == "adapters":
            tenant, _, name = name.partition("/")
            table[kind].setdefault(tenant, {})[name] = row.entry
        else:
            table[kind][name] = row.entry
    return RouteTable.from_json(json.dumps(table))
