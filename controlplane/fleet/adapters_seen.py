"""What each adapter does on each copy of a deployment: where it lies, by the copies; its use, by metering."""

from __future__ import annotations

import datetime as dt
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from django.db.models import Count, F, Max, Q, Sum
from django.utils import timezone

from contracts.adapters.reference import EngineName
from contracts.errors import ContractError
from controlplane.adapters.models import AdapterVersion
from controlplane.deployments.models import Copy, Deployment
from controlplane.deployments.placement.memories import memories_read
from controlplane.deployments.placement.models import AdapterRule
from controlplane.deployments.placement.residency.base import Held, Memory
from controlplane.deployments.placement.selectors import rule_list
from controlplane.deployments.provisioners.base import ProvisioningError
from controlplane.errors import InvalidInputError
from controlplane.metering.models import UsageEventRow

MOST_MINUTES: Final = 60
MOST_ADAPTERS: Final = 200
"""Shown of a deployment at a time, the busiest first; a search finds the others."""
_TIMED: Final = 20_000
"""The newest so many requests' times: percentiles of more are no better, and the page does not wait."""
_READ_SECONDS: Final = 6.0
"""For all copies together: a page does not wait longer for silent ones."""
_SHA12: Final = 12


@dataclass(frozen=True, slots=True)
class Use:
    """An adapter's requests at one copy in the window.

    Attributes:
        requests: attempts that have ended; errors: of them those that failed.
        ttft_p50_ms, ttft_p95_ms: of those with a first token; None without any.
        last_ended: of them the last one's end.
    """

    requests: int = 0
    errors: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    ttft_p50_ms: float | None = None
    ttft_p95_ms: float | None = None
    last_ended: dt.datetime | None = None


@dataclass(frozen=True, slots=True)
class OnCopy:
    """`held` is None where it is not in memory; `known` False where the copy does not tell."""

    copy: str
    known: bool
    held: Held | None
    use: Use = Use()

    def last_used(self, now: dt.datetime) -> dt.datetime | None:
        """By metering, and by the copy itself, which also knows of what runs and of what was before."""
        times = [] if self.use.last_ended is None else [self.use.last_ended]
        if self.held is not None and self.held.idle_seconds is not None:
            idle = 0.0 if self.held.requests else self.held.idle_seconds
            times.append(now - dt.timedelta(seconds=idle))
        return max(times, default=None)


@dataclass(frozen=True, slots=True)
class SeenAdapter:
    """`name`: engine name, or the beginning of a digest that no version here has."""

    name: str
    on: tuple[OnCopy, ...]
    rule: AdapterRule | None = None

    def pinned_on(self, copy: str) -> bool:
        """Whether it is kept there because somebody said so."""
        return self.rule is not None and copy in self.rule.on and copy in self.rule.ready

    @property
    def requests(self) -> int:
        return sum(place.use.requests for place in self.on)


@dataclass(frozen=True, slots=True)
class AdaptersSeen:
    """`memories`: by copy, None of one that does not tell. `total`: adapters that the search finds."""

    minutes: int
    at: dt.datetime
    memories: Mapping[str, Memory | None] = field(default_factory=dict)
    adapters: tuple[SeenAdapter, ...] = ()
    total: int = 0


def adapters_seen(*, deployment: Deployment, minutes: int = 15, search: str = "") -> AdaptersSeen:
    """Adapters that are in memory, were used in the last minutes, or have been placed.

    Args:
        search: part of an engine name; "" for all.

    Raises:
        InvalidInputError: the minutes are out of their bounds.
    """
    if not 1 <= minutes <= MOST_MINUTES:
        raise InvalidInputError(f"minutes is a whole number from 1 to {MOST_MINUTES}", field="minutes")
    now = timezone.now()
    copies = list(Copy.objects.filter(deployment=deployment).order_by("created_at", "id"))
    memories = _memories(copies)
    uses = uses_of(deployment.base_model.name, [copy.pk for copy in copies], now, minutes)
    rules = {rule.engine_name: rule for rule in rule_list(deployment=deployment)}
    names = {name for name, _ in uses} | set(rules)
    names |= _resident_names(deployment, memories.values(), names)
    found = [
        _seen(name, memories, uses, rules.get(name))
        for name in sorted(names)
        if search.strip().lower() in name
    ]
    found.sort(key=lambda item: (-item.requests, item.name))
    return AdaptersSeen(minutes, now, memories, tuple(found[:MOST_ADAPTERS]), len(found))


def _seen(
    name: str,
    memories: Mapping[str, Memory | None],
    uses: Mapping[tuple[str, str], Use],
    rule: AdapterRule | None,
) -> SeenAdapter:
    places = []
    for copy, memory in memories.items():
        held = None
        if memory is not None:
            held = memory.adapters.get(name) or memory.adapters.get(name[-_SHA12:])
        places.append(OnCopy(copy, memory is not None, held, uses.get((name, copy), Use())))
    return SeenAdapter(name, tuple(places), rule)


def _memories(copies: Sequence[Copy]) -> dict[str, Memory | None]:
    """None of one that does not answer, or does not tell."""
    told = memories_read(copies, seconds=_READ_SECONDS)
    return {copy: None if isinstance(found, ProvisioningError) else found for copy, found in told.items()}


def _resident_names(deployment: Deployment, memories: Iterable[Memory | None], known: set[str]) -> set[str]:
    """Engine names of what is in memory, by digest where the copies know no more."""
    held = {key: item for memory in memories if memory is not None for key, item in memory.adapters.items()}
    named = {key for key, item in held.items() if not item.sha256 and is_adapter(key)}
    digests = {item.sha256 for item in held.values() if item.sha256}
    versions = AdapterVersion.objects.filter(
        sha256__in=digests, adapter__base_model=deployment.base_model, deleted_at=None
    ).select_related("adapter")
    found = named | {version.engine_name for version in versions}
    told = {name[-_SHA12:] for name in found | known}
    return found | {sha256[:_SHA12] for sha256 in digests if sha256[:_SHA12] not in told}


def is_adapter(name: str) -> bool:
    try:
        EngineName.parse(name)
    except ContractError:
        return False
    return True


def uses_of(
    base_model: str, copies: Sequence[str], now: dt.datetime, minutes: int, *, adapter: str = ""
) -> dict[tuple[str, str], Use]:
    """By engine name and copy: what metering has of the last minutes. Two queries."""
    since = now - dt.timedelta(minutes=minutes)
    # The days besides: PostgreSQL then reads their partitions alone.
    rows = UsageEventRow.objects.filter(
        day__range=(since.astimezone(dt.UTC).date(), now.astimezone(dt.UTC).date()), base_model=base_model,
        endpoint__in=copies, started_at__gte=int(since.timestamp() * 1000), adapter__gt="",
    )  # fmt: skip
    if adapter:
        rows = rows.filter(adapter=adapter)
    sums = rows.values("adapter", "endpoint").annotate(
        requests=Count("*"), errors=Count("status", filter=Q(status="error")), prompts=Sum("prompt_tokens"),
        completions=Sum("completion_tokens"), last=Max(F("started_at") + F("duration_ms")),
    )  # fmt: skip
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    timed = rows.filter(ttft_ms__isnull=False).order_by("-started_at")
    for adapter, copy, ttft in timed.values_list("adapter", "endpoint", "ttft_ms")[:_TIMED]:
        times[adapter, copy].append(float(ttft or 0))
    found = {}
    for row in sums:
        key = (row["adapter"], row["endpoint"])
        use = Use(
            row["requests"], row["errors"], row["prompts"], row["completions"],
            last_ended=dt.datetime.fromtimestamp(row["last"] / 1000, dt.UTC),
        )  # fmt: skip
        ttfts = sorted(times[key])
        found[key] = replace(use, ttft_p50_ms=_share(ttfts, 0.5), ttft_p95_ms=_share(ttfts, 0.95))
    return found


def _share(ordered: Sequence[float], share: float) -> float | None:
    """The smallest that so many are at or below (nearest rank)."""
    return round(ordered[math.ceil(share * len(ordered)) - 1], 3) if ordered else None
