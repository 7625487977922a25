"""REST of metrics and alarms: what it returns, refuses and hides from other tenants."""

from __future__ import annotations

import datetime as dt
import itertools
from typing import Any

import pytest
from django.test import Client

from controlplane.monitoring.evaluation import alarms_evaluate
from controlplane.monitoring.models import Alarm
from controlplane.monitoring.services import LAG
from controlplane.tenants.models import Tenant, User
from tests.controlplane.monitoring.traffic import attempt, ingest

pytestmark = pytest.mark.django_db
RULE: dict[str, Any] = {
    "name": "failures",
    "adapter": "support-bot",
    "metric": "error_rate",
    "comparison": "GreaterThanOrEqualToThreshold",
    "threshold": 5,
    "period_seconds": 60,
}


@pytest.fixture
def api(client: Client, owner: User) -> Client:
    client.force_login(owner)
    return client


def now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


def post(client: Client, path: str, body: dict[str, Any]) -> Any:
    return client.post(f"/api/v1/{path}", body, content_type="application/json")


@pytest.mark.parametrize("span", ["hour", "day", "week", "month"])
def test_an_adapter_s_metrics_are_one_response(api: Client, span: str) -> None:
    at = now() - dt.timedelta(seconds=90)
    ingest(attempt(at, ttft_ms=200.0, itl_ms=25.0, endpoint=copy) for copy in ("a", "a", "b"))
    ingest([attempt(at, status="error", error_code="upstream_timeout", ttft_ms=None, itl_ms=None)])
    body = api.get(f"/api/v1/adapters/support-bot/metrics?range={span}").json()
    assert (body["adapter"], body["range"]) == ("support-bot", span)
    total = body["total"]
    assert (total["requests"], total["failed"], total["error_rate"]) == (4, 1, 25.0)
    assert total["errors"] == {"upstream_timeout": 1}
    assert total["ttft_ms"] == pytest.approx({"p50": 200, "p95": 200, "p99": 200}, rel=0.02)
    assert total["itl_ms"]["p95"] == pytest.approx(25, rel=0.02)
    assert {row["copy"]: row["requests"] for row in body["by_copy"]} == {"a": 2, "b": 1, "copy-1": 1}
    assert sum(slot["requests"] for slot in body["over_time"]) == 4
    seconds = [dt.datetime.fromisoformat(slot["start"]).timestamp() for slot in body["over_time"]]
    steps = {later - earlier for earlier, later in itertools.pairwise(seconds)}
    assert steps == {body["interval_seconds"]}


def test_a_tenant_s_adapters_are_a_list_and_staff_read_any_tenant_s(api: Client, staff: User) -> None:
    ingest([attempt(now() - dt.timedelta(minutes=2)), attempt(now(), tenant="globex", duration_ms=6e5)])
    (row,) = api.get("/api/v1/adapter-metrics").json()["results"]
    assert (row["adapter"], row["requests"]) == ("support-bot", 1)
    api.force_login(staff)
    (row,) = api.get("/api/v1/tenants/globex/adapter-metrics?range=hour").json()["results"]
    assert (row["adapter"], row["requests"]) == ("support-bot", 0), "it has not ended yet"
    assert api.get("/api/v1/tenants/globex/adapters/support-bot/metrics").json()["total"]["requests"] == 1


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("adapters/support-bot/metrics?range=year", "range"),
        ("adapter-metrics?range=year", "range"),
        ("adapter-metrics?rnage=day", "rnage"),
    ],
)
def test_an_unknown_range_is_refused(api: Client, path: str, field: str) -> None:
    answer = api.get(f"/api/v1/{path}")
    assert answer.status_code == 400
    assert [error["attr"] for error in answer.json()["errors"]] == [field]


def test_an_alarm_is_created_read_changed_and_deleted(api: Client) -> None:
    answer = post(api, "alarms", RULE)
    assert answer.status_code == 201, answer.content
    made = answer.json()
    assert (made["state"], made["adapter"], made["notify_on"]) == (
        "INSUFFICIENT_DATA",
        "support-bot",
        ["OK", "ALARM"],
    )
    path = f"/api/v1/alarms/{made['id']}"
    changed = api.patch(path, {"threshold": 7.5, "adapter": None}, content_type="application/json")
    assert changed.status_code == 200, changed.content
    assert (changed.json()["threshold"], changed.json()["adapter"]) == (7.5, None)
    assert changed.json()["comparison"] == "GreaterThanOrEqualToThreshold", "as before"
    assert [row["id"] for row in api.get("/api/v1/alarms?metric=error_rate").json()["results"]] == [
        made["id"]
    ]
    assert api.get("/api/v1/alarms?state=ALARM").json()["results"] == []
    stale = api.patch(path, {"threshold": 1}, content_type="application/json", headers={"If-Match": '"x"'})
    assert stale.status_code == 412
    assert api.delete(path).status_code == 204
    assert api.get(path).status_code == 404


def test_the_history_shows_each_change_with_its_values(api: Client, acme: Tenant) -> None:
    made = post(api, "alarms", RULE).json()
    end = now().replace(second=0, microsecond=0) - dt.timedelta(minutes=5)
    at = end - dt.timedelta(seconds=30)
    ingest(attempt(at, status="error" if number == 0 else "ok") for number in range(20))
    Alarm.objects.update(next_at=end)
    alarms_evaluate(now=end + LAG)
    (change,) = api.get(f"/api/v1/alarms/{made['id']}/history").json()["results"]
    # One of twenty failed: exactly the threshold, which the comparison includes.
    assert (change["before"], change["after"], change["values"]) == ("INSUFFICIENT_DATA", "ALARM", [5.0])
    assert api.get(f"/api/v1/alarms/{made['id']}").json()["state"] == "ALARM"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"metric": "cpu"}, "metric"),
        ({"period_seconds": 7}, "period_seconds"),
        ({"evaluation_periods": 361}, "evaluation_periods"),
        ({"datapoints_to_alarm": 2}, "datapoints_to_alarm"),
        ({"treshold": 3}, "treshold"),
        ({"deployment": "d"}, "deployment"),
    ],
)
def test_a_refusal_names_the_field(api: Client, changes: dict[str, Any], field: str) -> None:
    answer = post(api, "alarms", RULE | changes)
    assert answer.status_code == 400
    assert [error["attr"] for error in answer.json()["errors"]] == [field]


def test_an_alarm_on_another_tenant_s_adapter_or_by_a_viewer_is_refused(
    api: Client, viewer: User, globex: Tenant
) -> None:
    globex.adapters.update(name="theirs")
    assert post(api, "alarms", RULE | {"adapter": "theirs"}).status_code == 404
    made = post(api, "alarms", RULE).json()
    api.force_login(viewer)
    assert api.get(f"/api/v1/alarms/{made['id']}").status_code == 200
    assert post(api, "alarms", RULE | {"name": "x"}).status_code == 403


def test_the_operator_s_alarms_are_apart_from_tenants(api: Client, staff: User, owner: User) -> None:
    api.force_login(staff)
    made = post(api, "fleet/alarms", RULE | {"adapter": "acme/support-bot"})
    assert made.status_code == 201, made.content
    assert made.json()["adapter"] == "acme/support-bot"
    assert len(api.get("/api/v1/fleet/alarms").json()["results"]) == 1
    api.force_login(owner)
    assert api.get("/api/v1/alarms").json()["results"] == []
    assert api.get(f"/api/v1/alarms/{made.json()['id']}").status_code == 404
