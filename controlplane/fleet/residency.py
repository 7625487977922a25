"""Residency map: the tier of each adapter on each of a base model's copies."""

from __future__ import annotations

import datetime as dt
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from django.db.models import CharField, QuerySet, Value
from django.db.models.functions import Cast, Concat, Left
from django.utils import timezone

from contracts.adapters.reference import engine_name
from controlplane.adapters.models import AdapterVersion
from controlplane.catalog.models import BaseModel
from controlplane.deployments.models import AdapterRule, Copy
from controlplane.deployments.placement.memories import memories_read
from controlplane.deployments.placement.residency.base import Memory, Resident
from controlplane.deployments.provisioners.base import ProvisioningError
from controlplane.errors import InvalidInputError
from controlplane.fleet.adapters_seen import MOST_MINUTES, Use, uses_of

TIERS: Final = ("device", "host", "server", "disk", "absent", "unknown")
"""Tiers from the nearest to the engine. `server`: registered on a server that reports no tier, or only that
of adapters with requests, such as vLLM."""
PAGE: Final = 50
_READ_SECONDS: Final = 4.0
_SHA12: Final = 12


@dataclass(frozen=True, slots=True)
class Cell:
    """One adapter on one copy."""

    copy: str
    tier: str
    pinned: bool = False
    held: Resident | None = None
    use: Use = field(default_factory=Use)

    @property
    def tokens(self) -> int:
        return self.use.prompt_tokens + self.use.completion_tokens


@dataclass(frozen=True, slots=True)
class MapRow:
    """An adapter on all copies; `name` is its engine name, or 12 digits of an unknown digest."""

    name: str
    cells: tuple[Cell, ...]

    @property
    def requests(self) -> int:
        return sum(cell.use.requests for cell in self.cells)

    @property
    def lies(self) -> int:
        """Number of copies that have it in memory."""
        return sum(cell.tier in ("device", "host", "server") for cell in self.cells)


@dataclass(frozen=True, slots=True)
class ResidencyMap:
    """One page of the map.

    Attributes:
        faults: errors by copy.
        tiers: number of adapters per tier, by copy.
        total: number of adapters found; `page` of `pages` counts from 1.
    """

    at: dt.datetime
    base: BaseModel
    minutes: int
    copies: tuple[Copy, ...]
    faults: Mapping[str, str] = field(default_factory=dict)
    tiers: Mapping[str, Counter[str]] = field(default_factory=dict)
    rows: tuple[MapRow, ...] = ()
    total: int = 0
    page: int = 1
    pages: int = 1


def residency_map(
    *, base: BaseModel, minutes: int = 15, search: str = "", everything: bool = False, page: int = 1
) -> ResidencyMap:
    """Map the adapters that are resident, were used, or have a placement rule, the busiest first.

    It takes five queries, two more for `everything`, and one call to each copy, whatever the number of
    adapters.

    Args:
        search: part of an engine name.
        everything: include versions that are not resident and were not used.

    Raises:
        InvalidInputError: the minutes are out of bounds.
    """
    if not 1 <= minutes <= MOST_MINUTES:
        raise InvalidInputError(f"minutes must be an integer from 1 to {MOST_MINUTES}", field="minutes")
    now = timezone.now()
    copies = list(Copy.objects.filter(base_model=base).order_by("created_at", "id"))
    answers = memories_read(copies, seconds=_READ_SECONDS, disk=True)
    memories = {copy: found for copy, found in answers.items() if isinstance(found, Memory)}
    faults = {copy: str(found) for copy, found in answers.items() if isinstance(found, ProvisioningError)}
    uses = uses_of(base.name, [copy.pk for copy in copies], now, minutes)
    pinned = _pinned(base)
    names = _names(base, memories.values()) | {name for name, _ in uses} | set(pinned)
    part = search.strip().lower()
    requests = Counter[str]()
    for (name, _copy), use in uses.items():
        requests[name] += use.requests
    found = sorted(
        (name for name in names if part in name.lower()),
        key=lambda name: (-requests[name], -_held_by(name, memories), name),
    )
    nowhere = _nowhere(base, names, part) if everything else None
    total = len(found) + (0 if nowhere is None else nowhere.count())
    pages = max(1, -(-total // PAGE))
    page = min(max(1, page), pages)
    first = (page - 1) * PAGE
    shown = found[first : first + PAGE]
    if nowhere is not None and len(shown) < PAGE:
        # Absent versions follow the found ones; earlier pages may have shown some of them.
        begin = max(0, first - len(found))
        shown += nowhere[begin : begin + PAGE - len(shown)]
    rows = tuple(
        MapRow(name, tuple(_cell(name, copy.pk, memories, uses, pinned) for copy in copies)) for name in shown
    )
    tiers = {copy: _tiers(memory) for copy, memory in memories.items()}
    return ResidencyMap(now, base, minutes, tuple(copies), faults, tiers, rows, total, page, pages)


def adapter_row(*, base: BaseModel, name: str, minutes: int = 15) -> ResidencyMap:
    """Return the map of a single adapter, even if it is not resident."""
    now = timezone.now()
    copies = list(Copy.objects.filter(base_model=base).order_by("created_at", "id"))
    answers = memories_read(copies, seconds=_READ_SECONDS, disk=True)
    memories = {copy: found for copy, found in answers.items() if isinstance(found, Memory)}
    faults = {copy: str(found) for copy, found in answers.items() if isinstance(found, ProvisioningError)}
    uses = uses_of(base.name, [copy.pk for copy in copies], now, minutes, adapter=name)
    pinned = _pinned(base)
    row = MapRow(name, tuple(_cell(name, copy.pk, memories, uses, pinned) for copy in copies))
    return ResidencyMap(now, base, minutes, tuple(copies), faults, {}, (row,), 1)


def _pinned(base: BaseModel) -> dict[str, set[str]]:
    """Return the copies on which a placement rule has pinned each adapter, by engine name."""
    rules = AdapterRule.objects.filter(deployment__base_model=base, deployment__removed_at=None)
    found: dict[str, set[str]] = defaultdict(set)
    for name, on, ready in rules.values_list("engine_name", "on", "ready"):
        found[name] |= set(on) & set(ready)
    return found


def _versions(base: BaseModel) -> QuerySet[AdapterVersion]:
    """Return the base's ready versions that are not deleted."""
    return AdapterVersion.objects.filter(
        adapter__base_model=base, adapter__deleted_at=None, deleted_at=None, status="ready", sha256__gt=""
    )


def _nowhere(base: BaseModel, names: set[str], part: str) -> QuerySet[AdapterVersion, str]:
    """Return the sorted engine names that contain `part` and are not in `names`.

    The database builds the names, since tens of thousands of versions are absent and a page shows few.
    """
    name = Concat(
        Value("t_"),
        "adapter__tenant_id",
        Value(".a_"),
        "adapter__name",
        Value(".v"),
        Cast("number", CharField()),
        Value("."),
        Left("sha256", _SHA12),
        output_field=CharField(),
    )
    versions = _versions(base).annotate(engine=name).exclude(engine__in=names)
    if part:
        versions = versions.filter(engine__icontains=part)
    return versions.order_by("engine").values_list("engine", flat=True)


def _names(base: BaseModel, memories: Iterable[Memory]) -> set[str]:
    """Return the engine names of resident adapters; a digest's prefix where no version is known."""
    held: set[str] = set()
    for memory in memories:
        held |= set(memory.adapters) | memory.disk
    # An engine name ends with its digest.
    versions = _versions(base).annotate(sha12=Left("sha256", _SHA12))
    versions = versions.filter(sha12__in={key[-_SHA12:] for key in held})
    known, digests = set[str](), set[str]()
    rows = versions.values_list("adapter__tenant_id", "adapter__name", "number", "sha256")
    for tenant, adapter, version, sha256 in rows:
        name = engine_name(tenant=tenant, adapter=adapter, version=version, sha256=sha256)
        digests.add(sha256[:_SHA12])
        if sha256[:_SHA12] in held or name in held:
            known.add(name)
    # Servers with names also list their base model, which is no adapter: keep only unknown digests.
    return known | {key for key in held - digests - known if len(key) == _SHA12}


def _held_by(name: str, memories: Mapping[str, Memory]) -> int:
    key = name[-_SHA12:]
    return sum(name in memory.adapters or key in memory.adapters for memory in memories.values())


def _cell(
    name: str,
    copy: str,
    memories: Mapping[str, Memory],
    uses: Mapping[tuple[str, str], Use],
    pinned: Mapping[str, set[str]],
) -> Cell:
    memory, use = memories.get(copy), uses.get((name, copy), Use())
    if memory is None:
        return Cell(copy, "unknown", use=use)
    key = name[-_SHA12:]
    held = memory.adapters.get(name) or memory.adapters.get(key)
    tier = held.tier if held is not None else "disk" if key in memory.disk else "absent"
    is_pinned = copy in pinned.get(name, ()) or (held is not None and held.pinned and held.sha256 != "")
    return Cell(copy, tier, is_pinned, held, use)


def _tiers(memory: Memory) -> Counter[str]:
    found = Counter(held.tier for held in memory.adapters.values())
    found["disk"] = len(memory.disk - set(memory.adapters))
    return found
