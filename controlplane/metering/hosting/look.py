"""Looks what is there, opens and closes spans accordingly, and has them counted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from django.db import transaction

from controlplane.metering.hosting.hours import spans_count
from controlplane.metering.hosting.present import Hosted, hosted_now
from controlplane.metering.models import HostingLook, HostingSpan
from controlplane.optimization.metered import attempts_metered

LONGEST_GAP: Final = 300
"""Seconds between two looks within which something that went is taken to have gone at the second one."""


def hosting_look(*, now: int) -> int:
    """What a periodic task does; `now` is Unix seconds. Returns how many spans began or ended."""
    with transaction.atomic():
        there = list(hosted_now())
        changed = spans_update(there=there, now=now)
        attempts_metered(subjects=[hosted.subject for hosted in there if hosted.until])
    spans_count(now=now)
    return changed


@transaction.atomic
def spans_update(*, there: Iterable[Hosted], now: int) -> int:
    """Opens a span for what is there and has none, closes those of what is not; returns how many.

    A look takes the lock of the one before, so two at once see each other's. What changed in quantity or
    name ends, and begins anew. Of what went or changed while nobody looked, only the time up to the last
    look counts, and what it changed to from this one on; what is `exact` counts as it says.
    """
    look, _ = HostingLook.objects.select_for_update().get_or_create(pk=1, defaults={"at": now})
    now = max(now, look.at)
    last = now if now - look.at <= LONGEST_GAP else look.at
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
            begun = hosted.since
        elif span is None:
            begun = min(max(hosted.since, look.at), now) if hosted.since else now
        else:
            begun, span.ended_at = max(now, span.counted_to), max(last, span.counted_to)
            ended.append(span)
        found.append(HostingSpan(**hosted.values(), started_at=begun, counted_to=begun))
    for span in spans.values():
        span.ended_at = max(last, span.counted_to)
        ended.append(span)
    # Closed first: of a subject no two may be open.
    HostingSpan.objects.bulk_update(ended, ["ended_at"], batch_size=200)
    HostingSpan.objects.bulk_create(found, batch_size=500)
    HostingLook.objects.filter(pk=1).update(at=now)
    return len(ended) + len(found)


def _ended(span: HostingSpan | None, hosted: Hosted) -> HostingSpan:
    """What says itself when it ended; with no span, it came and went between two looks."""
    over = span or HostingSpan(**hosted.values(), started_at=hosted.since, counted_to=hosted.since)
    over.ended_at = max(hosted.until, over.counted_to)
    return over


def _same(span: HostingSpan, hosted: Hosted) -> bool:
    return all(getattr(span, name) == value for name, value in hosted.values().items())
