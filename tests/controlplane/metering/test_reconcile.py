"""Sums that are not what their events say are found, whatever way they went wrong."""

from __future__ import annotations

import datetime as dt
import logging
from io import StringIO
from types import SimpleNamespace

import pytest
import redis
from django.core.management import CommandError, call_command
from django.db.models import F

from controlplane.metering.event_rows import StreamEntry
from controlplane.metering.models import AdapterHour, UsageEventRow, UsageHour, UsageRollup
from controlplane.metering.reconcile import sums_drift
from controlplane.metering.services import usage_ingest
from controlplane.metering.tasks import nightly
from controlplane.platform.task_signs import USAGE_CHECK, checks
from tests.controlplane.known import known
from tests.controlplane.metering.test_ingest import stream_id, usage_event

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def names(db: None) -> None:
    known("tiny-base")


def _yesterday() -> dt.date:
    return dt.datetime.now(dt.UTC).date() - dt.timedelta(days=1)


@pytest.fixture
def day() -> dt.date:
    day = _yesterday()
    events = [usage_event(f"r{number}", day=day, key_id=f"k{number % 2}") for number in range(6)]
    entries = [StreamEntry(stream_id(n), event.to_json().encode()) for n, event in enumerate(events)]
    assert usage_ingest(entries=entries) == 6
    return day


def test_what_agrees_is_silent(day: dt.date) -> None:
    assert sums_drift(day=day) == []
    assert nightly() == 0
    out = StringIO()
    call_command("check_usage", start=day, end=day, stdout=out)
    assert "1 days agree" in out.getvalue()


def test_a_sum_changed_by_hand_is_named_with_both_values(day: dt.date) -> None:
    UsageRollup.objects.filter(key_id="k1").update(prompt_tokens=F("prompt_tokens") + 1)
    (drift,) = sums_drift(day=day)
    assert (drift.table, drift.dimensions["key_id"]) == ("UsageRollup", "k1")
    assert drift.held is not None
    assert drift.expected is not None
    assert drift.held["prompt_tokens"] == drift.expected["prompt_tokens"] + 1
    with pytest.raises(CommandError, match="1 totals differ"):
        call_command("check_usage", start=day, end=day, stdout=StringIO())


def test_health_is_told_what_the_nightly_check_found(
    day: dt.date, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = redis.Redis.from_url(redis_url)
    assert checks(server) == {}
    monkeypatch.setattr(
        "controlplane.platform.task_signs.time", SimpleNamespace(time=lambda: 1_700_000_000.0)
    )
    nightly()
    sign = checks(server)[USAGE_CHECK]
    assert (sign.start, sign.end, sign.differing) == (str(day - dt.timedelta(days=2)), str(day), 0)
    assert sign.at == 1_700_000_000.0
    UsageRollup.objects.filter(key_id="k1").update(prompt_tokens=F("prompt_tokens") + 1)
    assert nightly() == 1
    sign = checks(server)[USAGE_CHECK]
    assert sign.differing == 1
    assert "'key_id': 'k1'" in sign.examples[0]
    UsageRollup.objects.filter(key_id="k1").update(prompt_tokens=F("prompt_tokens") - 1)
    call_command("check_usage", start=day, end=day, stdout=StringIO())
    assert checks(server)[USAGE_CHECK].differing == 1, "one of fewer days says nothing of the others"
    call_command("check_usage", start=day - dt.timedelta(days=2), end=day, stdout=StringIO())
    assert checks(server)[USAGE_CHECK].differing == 0


def test_missing_rows_are_found_on_either_side(day: dt.date) -> None:
    UsageHour.objects.filter(key_id="k0").delete()
    (drift,) = sums_drift(day=day)
    assert (drift.table, drift.held) == ("UsageHour", None)
    UsageEventRow.objects.all().delete()
    assert {(drift.table, drift.expected is None) for drift in sums_drift(day=day)} == {
        ("UsageRollup", True),
        ("UsageHour", True),
    }
    assert nightly() == 3


def test_adapters_hours_are_checked_from_their_second_day_on(caplog: pytest.LogCaptureFixture) -> None:
    days = [_yesterday() - dt.timedelta(days=back) for back in (2, 1, 0)]
    names = [f"t_acme.a_{name}.v1.0123abcd" for name in ("one", "two")]
    events = [
        usage_event(f"{adapter}{day}", day=day, adapter=adapter, endpoint=adapter[:12])
        for day in days
        for adapter in names
    ]
    entries = [StreamEntry(stream_id(n), event.to_json().encode()) for n, event in enumerate(events)]
    assert usage_ingest(entries=entries) == 6
    # As after an upgrade in the course of the second day.
    AdapterHour.objects.filter(day=days[0]).delete()
    AdapterHour.objects.filter(day=days[1], adapter="one").delete()
    with caplog.at_level(logging.ERROR, logger="controlplane.metering.reconcile"):
        assert nightly() == 0
        assert caplog.messages == []
        AdapterHour.objects.filter(day=days[2], adapter="one").delete()
        assert nightly() == 0
    (message,) = caplog.messages
    assert "hourly totals of an adapter differ" in message
    assert str(days[2]) in message or repr(days[2]) in message
    # Without any sums there is nothing to compare.
    AdapterHour.objects.all().delete()
    caplog.clear()
    assert nightly() == 0
    assert caplog.messages == []
