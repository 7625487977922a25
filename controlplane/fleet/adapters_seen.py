"""Residency and use of each adapter on each copy of a deployment, from the copies and from metering."""

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
from controlplane.deployments.models import AdapterRule, Copy, Deployment
from controlplane.deployments.placement.memories import memories_read
from controlplane.deployments.placement.residency.base import Memory, Resident
from controlplane.deployments.placement.selectors import rule_list
from controlplane.deployments.provisioners.base import ProvisioningError
from controlplane.errors import InvalidInputError
from controlplane.metering.models import UsageEventRow

MOST_MINUTES: Final = 60
MOST_ADAPTERS: Final = 200
"""Maximum number of adapters per response, busiest first; a search finds the others."""
_TIMED: Final = 20_000
"""Maximum number of recent requests in percentiles: more add no precision and slow down the page."""
_READ_SECONDS: Final = 6.0
"""Time limit for all copies together, so that silent copies do not delay the page."""
_SHA12: Final = 12


@dataclass(frozen=True, slots=True)
class Use:
    """An adapter's requests at one copy in the window.

    Attributes:
        requests: attempts that have ended; errors: failed ones among them.
        ttft_p50_ms, ttft_p95_ms: percentiles of the time to first token; None without measurements.
        last_ended: end of the last attempt.
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
    """An adapter on a copy. `held` is None if it is not in memory; `known` False if the copy reports none."""

    copy: str
    known: bool
    held: Resident | None
    use: Use = Use()

    def last_used(self, now: dt.datetime) -> dt.datetime | None:
        """Return the last use, from metering and from the copy, which also counts running requests."""
        times = [] if self.use.last_ended is None else [self.use.last_ended]
        if self.held is not None and self.held.idle_seconds is not None:
            idle = 0.0 if self.held.requests else self.held.idle_seconds
            times.append(now - dt.timedelta(seconds=idle))
        return max(times, default=None)


@dataclass(frozen=True, slots=True)
class SeenAdapter:
    """An adapter on all copies; `name` is its engine name, or a digest's prefix without a known version."""

    name: str
    on: tuple[OnCopy, ...]
    rule: AdapterRule | None = None

    def pinned_on(self, copy: str) -> bool:
        """Return True if a placement rule keeps the adapter on this copy."""
        return self.rule is not None and copy in self.rule.on and copy in self.rule.ready

    @property
    def requests(self) -> int:
        return sum(place.use.requests for place in self.on)


@dataclass(frozen=True, slots=True)
class AdaptersSeen:
    """Adapters of a deployment. `memories` is by copy, None if unknown; `total` counts all matches."""

    minutes: int
    at: dt.datetime
    memories: Mapping[str, Memory | None] = field(default_factory=dict)
    adapters: tuple[SeenAdapter, ...] = ()
    total: int = 0


def adapters_seen(*, deployment: Deployment, minutes: int = 15, search: str = "") -> AdaptersSeen:
    """List the adapters that are in memory, were used in the last minutes, or have a placement rule.

    Args:
        search: part of an engine name; "" for all.

    Raises:
        InvalidInputError: the minutes are out of bounds.
    """
    if not 1 <= minutes <= MOST_MINUTES:
        raise InvalidInputError(f"minutes must be an integer from 1 to {MOST_MINUTES}", field="minutes")
    now = timezone.now()
    copies = list(Copy.objects.filter(deployment=deployment).order_by("created_at", "id"))
    memories = _memories(copies)
    uses = uses_of(deployment.base_model.name, [copy.pk for copy in copies], now, minutes)
    rules = {rule.engine_name: rule for rule in rule_list(deployment=deployment)}
    names = {name for name, _ in uses} | set(rules)
    names |= _resident_names(deployment, memories.values(), names)
    found = [
        _on_copies(name, memories, uses, rules.get(name))
        for name in sorted(names)
        if search.strip().lower() in name
    ]
    found.sort(key=lambda item: (-item.requests, item.name))
    return AdaptersSeen(minutes, now, memories, tuple(found[:MOST_ADAPTERS]), len(found))


def _on_copies(
    name: str,
    memories: Mapping[str, Memory | None],
    uses: Mapping[tuple[str, str], Use],
    rule: AdapterRule | None,
) -> SeenAdapter:
    rows = []
    for copy, memory in memories.items():
        held = None
        if memory is not None:
            held = memory.adapters.get(name) or memory.adapters.get(name[-_SHA12:])
        rows.append(OnCopy(copy, memory is not None, held, uses.get((name, copy), Use())))
    return SeenAdapter(name, tuple(rows), rule)


def _memories(copies: Sequence[Copy]) -> dict[str, Memory | None]:
    """Read each copy's adapter memory; None if it does not answer or reports none."""
    answers = memories_read(copies, seconds=_READ_SECONDS)
    return {copy: None if isinstance(found, ProvisioningError) else found for copy, found in answers.items()}


def _resident_names(deployment: Deployment, memories: Iterable[Memory | None], known: set[str]) -> set[str]:
    """Return the engine names of resident adapters; a digest's prefix where no version is known."""
    held = {key: item for memory in memories if memory is not None for key, item in memory.adapters.items()}
    named = {key for key, item in held.items() if not item.sha256 and is_adapter(key)}
    digests = {item.sha256 for item in held.values() if item.sha256}
    versions = AdapterVersion.objects.filter(
        sha256__in=digests, adapter__base_model=deployment.base_model, deleted_at=None
    ).select_related("adapter")
    found = named | {version.engine_name for version in versions}
    known_digests = {name[-_SHA12:] for name in found | known}
    return found | {sha256[:_SHA12] for sha256 in digests if sha256[:_SHA12] not in known_digests}


def is_adapter(name: str) -> bool:
    try:
        EngineName.parse(name)
    except ContractError:
        return False
    return True


def uses_of(
    base_model: str, copies: Sequence[str], now: dt.datetime, minutes: int, *, adapter: str = ""
) -> dict[tuple[str, str], Use]:
    """Return the use in the last minutes by (engine name, copy), from metering, in two queries."""
    since = now - dt.timedelta(minutes=minutes)
    # The filter on days limits PostgreSQL to their partitions.
    rows = UsageEventRow.objects.filter(
        day__range=(since.astimezone(dt.UTC).date(), now.astimezone(dt.UTC).date()),
        base_model=base_model,
        endpoint__in=copies,
        started_at__gte=int(since.timestamp() * 1000),
        adapter__gt="",
    )
    if adapter:
        rows = rows.filter(adapter=adapter)
    sums = rows.values("adapter", "endpoint").annotate(
        requests=Count("*"),
        errors=Count("status", filter=Q(status="error")),
        prompts=Sum("prompt_tokens"),
        completions=Sum("completion_tokens"),
        last=Max(F("started_at") + F("duration_ms")),
    )
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    timed = rows.filter(ttft_ms__isnull=False).order_by("-started_at")
    for adapter, copy, ttft in timed.values_list("adapter", "endpoint", "ttft_ms")[:_TIMED]:
        times[adapter, copy].append(float(ttft or 0))
    found = {}
    for row in sums:
        key = (row["adapter"], row["endpoint"])
        use = Use(
            row["requests"],
            row["errors"],
            row["prompts"],
            row["completions"],
            last_ended=dt.datetime.fromtimestamp(row["last"] / 1000, dt.UTC),
        )
        ttfts = sorted(times[key])
        found[key] = replace(use, ttft_p50_ms=_percentile(ttfts, 0.5), ttft_p95_ms=_percentile(ttfts, 0.95))
    return found


def _percentile(ordered: Sequence[float], share: float) -> float | None:
    """Return the nearest-rank percentile of sorted values, or None without values."""
    return round(ordered[math.ceil(share * len(ordered)) - 1], 3) if ordered else None
