"""Dead letters of external usage events: their content, their owner, and the retry."""

from __future__ import annotations

import datetime as dt
import json

import pytest
from django.db import connection
from django.utils import timezone

from controlplane.catalog.models import BaseModel
from controlplane.metering import replay
from controlplane.metering.cloud_events import intake
from controlplane.metering.models import DeadUsageEvent
from controlplane.metering.replay import dead_usage_replay, dead_usage_replay_waiting
from controlplane.metering.services import keep_from
from controlplane.metering.sources import source_create
from controlplane.tenants.models import Tenant
from controlplane.tenants.services import tenant_create
from tests.controlplane.metering.test_cloud_events import (
    _counted,
    _event,
    _key,
    _post,
    _ready_today,
    _statuses,
)

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def key(tenant: Tenant, base_model: BaseModel) -> str:
    return _key(tenant)


@pytest.fixture(autouse=True)
def partitions(db: None) -> None:
    _ready_today()


def test_what_is_older_than_what_is_kept_is_dead(key: str) -> None:
    old = dt.datetime.combine(keep_from() - dt.timedelta(days=1), dt.time(12), dt.UTC)
    answer = _post(key, [_event(time=old.isoformat())])
    assert _statuses(answer) == [("1", "dead_letter")]
    assert "GRAFTWORK_USAGE_KEEP_DAYS" in DeadUsageEvent.objects.get().reason


def test_dead_letters_of_a_key_are_bounded(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "MOST_DEAD", 2)
    events = [_event(str(number), data={"model": "none"}) for number in range(3)]
    assert [status for _, status in _statuses(_post(key, events))] == [
        "dead_letter",
        "dead_letter",
        "refused",
    ]
    answer = _post(key, [_event("9", data={"model": "none"})])
    assert "fix those first" in answer.json()["events"][0]["reason"]
    assert DeadUsageEvent.objects.count() == 2


def test_a_dead_letter_that_is_sent_again_needs_no_room(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "MOST_DEAD", 2)
    first, other = _event("1", data={"model": "none"}), _event("2", data={"model": "none"})
    for sent in ([first, first, other], [other, first]):
        assert {status for _, status in _statuses(_post(key, sent))} == {"dead_letter"}
    assert DeadUsageEvent.objects.count() == 2


def test_each_tenants_dead_letter_is_kept_as_it_was_sent_last(key: str) -> None:
    source_create(tenant="acme", service_account="fleet", tenants=None)
    for tenant, tokens in (("one", 10), ("two", 10), ("two", 20)):
        event = _event(data={"tenant": tenant, "prompt_tokens": tokens})
        assert _statuses(_post(key, [event])) == [("1", "dead_letter")]
    letters = {letter.tenant: letter for letter in DeadUsageEvent.objects.all()}
    assert set(letters) == {"one", "two"}
    assert json.loads(letters["two"].payload)["event"]["data"]["prompt_tokens"] == 20
    for slug in ("one", "two"):
        tenant_create(slug=slug, name=slug)
    assert dead_usage_replay() == (2, 0)
    assert _counted() == (2, 30)


def test_a_letter_that_cannot_be_read_holds_up_no_other(key: str) -> None:
    for name in ("1", "2"):
        _post(key, [_event(name, data={"model": "next-base"})])
    DeadUsageEvent.objects.filter(pk=DeadUsageEvent.objects.earliest("pk").pk).update(payload="{")
    BaseModel.objects.filter(name="tiny-base").update(name="next-base")
    assert dead_usage_replay() == (1, 1)
    assert _counted() == (1, 10)


def test_a_letter_that_another_replay_took_is_left_to_it(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _post(key, [_event(data={"model": "next-base"})])
    BaseModel.objects.filter(name="tiny-base").update(name="next-base")
    # As it lay in the other one's hands.
    (letter,) = DeadUsageEvent.objects.all()
    assert dead_usage_replay() == (1, 0)
    monkeypatch.setattr(replay, "event_replay", lambda **_: pytest.fail("taken twice"))
    assert replay._replayed([letter]) == 0


def test_waiting_letters_are_taken_in_some_at_a_time(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("1", "2", "3"):
        _post(key, [_event(name, data={"model": "next-base"})])
    DeadUsageEvent.objects.update(reason=intake.NO_PLACE)
    monkeypatch.setattr(replay, "A_TIME", 2)
    # Whatever becomes of them, the next round goes on past them.
    counted, more = dead_usage_replay_waiting()
    assert (counted, DeadUsageEvent.objects.filter(reason=intake.NO_PLACE).count()) == (0, 1)
    assert more is not None
    assert dead_usage_replay_waiting(after=more) == (0, None)
    assert not DeadUsageEvent.objects.filter(reason=intake.NO_PLACE).exists()


@pytest.mark.skipif(connection.vendor != "postgresql", reason="only PostgreSQL has partitions")
def test_a_day_without_a_place_waits_for_the_task_that_makes_one(key: str) -> None:
    moment = timezone.now() - dt.timedelta(days=20)
    answer = _post(key, [_event(time=moment.isoformat())])
    assert answer.json()["events"][0]["reason"] == intake.NO_PLACE
    assert _counted() == (0, 0)
    assert dead_usage_replay_waiting() == (1, None)
    assert not DeadUsageEvent.objects.exists()
    assert _statuses(_post(key, [_event(time=moment.isoformat())])) == [("1", "duplicate")]
    assert _counted() == (1, 10)
