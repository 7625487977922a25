"""Usage from outside: each event counts once, for whom its key may report, or its sender learns why not."""

from __future__ import annotations

import datetime as dt
import json
import threading
from typing import Any
from uuid import RFC_4122

import pytest
from django.db import connection, transaction
from django.db.models import Sum
from django.test import Client
from django.utils import timezone

from controlplane.adapters.models import Adapter, AdapterVersion
from controlplane.catalog.models import BaseModel
from controlplane.metering.cloud_events import intake
from controlplane.metering.cloud_events.envelope import CloudEvent
from controlplane.metering.cloud_events.names import Reporter
from controlplane.metering.cloud_events.parsers import MOST_EVENTS
from controlplane.metering.models import DeadUsageEvent, UsageEventRow, UsageHour, UsageRollup
from controlplane.metering.partitions import partitions_ensure
from controlplane.metering.replay import dead_usage_replay
from controlplane.metering.sources import source_create
from controlplane.tenants.models import ApiKey, Tenant
from controlplane.tenants.roles import Role
from controlplane.tenants.services import (
    api_key_create,
    project_create,
    service_account_create,
    tenant_create,
)

pytestmark = pytest.mark.django_db(transaction=True)
STRUCTURED, BATCH = "application/cloudevents+json", "application/cloudevents-batch+json"
PATH = "/api/v1/usage/events"


@pytest.fixture
def key(tenant: Tenant, base_model: BaseModel) -> str:
    return _key(tenant)


def _key(tenant: Tenant, account: str = "fleet") -> str:
    project = tenant.projects.get(slug="default")
    owner = service_account_create(project=project, name=account, role=Role.VIEWER)
    return api_key_create(tenant=tenant, name="vllm", scopes=["usage:write"], service_account=owner)[1]


def _event(id: str = "1", /, **changes: Any) -> dict[str, Any]:
    """An event of a minute ago; changes of attributes, and `data` of its data."""
    moment = timezone.now() - dt.timedelta(minutes=1)
    data = {"model": "tiny-base", "prompt_tokens": 10, "cached_tokens": 4, "completion_tokens": 3}
    attributes: dict[str, Any] = {
        "specversion": "1.0",
        "id": id,
        "source": "vllm/rack-1",
        "type": "graftwork.usage.v1",
        "time": moment.isoformat(),
    }
    data |= changes.pop("data", {})
    return attributes | {"data": data} | changes


def _post(key: str, body: Any, content_type: str = BATCH, **headers: str) -> Any:
    # A session of its own, as the web process has: its table for incoming rows is its role's.
    connection.close()
    sent = body if isinstance(body, str | bytes) else json.dumps(body)
    return Client().post(
        PATH, sent, content_type=content_type, headers={"Authorization": f"Bearer {key}", **headers}
    )


def _statuses(answer: Any) -> list[tuple[str, str]]:
    assert answer.status_code == 200, answer.content
    return [(event["id"], event["status"]) for event in answer.json()["events"]]


def _counted() -> tuple[int, int]:
    """Events, and their prompt tokens by all three tables, which agree."""
    sums = {
        table: table.objects.aggregate(Sum("prompt_tokens"))["prompt_tokens__sum"] or 0
        for table in (UsageEventRow, UsageRollup, UsageHour)
    }
    assert len(set(sums.values())) == 1, sums
    return UsageEventRow.objects.count(), sums[UsageEventRow]


def _ready_today() -> None:
    """A day has a place from the first event that an ingester takes."""
    partitions_ensure({timezone.now().date() - dt.timedelta(days=back) for back in (0, 1, 2)})


@pytest.fixture(autouse=True)
def partitions(db: None) -> None:
    _ready_today()


def test_an_event_counts_with_all_that_it_says(key: str) -> None:
    said = {"estimated": True, "backend": "vllm", "endpoint": "rack-1/gpu-3", "ttft_ms": 12.5}
    assert _statuses(_post(key, _event(data=said), STRUCTURED)) == [("1", "accepted")]
    row = UsageEventRow.objects.get()
    assert (row.tenant, row.project, row.base_model, row.adapter) == ("acme", "default", "tiny-base", "")
    assert (row.estimated, row.backend, row.endpoint, row.ttft_ms) == (True, "vllm", "rack-1/gpu-3", 12.5)
    assert (row.gateway_id, row.key_id) == ("vllm/rack-1", key.split("_")[1])
    assert UsageRollup.objects.get().estimated_requests == 1
    assert _counted() == (1, 10)


def test_the_three_modes_say_the_same(key: str) -> None:
    event = _event()
    headers = {f"ce-{name}": str(event[name]) for name in ("specversion", "id", "source", "type", "time")}
    assert _statuses(_post(key, event["data"], "application/json", **headers)) == [("1", "accepted")]
    assert _statuses(_post(key, event, f"{STRUCTURED}; charset=utf-8")) == [("1", "duplicate")]
    assert _statuses(_post(key, [event])) == [("1", "duplicate")]
    assert _counted() == (1, 10)


def test_an_id_counts_once_a_source_and_tenant(key: str, other_tenant: Tenant) -> None:
    first, again, other = _event("1"), _event("1"), _event("1", source="vllm/rack-2")
    assert [status for _, status in _statuses(_post(key, [first, again, other]))] == [
        "accepted",
        "duplicate",
        "accepted",
    ]
    assert _statuses(_post(_key(other_tenant), [first])) == [("1", "accepted")]
    assert _counted() == (3, 30)


def test_a_projects_ids_are_in_no_other_projects_way(key: str, tenant: Tenant) -> None:
    project = project_create(tenant=tenant, slug="chat", name="Chat")
    owner = service_account_create(project=project, name="chat-fleet", role=Role.VIEWER)
    _, chat = api_key_create(tenant=tenant, name="chat", scopes=["usage:write"], service_account=owner)
    assert _statuses(_post(key, [_event()])) == [("1", "accepted")]
    assert _statuses(_post(chat, [_event()])) == [("1", "accepted")]
    assert _counted() == (2, 20)


def test_an_event_sent_again_with_a_time_past_midnight_counts_once(key: str) -> None:
    today = timezone.now().replace(hour=0, minute=0, second=0, microsecond=0)
    before, after = today - dt.timedelta(seconds=2), today
    assert _statuses(_post(key, [_event(time=before.isoformat())])) == [("1", "accepted")]
    assert _statuses(_post(key, [_event(time=after.isoformat())])) == [("1", "duplicate")]
    assert _counted() == (1, 10)


def _around_midnight() -> tuple[dict[str, Any], dict[str, Any]]:
    today = timezone.now().replace(hour=0, minute=0, second=0, microsecond=0)
    return _event(time=(today - dt.timedelta(seconds=1)).isoformat()), _event(time=today.isoformat())


def test_an_event_with_times_on_both_sides_of_midnight_in_one_batch_counts_once(key: str) -> None:
    assert [status for _, status in _statuses(_post(key, [*_around_midnight()] * 2))] == [
        "accepted",
        "duplicate",
        "duplicate",
        "duplicate",
    ]
    assert _counted() == (1, 10)


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer at a time")
def test_an_event_with_times_on_both_sides_of_midnight_sent_twice_at_a_time_counts_once(key: str) -> None:
    before, after = map(_parsed, _around_midnight())
    reporter, told = _reporter(key), []

    def take() -> None:
        told.extend(intake.events_take(reporter=reporter, events=[after]))
        connection.close()

    second = threading.Thread(target=take)
    with transaction.atomic():
        (first,) = intake.events_take(reporter=reporter, events=[before])
        second.start()
        second.join(2.0)
        assert not told
    second.join(30.0)
    assert (first.status, [outcome.status for outcome in told]) == ("accepted", ["duplicate"])
    assert _counted() == (1, 10)


@pytest.mark.parametrize(
    ("time", "day", "hour"),
    [
        ("2028-03-01T12:30:00+13:00", dt.date(2028, 2, 29), 23),
        ("2028-02-29T23:59:59.999999-00:30", dt.date(2028, 3, 1), 0),
        # New York's clocks are set back: the hour after one comes twice.
        ("2027-11-07T01:30:00-04:00", dt.date(2027, 11, 7), 5),
        ("2027-11-07T01:30:00-05:00", dt.date(2027, 11, 7), 6),
        ("2028-01-31T23:00:00-01:00", dt.date(2028, 2, 1), 0),
    ],
)
def test_an_event_counts_on_its_utc_hour_whatever_its_zone(
    key: str, time: str, day: dt.date, hour: int
) -> None:
    now = dt.datetime(2028, 3, 2, tzinfo=dt.UTC)
    (taken,) = intake.events_take(reporter=_reporter(key), events=[_parsed(_event(time=time))], now=now)
    assert taken.status == "accepted", taken
    assert UsageHour.objects.values_list("day", "hour").get() == (day, hour)


def _parsed(event: dict[str, Any]) -> Any:
    return CloudEvent.from_json(event)


def _reporter(key: str) -> Any:
    return Reporter.of_key(ApiKey.objects.get(pk=key.split("_")[1]))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"specversion": "0.3"}, "specversion must be '1.0'"),
        ({"id": ""}, "id must be a string"),
        ({"id": 7}, "id must be a string"),
        ({"source": None}, "source must be a string"),
        ({"source": "a b"}, "cannot contain spaces"),
        ({"type": "com.example.other"}, "type must be 'graftwork.usage.v1'"),
        ({"time": "2026-11-01T12:00:00"}, "time zone"),
        ({"time": "2026-02-30T12:00:00Z"}, "RFC 3339"),
        ({"time": "0001-01-01T00:00:00+14:00"}, "within the years"),
        ({"time": "9000-01-01T00:00:00Z"}, "s in the future: check the sender's clock"),
        ({"datacontenttype": "text/xml"}, "datacontenttype"),
        ({"data_base64": "e30="}, "data_base64"),
        ({"data": {"prompt_tokens": -1}}, ">= 0"),
        ({"data": {"completion_tokens": 10_000_001}}, "<= 10000000"),
        ({"data": {"completion_tokens": 10**30}}, "data:"),
        ({"data": {"prompt_tokens": 1.5}}, "Expected `int`"),
        ({"data": {"prompt_tokens": True}}, "Expected `int`"),
        ({"data": {"cached_tokens": 11}}, "must not exceed"),
        ({"data": {"tokens": 1}}, "unknown field `tokens`"),
        ({"data": {"status": "fine"}}, "Invalid enum value"),
        ({"data": {"endpoint": "a\n"}}, "line breaks"),
        ({"data": {"tenant": "globex"}}, "cannot report for tenant 'globex'"),
        ({"data": {"project": "other"}}, "only for project 'default'"),
    ],
)
def test_a_wrong_event_is_refused_with_the_reason_and_stops_no_other(
    key: str, changes: dict[str, Any], reason: str
) -> None:
    answer = _post(key, [_event("bad", **changes), _event("good")])
    (refused, good) = answer.json()["events"]
    assert (refused["status"], good["status"]) == ("refused", "accepted")
    assert reason in refused["reason"]
    alone = _post(key, _event("bad", **changes), STRUCTURED)
    assert alone.status_code == 400
    assert reason in alone.json()["errors"][0]["detail"]
    assert _counted() == (1, 10)
    assert not DeadUsageEvent.objects.exists()


@pytest.mark.parametrize(
    ("body", "content_type", "status"),
    [
        ("{", BATCH, 400),
        ("{}", BATCH, 400),
        ("[" * 100_000, BATCH, 400),
        (json.dumps([_event("\ud800")]), BATCH, 400),
        (b"\xff", STRUCTURED, 400),
        (json.dumps([1] * (MOST_EVENTS + 1)), BATCH, 400),
        ("[]", STRUCTURED, 400),
        ("{}", "application/json", 400),
        ("<a/>", "text/xml", 415),
        ("[]", BATCH, 200),
    ],
)
def test_a_body_that_is_no_event_or_batch_is_refused(
    key: str, body: str | bytes, content_type: str, status: int
) -> None:
    assert _post(key, body, content_type).status_code == status
    assert _counted() == (0, 0)


def test_a_batch_has_a_thousand_events_at_most(key: str) -> None:
    assert MOST_EVENTS == 1000
    answer = _post(key, json.dumps([{}] * 1000), BATCH)
    assert [event["status"] for event in answer.json()["events"]] == ["refused"] * 1000


@pytest.mark.usefixtures("base_model")
def test_an_event_is_kept_under_a_uuid_of_its_time(key: str) -> None:
    _post(key, [_event(str(number)) for number in range(20)])
    for row in UsageEventRow.objects.all():
        assert (row.event_id.version, row.event_id.variant) == (7, RFC_4122)
        assert row.event_id.int >> 80 == row.started_at


@pytest.mark.usefixtures("base_model")
def test_only_a_service_accounts_key_with_the_scope_reports(tenant: Tenant) -> None:
    for scopes in (["inference"], ["manage"], ["usage"]):
        _, text = api_key_create(tenant=tenant, name="other", scopes=scopes)
        assert _post(text, [_event()]).status_code == 403, scopes
    key = _key(tenant)
    for path in ("me", "keys", "usage"):
        headers = {"Authorization": f"Bearer {key}"}
        assert Client().get(f"/api/v1/{path}", headers=headers).status_code == 403
    assert _counted() == (0, 0)


def test_a_source_reports_for_the_tenants_that_it_is_allowed(
    key: str, tenant: Tenant, other_tenant: Tenant
) -> None:
    source_create(tenant="acme", service_account="fleet", tenants=["globex", "later"])
    project_create(tenant=other_tenant, slug="chat", name="Chat")
    events = [
        _event("1", data={"tenant": "globex", "project": "chat"}),
        _event("2", data={"tenant": "globex"}),
        _event("3", data={"tenant": "later"}),
        _event("4"),
        _event("5", data={"tenant": "globex", "project": "none"}),
    ]
    assert [status for _, status in _statuses(_post(key, events))] == [
        "accepted",
        "accepted",
        "dead_letter",
        "refused",
        "dead_letter",
    ]
    assert set(UsageEventRow.objects.values_list("tenant", "project")) == {
        ("globex", "chat"),
        ("globex", "default"),
    }
    tenant_create(slug="later", name="Later")
    assert dead_usage_replay() == (1, 1)
    assert DeadUsageEvent.objects.get().reason == "tenant globex has no project 'none'"
    assert _counted() == (3, 30)


def test_models_are_known_by_every_name_that_clients_use(key: str, tenant: Tenant) -> None:
    base = BaseModel.objects.get(name="tiny-base")
    adapter = Adapter.objects.create(tenant=tenant, name="bot", base_model=base)
    for number in (1, 2):
        AdapterVersion.objects.create(
            adapter=adapter, number=number, status="ready", sha256=f"{number}" * 64, uri="file:///a/", rank=2
        )
    adapter.aliases.create(name="prod", version=adapter.versions.get(number=1))
    first, second = (f"t_acme.a_bot.v{number}.{str(number) * 12}" for number in (1, 2))
    meant = {"bot": (second, ""), "bot@prod": (first, "prod"), "bot@v1": (first, ""), first: (first, "")}
    meant["tiny-base"] = ("", "")
    for model, (engine_name, alias) in meant.items():
        assert _statuses(_post(key, [_event(model, data={"model": model})])) == [(model, "accepted")]
        row = UsageEventRow.objects.get(requested_model=model)
        assert (row.base_model, row.adapter, row.alias) == ("tiny-base", engine_name, alias), model
    for model in ("none", "bot@none", "bot@v3", "tiny-base@prod", f"t_globex.a_bot.v1.{'1' * 12}"):
        answer = _post(key, [_event(model, data={"model": model})])
        assert _statuses(answer) == [(model, "dead_letter")]
        assert "tenant acme has no model" in answer.json()["events"][0]["reason"]


def test_what_names_no_model_yet_counts_once_after_a_replay(key: str) -> None:
    for _ in range(2):
        assert _statuses(_post(key, [_event(data={"model": "next-base"})])) == [("1", "dead_letter")]
    assert DeadUsageEvent.objects.count() == 1
    assert dead_usage_replay() == (0, 1)
    BaseModel.objects.filter(name="tiny-base").update(name="next-base")
    assert dead_usage_replay() == (1, 0)
    assert _statuses(_post(key, [_event(data={"model": "next-base"})])) == [("1", "duplicate")]
    assert _counted() == (1, 10)
