"""Booked usage of all tenants by day, which the operator's overview shows: its sums, and its query plan."""

from __future__ import annotations

import datetime as dt

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from controlplane.billing.ledger.journal import Draft, entries_write
from controlplane.billing.models import Account, EntryKind, LedgerHead, UsagePosting
from controlplane.billing.selectors import booked_by_day

pytestmark = pytest.mark.django_db

FIRST = dt.date(2026, 1, 1)
DAYS = 300


def book(tenant: str) -> None:
    """Book four usages of each of DAYS days, of 1, 2, 3 and 4 nano-units."""
    head = LedgerHead.objects.create(tenant=tenant)
    drafts = []
    for number in range(DAYS * 4):
        day, nano = FIRST + dt.timedelta(number // 4), number % 4 + 1
        usage = UsagePosting(
            tenant=tenant,
            day=day,
            month=FIRST,
            item="input",
            quantity=1,
            unit_nano=1,
            per=1,
            amount_nano=nano,
        )
        drafts.append(Draft(day, EntryKind.USAGE, Account.UNBILLED, Account.REVENUE, nano, usage=usage))
    entries_write(head=head, drafts=drafts, currency="USD")


def test_the_sums_of_all_tenants_are_read_from_an_index_alone() -> None:
    for tenant in ("acme", "umbrella"):
        book(tenant)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    start, end = FIRST + dt.timedelta(10), FIRST + dt.timedelta(11)
    with CaptureQueriesContext(connection) as queries:
        found = booked_by_day(start=start, end=end)
    assert sorted(found) == [(day, tenant, 10) for day in (start, end) for tenant in ("acme", "umbrella")]
    (query,) = queries.captured_queries
    explain = "EXPLAIN" if connection.vendor == "postgresql" else "EXPLAIN QUERY PLAN"
    with connection.cursor() as cursor:
        cursor.execute(f"{explain} {query['sql']}")
        plan = str(cursor.fetchall())
    assert "usage_posting_spend" in plan, plan
