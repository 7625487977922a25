"""Balances of a checkpoint equal those of the whole journal."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.billing.ledger import checkpoints
from controlplane.billing.ledger.checkpoints import balances, checkpoints_advance, checkpoints_check, sums
from controlplane.billing.ledger.credits import credit_grant, entry_reverse, payment_record
from controlplane.billing.ledger.selectors import balance
from controlplane.billing.models import JournalEntry, LedgerCheckpoint
from controlplane.tenants.models import Tenant

pytestmark = pytest.mark.django_db


@settings(max_examples=30, suppress_health_check=list(HealthCheck))
@given(st.lists(st.sampled_from(["pay", "grant", "reverse", "advance"]), max_size=12))
@pytest.mark.costly("a property over many orders")
def test_whenever_they_are_brought_forward(tenant: Tenant, steps: list[str]) -> None:
    with patch.object(checkpoints, "BEHIND", 2):
        for number, step in enumerate(steps, start=1):
            match step:
                case "pay":
                    payment_record(tenant=tenant, amount_nano=number * 10**9 + 1)
                case "grant":
                    credit_grant(tenant=tenant, amount_nano=number)
                case "reverse":
                    if entry := JournalEntry.objects.filter(kind="grant", reversal=None).first():
                        entry_reverse(entry=entry, memo="x")
                case "advance":
                    checkpoints_advance()
            assert balances(tenant="acme") == sums(tenant="acme")
    assert checkpoints_check() == 0


def test_one_that_is_wrong_is_told_of_and_mended(tenant: Tenant, caplog: pytest.LogCaptureFixture) -> None:
    payment_record(tenant=tenant, amount_nano=1 << 60)
    with patch.object(checkpoints, "BEHIND", 1):
        assert checkpoints_advance() == 1
        assert checkpoints_advance() == 0
    assert balance(tenant="acme").prepaid == 1 << 60, "to the unit"
    kept = LedgerCheckpoint.objects.get()
    kept.sums["prepaid"] += 1
    kept.save()
    assert checkpoints_check() == 1
    assert "balances of acme through entry 1" in caplog.text
    assert balances(tenant="acme") == sums(tenant="acme")


def test_only_entries_after_it_are_read(tenant: Tenant) -> None:
    for _ in range(3):
        payment_record(tenant=tenant, amount_nano=5)
    with patch.object(checkpoints, "BEHIND", 3):
        checkpoints_advance()
    payment_record(tenant=tenant, amount_nano=7)
    with CaptureQueriesContext(connection) as queries:
        assert balances(tenant="acme")["prepaid"] == -22  # type: ignore[index]
    (read,) = (query["sql"] for query in queries if "billing_journalentry" in query["sql"])
    assert '"number" > 3' in read
