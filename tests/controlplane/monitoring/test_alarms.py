"""Alarms: evaluated on real usage events, announced once for each change of state, and kept within limits."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.core import mail
from django.utils import timezone

from controlplane.adapters.lifecycle import adapter_delete
from controlplane.adapters.selectors import adapter_get
from controlplane.catalog.models import BaseModel
from controlplane.deployments.copies.services import (
    KEEP_REMOVED,
    copy_register,
    copy_remove,
    removed_copies_forget,
)
from controlplane.deployments.models import Deployment, RemovedCopy, Target
from controlplane.errors import ConflictError, InvalidInputError, NotFoundError
from controlplane.monitoring import evaluation, services
from controlplane.monitoring.alarm_values import alarm_values
from controlplane.monitoring.evaluation import KEEP_CHANGES, alarms_evaluate, changes_forget, last_end
from controlplane.monitoring.models import Alarm, AlarmChange
from controlplane.monitoring.notices import alarm_notice_send, alarm_notices_due
from controlplane.monitoring.services import LAG, MOST_ALARMS, alarm_create, alarm_delete, alarm_update
from controlplane.platform.audit.models import AuditRecord
from controlplane.platform.mail_server import MailServer
from controlplane.tenants.models import Tenant, User
from controlplane.webhooks.models import WebhookEvent
from controlplane.webhooks.services import endpoint_create
from tests.controlplane.monitoring.traffic import attempt, ingest

pytestmark = pytest.mark.django_db
MINUTE = dt.timedelta(minutes=1)
START = dt.datetime.now(dt.UTC).replace(second=0, microsecond=0) - 20 * MINUTE
RULE: dict[str, Any] = {
    "name": "slow answers",
    "adapter": "support-bot",
    "metric": "ttft_p95_ms",
    "comparison": "GreaterThanThreshold",
    "threshold": 500.0,
    "period_seconds": 60,
    "evaluation_periods": 1,
    "datapoints_to_alarm": 1,
}


def made(tenant: Tenant | None, **changes: Any) -> Alarm:
    alarm = alarm_create(tenant=tenant, **{**RULE, **changes})
    Alarm.objects.filter(pk=alarm.pk).update(next_at=START - MINUTE)
    return alarm


def minute(number: int, ttft_ms: float | None = 100.0, count: int = 20, **values: Any) -> None:
    """Attempts that end within the minute of this number."""
    at = START + number * MINUTE
    ingest(attempt(at + dt.timedelta(seconds=2), ttft_ms=ttft_ms, **values) for _ in range(count))


def run(number: int) -> int:
    """Evaluate as soon as the minute of this number is complete."""
    return alarms_evaluate(now=START + (number + 1) * MINUTE + LAG)


def states(alarm: Alarm) -> list[str]:
    return [change.after for change in AlarmChange.objects.filter(alarm=alarm).order_by("pk")]


def test_a_slow_minute_is_announced_once_and_so_is_its_end(acme: Tenant, owner: User) -> None:
    endpoint_create(tenant=acme, url="https://example.com/hook", events=["alarm.state_changed"])
    alarm = made(acme)
    for number, ttft in enumerate([100.0, 900.0, 900.0, 900.0, 100.0, 100.0]):
        minute(number, ttft)
    assert [run(number) for number in range(6)] == [1, 1, 0, 0, 1, 0]
    assert states(alarm) == ["OK", "ALARM", "OK"]
    sent = [event.data for event in WebhookEvent.objects.order_by("created_at")]
    assert [(data["before"], data["state"]) for data in sent] == [
        ("INSUFFICIENT_DATA", "OK"),
        ("OK", "ALARM"),
        ("ALARM", "OK"),
    ]
    assert sent[1]["adapter"] == "support-bot"
    assert sent[1]["name"] == "slow answers"
    with MailServer() as server:
        for change_id in alarm_notices_due():
            assert alarm_notice_send(change_id=change_id, server=server)
            assert not alarm_notice_send(change_id=change_id, server=server), "once"
    assert [message.to for message in mail.outbox] == [["owner@acme.example"]] * 3
    assert mail.outbox[1].subject == "In alarm: alarm slow answers on Graftwork"
    assert "1 of the last 1 periods are > 500 ms" in str(mail.outbox[1].body)
    assert f"/t/acme/alarms/{alarm.pk}/" in str(mail.outbox[1].body)


def test_a_run_between_two_periods_evaluates_nothing(acme: Tenant) -> None:
    alarm = made(acme)
    minute(0, 900.0)
    assert run(0) == 1
    alarm.refresh_from_db()
    assert alarm.evaluated_to == START + MINUTE
    assert alarm.next_at == START + 2 * MINUTE + LAG
    assert alarms_evaluate(now=START + MINUTE + LAG + dt.timedelta(seconds=59)) == 0
    alarm.refresh_from_db()
    assert alarm.evaluated_to == START + MINUTE


def test_a_request_counts_in_the_period_in_which_it_ended(acme: Tenant) -> None:
    alarm = made(acme, threshold=50_000.0)
    # It started in minute 0, and its first token came after 90 seconds, in minute 1.
    minute(0, 90_000.0, count=1, duration_ms=95_000.0)
    run(0)
    assert states(alarm) == []
    run(1)
    assert states(alarm) == ["ALARM"]


@pytest.mark.parametrize(
    ("metric", "traffic", "threshold", "expected"),
    [
        ("error_rate", {"status": "error", "error_code": "upstream_timeout"}, 99.9, "ALARM"),
        ("error_rate", {"status": "error", "error_code": "upstream_timeout"}, 100.0, "OK"),
        ("error_rate", {"status": "client_error", "error_code": "bad"}, 0.0, "OK"),
        ("itl_p95_ms", {"itl_ms": 80.0}, 75.0, "ALARM"),
        ("itl_p95_ms", {"itl_ms": 70.0}, 75.0, "OK"),
        ("requests_per_minute", {}, 19.0, "ALARM"),
        ("requests_per_minute", {}, 20.0, "OK"),
        ("no_requests", {}, 0.0, "OK"),
    ],
)
def test_each_metric_is_compared_with_its_threshold(
    acme: Tenant, metric: str, traffic: dict[str, Any], threshold: float, expected: str
) -> None:
    alarm = made(acme, metric=metric, threshold=threshold)
    minute(0, **traffic)
    run(0)
    alarm.refresh_from_db()
    assert alarm.state == expected


def test_silence_is_an_alarm_only_for_no_requests(acme: Tenant) -> None:
    silent = made(acme, name="silent", metric="no_requests", threshold=77.0, comparison="LessThanThreshold")
    slow = made(acme)
    assert (silent.threshold, silent.comparison) == (0.0, "LessThanOrEqualToThreshold")
    run(0)
    assert states(silent) == ["ALARM"]
    assert states(slow) == []
    minute(1)
    run(1)
    assert states(silent) == ["ALARM", "OK"]


def test_requests_per_minute_are_those_of_a_longer_period_by_its_minutes(acme: Tenant) -> None:
    alarm = made(acme, metric="requests_per_minute", threshold=4.0, period_seconds=300)
    end = last_end(START + 10 * MINUTE, 300)
    ingest(attempt(end - dt.timedelta(seconds=100)) for _ in range(25))
    alarms_evaluate(now=end + LAG)
    assert AlarmChange.objects.get(alarm=alarm).values == [5.0]


def test_m_of_n_periods_make_the_alarm(acme: Tenant) -> None:
    alarm = made(acme, evaluation_periods=3, datapoints_to_alarm=2)
    for number, ttft in enumerate([100.0, 100.0, 900.0, 100.0, 900.0, 100.0, 100.0, 100.0]):
        minute(number, ttft)
    for number in range(2, 8):
        run(number)
    assert states(alarm) == ["OK", "ALARM", "OK"]
    assert AlarmChange.objects.filter(after="ALARM").get().values == pytest.approx([900, 100, 900], rel=0.02)


def test_an_alarm_of_a_tenant_sees_neither_other_tenants_nor_other_adapters(acme: Tenant) -> None:
    one, everything = made(acme), made(acme, name="all", adapter=None)
    minute(0, 900.0, tenant="globex")
    run(0)
    assert states(one) == states(everything) == []
    minute(1, 900.0, adapter="other")
    run(1)
    assert states(one) == []
    assert states(everything) == ["ALARM"]


def test_only_chosen_states_are_announced(acme: Tenant, owner: User) -> None:
    endpoint_create(tenant=acme, url="https://example.com/hook", events=["alarm.state_changed"])
    alarm = made(acme, notify_on=["ALARM"], email=False)
    minute(0)
    minute(1, 900.0)
    run(0)
    run(1)
    assert states(alarm) == ["OK", "ALARM"]
    assert [event.data["state"] for event in WebhookEvent.objects.all()] == ["ALARM"]
    assert alarm_notices_due() == []


def test_two_runs_at_once_announce_a_change_once(acme: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    alarm = made(acme)
    minute(0, 900.0)
    read, changed = alarm_values, list[int]()

    def beside_another(*args: Any, **values: Any) -> Any:
        changed.append(run(0))
        return read(*args, **values)

    monkeypatch.setattr(evaluation, "alarm_values", beside_another)
    assert run(0) == 1
    assert changed == [0], "the second run leaves to the first what it evaluates"
    assert states(alarm) == ["ALARM"]


def test_a_failing_group_does_not_stop_the_others(acme: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    broken, works = made(acme, period_seconds=300), made(acme, name="other")
    minute(0, 900.0)
    read = alarm_values

    def fails(watched: Any, *args: Any, **values: Any) -> Any:
        if watched.period == 300:
            raise RuntimeError("no answer")
        return read(watched, *args, **values)

    monkeypatch.setattr(evaluation, "alarm_values", fails)
    assert run(0) == 1
    assert (states(broken), states(works)) == ([], ["ALARM"])
    monkeypatch.setattr(evaluation, "alarm_values", read)
    alarms_evaluate(now=START + 7 * MINUTE)
    broken.refresh_from_db()
    assert broken.evaluated_to is not None, "the next run retries"


def test_a_disabled_alarm_rests_and_a_changed_rule_is_evaluated_at_once(acme: Tenant) -> None:
    alarm = made(acme)
    alarm_update(alarm=alarm, enabled=False)
    minute(0, 900.0)
    assert run(0) == 0
    alarm = alarm_update(alarm=alarm, enabled=True, threshold=1000.0)
    assert alarm.next_at is not None
    assert alarm.next_at <= timezone.now()


def test_the_operator_watches_a_deployment_and_any_tenant_s_adapter(
    acme: Tenant, owner: User, staff: User
) -> None:
    target = Target.objects.create(name="here", kind="openai_http", urls=["http://127.0.0.1:1"])
    base = BaseModel.objects.get(name="tiny-base")
    deployment = Deployment.objects.create(name="d1", target=target, base_model=base, hosting="on_demand")
    copy = copy_register(base_model=base, kind="openai_http", url="http://127.0.0.1:1")
    type(copy).objects.filter(pk=copy.pk).update(deployment=deployment)
    endpoint_create(tenant=acme, url="https://example.com/hook", events=["alarm.state_changed"])
    whole = made(None, adapter=None, deployment="d1", webhook_tenant="acme")
    one = made(None, name="one", adapter="globex/support-bot")
    # A base model's requests count for a deployment too.
    minute(0, 900.0, endpoint=copy.pk, adapter="", tenant="globex")
    minute(0, 100.0, tenant="globex")
    run(0)
    assert (states(whole), states(one)) == (["ALARM"], ["OK"])
    assert [event.data["name"] for event in WebhookEvent.objects.all()] == ["slow answers"]
    with MailServer() as server:
        for change_id in alarm_notices_due():
            alarm_notice_send(change_id=change_id, server=server)
    assert {address for message in mail.outbox for address in message.to} == {"staff@example.com"}
    assert AuditRecord.objects.filter(tenant="", action="alarm.create").count() == 2


def test_failures_of_a_removed_copy_count_in_its_deployments_alarm_for_a_day(acme: Tenant) -> None:
    target = Target.objects.create(name="here", kind="openai_http", urls=["http://127.0.0.1:1"])
    base = BaseModel.objects.get(name="tiny-base")
    deployment, other = (
        Deployment.objects.create(name=name, target=target, base_model=base, hosting="on_demand")
        for name in ("d1", "d2")
    )
    stays, crashes, elsewhere, by_hand = (
        copy_register(base_model=base, kind="openai_http", url=f"http://127.0.0.1:{port}", deployment=owner)
        for port, owner in enumerate((deployment, deployment, other, None), 1)
    )
    alarm = made(None, adapter=None, deployment="d1", metric="error_rate", threshold=10.0)
    minute(0, count=15, endpoint=stays.pk)
    failed: dict[str, Any] = {
        "ttft_ms": None,
        "itl_ms": None,
        "status": "error",
        "error_code": "upstream_unreachable",
    }
    minute(0, count=5, endpoint=crashes.pk, **failed)
    for copy in (elsewhere, by_hand):
        minute(0, count=80, endpoint=copy.pk, **failed)
    for copy in (crashes, elsewhere):
        copy_remove(copy=copy, by_deployment=True)
    copy_remove(copy=by_hand)
    run(0)
    assert AlarmChange.objects.get(alarm=alarm).values == [25.0]
    assert states(alarm) == ["ALARM"]
    assert set(RemovedCopy.objects.values_list("pk", flat=True)) == {crashes.pk, elsewhere.pk}
    assert removed_copies_forget() == 0
    assert removed_copies_forget(now=timezone.now() + KEEP_REMOVED + MINUTE) == 2


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": " "}, "name"),
        ({"metric": "cpu"}, "metric"),
        ({"comparison": ">"}, "comparison"),
        ({"threshold": float("nan")}, "threshold"),
        ({"threshold": -1.0}, "threshold"),
        ({"metric": "error_rate", "threshold": 101.0}, "threshold"),
        ({"period_seconds": 61}, "period_seconds"),
        ({"evaluation_periods": 0}, "evaluation_periods"),
        ({"period_seconds": 3600, "evaluation_periods": 7}, "evaluation_periods"),
        ({"evaluation_periods": 2, "datapoints_to_alarm": 3}, "datapoints_to_alarm"),
        ({"treat_missing_data": "guess"}, "treat_missing_data"),
        ({"notify_on": ["FIRE"]}, "notify_on"),
        ({"deployment": "d1"}, "deployment"),
        ({"webhook_tenant": "globex"}, "webhook_tenant"),
    ],
)
def test_a_rule_out_of_bounds_is_refused(acme: Tenant, changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        made(acme, **changes)
    assert caught.value.field == field


@pytest.mark.parametrize("adapter", [None, "support-bot", "/x"])
def test_the_operator_names_what_to_watch(acme: Tenant, adapter: str | None) -> None:
    with pytest.raises((InvalidInputError, NotFoundError)):
        made(None, adapter=adapter)


def test_another_metric_needs_a_rule_of_its_own(acme: Tenant) -> None:
    """No requests is compared with 0: an error rate of at most 0 would be an alarm while all is well."""
    alarm = made(acme, metric="no_requests")
    with pytest.raises(InvalidInputError) as caught:
        alarm_update(alarm=alarm, metric="error_rate", comparison="GreaterThanThreshold")
    assert caught.value.field == "threshold"


def test_an_alarm_of_a_deleted_adapter_rests(acme: Tenant) -> None:
    alarm = made(acme, metric="no_requests", treat_missing_data="breaching")
    assert alarm.adapter is not None
    adapter_delete(adapter=alarm.adapter)
    assert run(0) == 0
    assert not alarm_update(alarm=alarm, adapter=alarm.adapter.name, enabled=False).enabled


def test_names_and_numbers_of_alarms_are_limited(acme: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MOST_ALARMS == 50
    monkeypatch.setattr(services, "MOST_ALARMS", 2)
    made(acme)
    with pytest.raises(ConflictError, match="already exists"):
        made(acme)
    made(acme, name="second")
    with pytest.raises(ConflictError, match="at most 2 alarms"):
        made(acme, name="third")
    made(None, adapter="acme/support-bot")
    with pytest.raises(ConflictError, match="already exists"):
        made(None, adapter="acme/support-bot")


def test_changes_are_recorded_without_the_state(acme: Tenant) -> None:
    alarm = made(acme)
    minute(0, 900.0)
    run(0)
    alarm_update(alarm=alarm, threshold=600.0)
    alarm_delete(alarm=alarm)
    records = AuditRecord.objects.filter(tenant="acme", target_type="alarm").order_by("pk")
    assert [record.action for record in records] == ["alarm.create", "alarm.update", "alarm.delete"]
    assert records[1].before == {"threshold": 500.0}
    assert records[1].after == {"threshold": 600.0}


def test_old_changes_are_deleted_and_alarms_go_with_their_adapter(acme: Tenant) -> None:
    alarm = made(acme)
    minute(0, 900.0)
    run(0)
    assert changes_forget() == 0
    assert changes_forget(now=timezone.now() + KEEP_CHANGES + MINUTE) == 1
    adapter_get(tenant=acme, name="support-bot").delete()
    assert not Alarm.objects.filter(pk=alarm.pk).exists()
