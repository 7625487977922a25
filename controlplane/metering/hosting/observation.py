"""Observes hosted resources, opens and closes their spans, and has them counted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from django.db import transaction

from controlplane.metering.hosting.hours import spans_count
from controlplane.metering.hosting.present import Hosted, hosted_now
from controlplane.metering.models import HostingObservation, HostingSpan
from controlplane.optimization.metered import attempts_metered

LONGEST_GAP: Final = 300
"""Seconds between two observations within which a vanished resource counts until the second one."""


def hosting_observe(*, now: int) -> int:
    """Run one periodic observation; `now` is Unix seconds. Returns how many spans began or ended."""
    with transaction.atomic():
        there = list(hosted_now())
        changed = spans_update(there=there, now=now)
        attempts_metered(subjects=[hosted.subject for hosted in there if hosted.until])
    spans_count(now=now)
    return changed


@transaction.atomic
def spans_update(*, there: Iterable[Hosted], now: int) -> int:
    """Opens spans for new resources, and closes those of vanished ones; returns how many.

    The lock on the last observation serializes runs. A change of quantity or name closes the span and opens a
    new one. After a gap longer than `LONGEST_GAP`, time since the last observation does not count: a vanished
    or changed span ends there, and a changed resource starts again now. Resources that are `exact` count as
    they report.
    """
    latest, _ = HostingObservation.objects.select_for_update().get_or_create(pk=1, defaults={"at": now})
    now = max(now, latest.at)
    closed_at = now if now - latest.at <= LONGEST_GAP else latest.at
    spans = {(span.kind, span.subject): span for span in HostingSpan.objects.filter(ended_at=None)}
    found: list[HostingSpan] = []
    ended: list[HostingSpan] = []
    for hosted in there:
        span = spans.pop(hosted.key, None)
        if hosted.until:
            (found if span is None else ended).append(_ended(span, hosted))
            continue
        if span is not None and _same(span, hosted):
            continue
        if hosted.exact and span is None:
            started_at = hosted.since
        elif span is None:
            started_at = min(max(hosted.since, latest.at), now) if hosted.since else now
        else:
            started_at, span.ended_at = max(now, span.counted_to), max(closed_at, span.counted_to)
            ended.append(span)
        found.append(HostingSpan(**hosted.values(), started_at=started_at, counted_to=started_at))
    for span in spans.values():
        span.ended_at = max(closed_at, span.counted_to)
        ended.append(span)
    # Close spans first: a subject may have only one open span.
    HostingSpan.objects.bulk_update(ended, ["ended_at"], batch_size=200)
    HostingSpan.objects.bulk_create(found, batch_size=500)
    HostingObservation.objects.filter(pk=1).update(at=now)
    return len(ended) + len(found)


def _ended(span: HostingSpan | None, hosted: Hosted) -> HostingSpan:
    """Close the span of a resource that reports its end; without a span it lived between two observations."""
    closed = span or HostingSpan(**hosted.values(), started_at=hosted.since, counted_to=hosted.since)
    closed.ended_at = max(hosted.until, closed.counted_to)
    return closed


def _same(span: HostingSpan, hosted: Hosted) -> bool:
    return all(getattr(span, name) == value for name, value in hosted.values().items())
