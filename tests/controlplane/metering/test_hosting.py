"""Time of hosting: every second of every span is in the sums by hour once."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.db import transaction
from django.db.models import Sum
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.adapters.models import Adapter, AdapterVersion
from controlplane.catalog.models import BaseModel
from controlplane.deployments.models import Copy, Deployment, Placement, Target
from controlplane.errors import InvalidInputError
from controlplane.metering.hosting import hours, observation
from controlplane.metering.hosting.hours import HOUR, hours_of, spans_count, spans_drop_old
from controlplane.metering.hosting.observation import LONGEST_GAP, hosting_observe, spans_update
from controlplane.metering.hosting.present import Hosted, hosted_now
from controlplane.metering.hosting.report import hosting_report
from controlplane.metering.models import HostingHour, HostingObservation, HostingSpan
from controlplane.tenants.models import Tenant

LEAP = int(dt.datetime(2028, 2, 29, tzinfo=dt.UTC).timestamp())
NOON = LEAP + 12 * HOUR
TABLES = (HostingSpan, HostingHour, HostingObservation)


def timestamp(text: str) -> int:
    return int(dt.datetime.fromisoformat(text).timestamp())


def summed() -> dict[str, int]:
    rows = HostingHour.objects.values("adapter").annotate(total=Sum("quantity_seconds"))
    return {row["adapter"]: int(row["total"]) for row in rows}


@pytest.mark.parametrize(
    ("start", "end", "seconds"),
    [
        # New York sets its clocks on and back: a day of 23 and one of 25 hours there.
        ("2028-03-12T00:00:00-05:00", "2028-03-13T00:00:00-04:00", 23 * HOUR),
        ("2028-11-05T00:00:00-04:00", "2028-11-06T00:00:00-05:00", 25 * HOUR),
        ("2028-02-28T23:59:59+00:00", "2028-03-01T00:00:01+00:00", 24 * HOUR + 2),
        ("2027-02-28T23:00:00+00:00", "2027-03-01T01:00:00+00:00", 2 * HOUR),
        ("2027-12-31T23:59:59+00:00", "2028-01-01T00:00:00+00:00", 1),
    ],
)
def test_hours_are_utcs_whatever_clocks_do(start: str, end: str, seconds: int) -> None:
    found = list(hours_of(timestamp(start), timestamp(end)))
    assert sum(part for _, _, part in found) == seconds
    assert all(0 < part <= HOUR for _, _, part in found)
    assert len({(day, hour) for day, hour, _ in found}) == len(found)
    for day, hour, part in found:
        begun = int(dt.datetime.combine(day, dt.time(hour), dt.UTC).timestamp())
        assert begun <= timestamp(end), (day, hour, part)


ACTS = st.lists(
    st.tuples(
        st.sampled_from(["come", "go", "grow", "count", "die"]), st.integers(0, 3), st.integers(0, 9000)
    ),
    max_size=25,
)


class Death(Exception):
    """The process, between the sums and its commit."""


def counted_and_died(now: int) -> None:
    with transaction.atomic():
        spans_count(now=now)
        raise Death


@pytest.mark.django_db(transaction=True)
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(acts=ACTS)
@pytest.mark.costly("a property over many programs")
def test_sums_are_the_lengths_of_spans_whatever_comes_goes_or_dies(acts: list[tuple[str, int, int]]) -> None:
    """Compare with a model that keeps every second; readings are closer together than the longest gap."""
    for table in TABLES:
        table.objects.all().delete()
    there: dict[int, int] = {}
    expected: dict[str, int] = {}
    now = NOON

    def stay(until: int) -> None:
        nonlocal now
        while now < until:
            step = min(until - now, LONGEST_GAP)
            for number, quantity in there.items():
                expected[f"a{number}"] = expected.get(f"a{number}", 0) + quantity * step
            now += step
            spans_update(there=hosted(), now=now)

    def hosted() -> list[Hosted]:
        return [Hosted("adapter", f"s{n}", q, tenant="acme", adapter=f"a{n}") for n, q in there.items()]

    spans_update(there=[], now=now)
    for act, number, wait in acts:
        stay(now + wait)
        match act:
            case "come":
                there.setdefault(number, 1)
            case "go":
                there.pop(number, None)
            case "grow":
                there[number] = there.get(number, 0) + 1
            case "count":
                spans_count(now=now)
            case "die":
                with pytest.raises(Death):
                    counted_and_died(now)
        spans_update(there=hosted(), now=now)
    there.clear()
    spans_update(there=[], now=now)
    spans_count(now=now)
    spans_count(now=now)
    assert summed() == {name: total for name, total in expected.items() if total}
    assert not HostingSpan.objects.filter(ended_at=None).exists()


@pytest.mark.django_db(transaction=True)
def test_a_batch_that_dies_between_sums_and_marks_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    spans_update(there=[Hosted("copy", "c", 3)], now=NOON)
    spans_update(there=[], now=NOON + 200)
    add = hours._add

    def dying(sums: Any) -> None:
        add(sums)
        raise Death

    with monkeypatch.context() as patched:
        patched.setattr(hours, "_add", dying)
        with pytest.raises(Death):
            spans_count(now=NOON + 200)
    assert not HostingHour.objects.exists()
    assert spans_count(now=NOON + 200) == 1
    assert HostingHour.objects.get().quantity_seconds == 600


@pytest.mark.django_db
def test_open_spans_count_by_whole_hours() -> None:
    spans_update(there=[Hosted("gpu", "g", 8)], now=NOON + 60)
    spans_count(now=NOON + HOUR - 1)
    assert not HostingHour.objects.exists()
    spans_count(now=NOON + 2 * HOUR + 5)
    assert list(HostingHour.objects.order_by("hour").values_list("hour", "quantity_seconds")) == [
        (12, 8 * (HOUR - 60)),
        (13, 8 * HOUR),
    ]


@pytest.mark.django_db
def test_what_went_while_nobody_looked_counts_up_to_the_last_look() -> None:
    spans_update(there=[Hosted("copy", "c", 1)], now=NOON)
    spans_update(there=[Hosted("copy", "c", 1)], now=NOON + 100)
    spans_update(there=[], now=NOON + 100 + LONGEST_GAP + 1)
    assert HostingSpan.objects.get().ended_at == NOON + 100


@pytest.mark.django_db
def test_what_changed_while_nobody_looked_counts_up_to_the_last_look_and_from_this_one() -> None:
    spans_update(there=[Hosted("copy", "c", 1)], now=NOON)
    spans_update(there=[Hosted("copy", "c", 8)], now=NOON + LONGEST_GAP + 1)
    assert list(HostingSpan.objects.order_by("pk").values_list("quantity", "started_at", "ended_at")) == [
        (1, NOON, NOON),
        (8, NOON + LONGEST_GAP + 1, None),
    ]


@pytest.mark.django_db
def test_old_spans_go_once_they_are_counted_and_their_sums_stay() -> None:
    spans_update(there=[Hosted("copy", "c", 1), Hosted("copy", "d", 1)], now=NOON)
    spans_update(there=[Hosted("copy", "d", 1)], now=NOON + 100)
    assert spans_drop_old(before=NOON + 200) == 0
    spans_count(now=NOON + 100)
    assert spans_drop_old(before=NOON + 100) == 0
    assert spans_drop_old(before=NOON + 200) == 1
    assert HostingSpan.objects.get().subject == "d"
    assert HostingHour.objects.get().quantity_seconds == 100


@pytest.mark.django_db
def test_what_came_while_nobody_looked_counts_from_when_it_came() -> None:
    spans_update(there=[], now=NOON)
    spans_update(there=[Hosted("copy", "c", 1, since=NOON + 40)], now=NOON + 5000)
    assert HostingSpan.objects.get().started_at == NOON + 40
    assert observation.spans_update(there=[Hosted("copy", "c", 1, since=NOON + 40)], now=NOON + 5001) == 0


@pytest.mark.django_db
def test_a_clock_that_steps_back_ends_nothing_before_it_began() -> None:
    spans_update(there=[Hosted("copy", "c", 1)], now=NOON)
    spans_update(there=[], now=NOON - 9000)
    span = HostingSpan.objects.get()
    assert (span.started_at, span.ended_at) == (NOON, NOON)


@pytest.fixture
def fleet(tenant: Tenant, base_model: BaseModel) -> Deployment:
    """Two bases' deployments on one endpoint, a copy of each kind, an adapter placed."""
    target = Target.objects.create(name="aws", kind="sagemaker", region="eu-central-1")
    made = [
        Deployment.objects.create(
            name=f"d{number}",
            target=target,
            base_model=base_model,
            hosting="components",
            endpoint="shared",
            min_copies=2,
            instance_type="ml.g5.12xlarge",
            min_instances=number,
            compute={"accelerators": 2},
            resources=[{"kind": "endpoint", "name": "shared", "state": "ready", "reason": ""}],
        )
        for number in (1, 3)
    ]
    Copy.objects.create(id="c1", base_model=base_model, kind="sagemaker", component="x", deployment=made[0])
    Copy.objects.create(id="c2", base_model=base_model, kind="worker", url="http://w")
    adapter = Adapter.objects.create(tenant=tenant, name="bot", base_model=base_model)
    version = AdapterVersion.objects.create(
        adapter=adapter, number=1, status="ready", sha256="ab" * 32, uri="file:///a/", rank=2, size_bytes=7
    )
    Placement.objects.create(
        deployment=made[0],
        engine_name=version.engine_name,
        uri="file:///a/",
        sha256="ab" * 32,
        rank=2,
        status="ready",
    )
    return made[0]


def test_what_is_there_is_read_from_deployments_placements_and_versions(fleet: Deployment) -> None:
    found = {(item.kind, item.tier, item.deployment): item.quantity for item in hosted_now()}
    assert found == {
        ("copy", "", "d1"): 2,
        ("copy", "", ""): 1,
        ("gpu", "", "d1"): 4,
        ("gpu", "", "d3"): 4,
        ("instance", "", "shared"): 3,
        ("adapter", "placed", "d1"): 1,
        ("adapter", "stored", ""): 1,
        ("storage", "", ""): 7,
    }


def test_the_report_is_in_hours_and_each_tenant_sees_its_own(fleet: Deployment) -> None:
    hosting_observe(now=NOON)
    hosting_observe(now=NOON + 2 * HOUR)
    day = dt.date(2028, 2, 29)
    rows = hosting_report(tenant=None, start=day, end=day, group_by=["deployment"])
    amounts = {(row.kind, row.group["deployment"]): (row.amount, row.unit) for row in rows}
    assert amounts["gpu", "d1"] == ("8.000000", "GPU-hours")
    assert amounts["instance", "shared"] == ("6.000000", "instance-hours")
    assert amounts["storage", ""] == ("0.000000", "GB-hours")
    own = hosting_report(tenant="acme", start=day, end=day, group_by=["tier", "hour"])
    assert {(row.kind, row.group["tier"], row.group["hour"], row.quantity_seconds) for row in own} == {
        ("adapter", tier, f"2028-02-29T{hour}:00Z", HOUR)
        for tier in ("placed", "stored")
        for hour in (12, 13)
    } | {("storage", "", f"2028-02-29T{hour}:00Z", 7 * HOUR) for hour in (12, 13)}
    assert hosting_report(tenant="globex", start=day, end=day) == []
    Deployment.objects.update(resources=[])
    hosting_observe(now=NOON + 3 * HOUR)
    assert not HostingSpan.objects.filter(kind__in=["gpu", "instance"], ended_at=None).exists()


@pytest.mark.parametrize(("days", "groups"), [(92, ["day"]), (31, ["hour"]), (-1, ["day"]), (0, ["colour"])])
def test_a_range_or_group_that_cannot_be_is_refused(days: int, groups: list[str]) -> None:
    start = dt.date(2028, 2, 29)
    with pytest.raises(InvalidInputError):
        hosting_report(tenant=None, start=start, end=start + dt.timedelta(days=days), group_by=groups)
