"""Reads of the route table."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from typing import Final

from django.db import connection, transaction
from django.db.models import Q, Subquery, TextField
from django.db.models.functions import Cast

from contracts.adapters.reference import AdapterRef, EngineName
from contracts.base_routes import BaseRoute
from contracts.route_table import AdapterRoute, RouteChange, RouteTable
from controlplane.routes.models import RouteCounter, RouteDelta, RouteEntryRow

_PIECE: Final = 1_000
"""Rows of a snapshot per read."""


def route_version() -> int | None:
    """Return the version of the newest committed change; None before the first."""
    return RouteCounter.objects.values_list("version", flat=True).first()


def route_base(*, base_model: str) -> BaseRoute | None:
    """Return a base model's route entry; None if it has none."""
    entry = RouteEntryRow.objects.filter(path=f"bases/{base_model}").values_list("entry", flat=True).first()
    return None if entry is None else BaseRoute.from_dict(entry)


def route_adapter_exists(*, name: str) -> bool:
    """Return True if any tenant has a published adapter of this name."""
    return RouteEntryRow.objects.filter(path__startswith="adapters/", path__endswith=f"/{name}").exists()


def route_adapter(*, tenant: str, name: str) -> AdapterRoute | None:
    """Return the route of a tenant's adapter; None if it has none."""
    entry = RouteEntryRow.objects.filter(path=f"adapters/{tenant}/{name}").values_list("entry", flat=True)
    found = entry.first()
    return None if found is None else AdapterRoute.from_dict(found)


def route_adapters_of(*, base_model: str) -> Iterator[AdapterRoute]:
    """Yield the routes of a base model's callable adapters."""
    rows = RouteEntryRow.objects.filter(path__startswith="adapters/", entry__base=base_model)
    for entry in rows.order_by("path").values_list("entry", flat=True).iterator(chunk_size=2000):
        yield AdapterRoute.from_dict(entry)


def route_refs(*, base_model: str, names: Iterable[str]) -> dict[str, AdapterRef]:
    """Return the references of those engine names that have a route.

    Raises:
        ContractError: a name is no engine name.
    """
    requested = set(names)
    parsed = [EngineName.parse(name) for name in requested]
    paths = {f"adapters/{name.tenant}/{name.adapter}" for name in parsed}
    rows = RouteEntryRow.objects.filter(path__in=paths, entry__base=base_model)
    found: dict[str, AdapterRef] = {}
    for entry in rows.values_list("entry", flat=True):
        refs = AdapterRoute.from_dict(entry).versions.values()
        found |= {ref.name: ref for ref in refs if ref.name in requested}
    return found


def route_adapters_changed(*, base_model: str, after: int) -> bool:
    """Return True if adapters of `base_model` may have changed since version `after`."""
    newer = RouteDelta.objects.filter(version__gt=after)
    # After a gap anything may have changed: changes are dropped after a day, and a renumbering lists none.
    if not RouteDelta.objects.filter(version=after).exists() and not newer.filter(version=after + 1).exists():
        return True
    # A removal does not name its base model, so it counts for every one.
    about = Q(entry__base=base_model) | Q(entry__isnull=True)
    return newer.filter(about, path__startswith="adapters/").exists()


def route_paths(*, paths: Iterable[str]) -> set[str]:
    """Return the subset of `paths` that have an entry."""
    return set(RouteEntryRow.objects.filter(path__in=list(paths)).values_list("path", flat=True))


def route_changes_after(*, version: int, limit: int = 500) -> list[RouteChange]:
    """List the oldest `limit` changes after `version`, in order."""
    rows = RouteDelta.objects.filter(version__gt=version).order_by("version")[:limit]
    return [
        RouteChange.from_json(json.dumps({"version": row.version, "path": row.path, "entry": row.entry}))
        for row in rows
    ]


def route_table() -> RouteTable:
    """Return the whole table as of its version."""
    return RouteTable.from_snapshot(route_snapshot()[1])


def route_snapshot(*, paced: bool = False) -> tuple[int, str]:
    """Return the table's version and its `RouteTable.snapshot()`, built from the stored JSON.

    At 100,000 adapters this takes seconds and must not block changes. One statement reads a consistent state,
    so it needs no lock.

    Args:
        paced: sleep after each piece for as long as it took, so that urgent work gets the CPU.
    """
    counter = RouteCounter.objects.values("version")[:1]
    rows = RouteEntryRow.objects.order_by("path").annotate(
        text=Cast("entry", TextField()), version=Subquery(counter)
    )
    lines: list[str] = []
    version: int | None = None
    # PostgreSQL streams rows only inside a transaction. SQLite always does, and a transaction there would
    # take the write lock.
    with transaction.atomic() if connection.vendor == "postgresql" else nullcontext():
        found = rows.values_list("path", "text", "version").iterator(chunk_size=_PIECE)
        started = time.perf_counter()
        for path, text, stated in found:
            version = stated
            lines.append(f'{{"path": {json.dumps(path)}, "entry": {text}}}')
            if paced and len(lines) % _PIECE == 0:
                time.sleep(time.perf_counter() - started)
                started = time.perf_counter()
    if version is None:
        version = route_version() or 0
    head = json.dumps({"version": version})
    return version, "\n".join([head, *lines, head, ""])
