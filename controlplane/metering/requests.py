"""The request log: a tenant's single requests, newest first, from their usage events.

A row is an attempt: a request that was retried or fell back has several. Events contain no prompts and no
answers, so the log shows none.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from django.db import connection
from django.db.models import DateField, Q, QuerySet, UUIDField

from contracts.usage_event import STATUSES, call_id, request_ids
from controlplane.errors import InvalidInputError, NotFoundError
from controlplane.metering.models import UsageEventRow
from controlplane.metering.services import keep_from

MOST_DAYS: Final = 31
SEARCHED: Final = 20_000
"""Attempts that one page searches for a filter: rare matches cost several pages, never a long query."""
_MOST_ATTEMPTS: Final = 400
_SPAN: Final = (
    "SELECT * FROM (SELECT {number} AS span, ttft_ms FROM metering_usageeventrow"
    " WHERE tenant = %s AND day = %s AND event_id >= %s AND event_id < %s"
    " ORDER BY event_id DESC LIMIT {most}) AS span_{number}"
)
_A_DAY: Final = dt.timedelta(days=1)


@dataclass(frozen=True, slots=True)
class RequestFilter:
    """Conditions on attempts; '' is no condition.

    Attributes:
        start, end: UTC days, both included, `MOST_DAYS` at most.
        adapter: an adapter's name, or `name@v2` for one version.
        model: as the client wrote it.
    """

    start: dt.date
    end: dt.date
    project: str = ""
    key: str = ""
    model: str = ""
    adapter: str = ""
    alias: str = ""
    status: str = ""
    error_code: str = ""

    @property
    def narrows(self) -> bool:
        """True if it has any condition besides the days."""
        return any(
            (self.project, self.key, self.model, self.adapter, self.alias, self.status, self.error_code)
        )


@dataclass(frozen=True, slots=True)
class RequestPage:
    """Attempts, newest first.

    Attributes:
        older: event id to continue before; '' on the last page.
    """

    rows: tuple[UsageEventRow, ...]
    older: str


def request_page(*, tenant: str, wanted: RequestFilter, before: str = "", size: int = 50) -> RequestPage:
    """Return the newest `size` attempts, or the newest before the event `before`.

    It takes two queries at most, by an index, so all pages cost the same. A filter searches the next
    `SEARCHED` attempts, so a page may be short or empty although more follow.

    Raises InvalidInputError: days in the wrong order or too many, an unknown status, or `before` is no id.
    """
    rows = _in_days(tenant, wanted)
    if before:
        rows = rows.filter(event_id__lt=_event_id(before))
    last = ""
    if wanted.narrows:
        oldest = rows.values_list("event_id", flat=True)[SEARCHED - 1 : SEARCHED].first()
        if oldest is not None:
            rows, last = rows.filter(event_id__gte=oldest), str(oldest)
    found = list(_narrowed(rows, tenant, wanted)[: size + 1])
    if len(found) > size:
        last = str(found[size - 1].event_id)
    return RequestPage(tuple(found[:size]), last)


def request_attempts(*, tenant: str, request_id: str, project: str | None = None) -> list[UsageEventRow]:
    """Return a request's attempts in order, by the id that its response carried.

    For a call that names an adapter for each prompt, these are the attempts of all prompts, in the prompts'
    order. The id of one prompt's request returns only its own attempts.

    Args:
        project: slug of the only project whose requests count; None for all.

    Raises NotFoundError: the tenant has no such request, or its events are no longer kept.
    """
    for days in _days_of(request_id) if "\0" not in request_id else ():
        rows = UsageEventRow.objects.filter(
            day__in=days, tenant=tenant, request_id__in=request_ids(request_id)
        )
        if project is not None:
            rows = rows.filter(project=project)
        if found := list(rows.order_by("attempt", "event_id")[:_MOST_ATTEMPTS]):
            # Stable: a prompt's attempts stay in order. A longer id has a larger index.
            return sorted(found, key=lambda row: (len(row.request_id), row.request_id))
    raise NotFoundError(
        f"there is no request {request_id[:64]!r}: it does not exist, or its retention has ended"
    )


def newest_ttft_ms(*, tenant: str, start: dt.date, end: dt.date, most: int) -> list[float]:
    """Return the first-token times of the newest `most` attempts of these UTC days, sorted.

    Attempts without a first token are left out.
    """
    rows = UsageEventRow.objects.filter(tenant=tenant, day__range=(start, end)).order_by("-event_id")
    found = rows.values_list("ttft_ms", flat=True)[:most]
    return sorted(ttft for ttft in found if ttft is not None)


def ttft_ms_of(
    *, tenant: str, spans: Sequence[tuple[dt.datetime, dt.datetime]], most: int
) -> list[list[float]]:
    """Return, for each span within one UTC day, the first-token times of its newest `most` attempts, sorted.

    Attempts without a first token are left out. One query, in which a span reads at most `most` index
    entries.
    """
    if not spans:
        return []
    day_of, id_of = DateField().get_db_prep_value, UUIDField().get_db_prep_value
    parts, values = [], list[Any]()
    for number, (begin, end) in enumerate(spans):
        # A shared template: the ORM would take half a millisecond to build each part.
        parts.append(_SPAN.format(number=number, most=most))
        values += [tenant, day_of(begin.date(), connection)]
        values += [id_of(first_id(at), connection) for at in (begin, end)]
    found: list[list[float]] = [[] for _ in spans]
    # Django's union() does not support LIMIT in its parts on SQLite.
    with connection.cursor() as cursor:
        cursor.execute(" UNION ALL ".join(parts), values)
        for number, ttft in cursor.fetchall():
            if ttft is not None:
                found[number].append(ttft)
    return [sorted(times) for times in found]


def first_id(at: dt.datetime) -> uuid.UUID:
    """The smallest UUIDv7 of that millisecond."""
    return uuid.UUID(int=int(at.timestamp() * 1000) << 80)


def _in_days(tenant: str, wanted: RequestFilter) -> QuerySet[UsageEventRow]:
    if not dt.timedelta(0) <= wanted.end - wanted.start < dt.timedelta(days=MOST_DAYS):
        raise InvalidInputError(
            f"end must be 0 to {MOST_DAYS - 1} days after start: split longer periods", field="end"
        )
    if wanted.status and wanted.status not in STATUSES:
        raise InvalidInputError(f"status must be one of {', '.join(STATUSES)}", field="status")
    rows = UsageEventRow.objects.filter(tenant=tenant, day__range=(wanted.start, wanted.end))
    return rows.order_by("-event_id")


def _narrowed(rows: QuerySet[UsageEventRow], tenant: str, wanted: RequestFilter) -> QuerySet[UsageEventRow]:
    named = {
        "project": wanted.project,
        "key_id": wanted.key,
        "requested_model": wanted.model,
        "alias": wanted.alias,
        "status": wanted.status,
        "error_code": wanted.error_code,
    }
    rows = rows.filter(**{name: value for name, value in named.items() if value})
    return rows.filter(adapter_is(tenant, wanted.adapter)) if wanted.adapter else rows


def adapter_is(tenant: str, name: str) -> Q:
    """Return a filter on events and sums of the tenant's adapter `name`, or of a version by `name@v2`."""
    adapter, _, version = name.partition("@")
    return Q(adapter__startswith=f"t_{tenant}.a_{adapter}." + (f"{version}." if version else ""))


def _event_id(text: str) -> uuid.UUID:
    try:
        return uuid.UUID(text)
    except ValueError as error:
        raise InvalidInputError(
            "invalid cursor: omit it to start from the first page", field="cursor"
        ) from error


def _days_of(request_id: str) -> Iterator[list[dt.date]]:
    """Yield days on which the request may be found, in groups.

    A gateway's id contains its day, and a retry may end on the day after. Ids of usage from outside contain
    none, so all kept days follow, newest first.
    """
    with suppress(ValueError, OverflowError):
        known = uuid.UUID(call_id(request_id))
        if known.version == 7:
            day = dt.date(1970, 1, 1) + dt.timedelta(milliseconds=known.int >> 80)
            yield [day - _A_DAY, day, day + _A_DAY]
    tomorrow = dt.datetime.now(dt.UTC).date() + _A_DAY
    count = (tomorrow - keep_from()).days + 1
    kept = [tomorrow - dt.timedelta(days=ago) for ago in range(count)]
    for first in range(0, count, MOST_DAYS):
        yield kept[first : first + MOST_DAYS]
