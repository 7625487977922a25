"""Rollouts by usage as it was ingested: onward, back, by hand, and two deciders at once."""

from __future__ import annotations

import dataclasses
import itertools
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from contracts.usage_event import UsageStatus
from controlplane.adapters.aliases import alias_move, alias_remove, alias_split
from controlplane.adapters.lifecycle import adapter_delete, adapter_restore, version_delete
from controlplane.adapters.models import Adapter, AliasChange
from controlplane.adapters.selectors import alias_get, version_get
from controlplane.canaries.decisions import rollout_decide, rollouts_decide
from controlplane.canaries.models import Rollout, RolloutDecision
from controlplane.canaries.services import (
    rollout_abort,
    rollout_pause,
    rollout_promote,
    rollout_resume,
    rollout_start,
)
from controlplane.canaries.tasks import decide
from controlplane.catalog.models import BaseModel
from controlplane.errors import ConflictError, InvalidInputError, NotFoundError
from controlplane.metering.event_rows import StreamEntry
from controlplane.metering.services import usage_ingest
from controlplane.platform.audit.models import AuditRecord
from controlplane.tenants.models import Tenant
from controlplane.tenants.services import api_key_create
from tests.controlplane.adapters.test_races import at_once
from tests.controlplane.adapters.test_splits import ready, route
from tests.controlplane.metering.test_ingest import usage_event

pytestmark = pytest.mark.django_db(transaction=True)
_ids = itertools.count()


@pytest.fixture
def adapter(tenant: Tenant, base_model: BaseModel) -> Adapter:
    adapter = ready(tenant, base_model)
    alias_move(adapter=adapter, name="prod", number=1)
    return adapter


def use(
    adapter: Adapter,
    number: int,
    count: int,
    *,
    errors: int = 0,
    ttft_ms: float = 100.0,
    whole: bool = False,
    failed: UsageStatus = "error",
) -> None:
    """Usage of the alias on one arm, ingested as gateways' events are; `whole` ones have no first token."""
    engine = version_get(adapter=adapter, number=number).engine_name
    event = usage_event(
        day=timezone.now().date(),
        requested_model="pirate@prod",
        alias="prod",
        arm=f"v{number}",
        adapter=engine,
        started_at=int(timezone.now().timestamp() * 1000),
        ttft_ms=ttft_ms,
    )
    events = [
        dataclasses.replace(
            event,
            request_id=f"r{next(_ids)}",
            status=failed if index < errors else "ok",
            ttft_ms=None if whole or index < errors else ttft_ms,
            duration_ms=ttft_ms if whole else event.duration_ms,
        )
        for index in range(count)
    ]
    stream_id = f"{event.started_at}-0"
    usage_ingest(entries=[StreamEntry(stream_id, item.to_json().encode()) for item in events])


def figures(row: Rollout | RolloutDecision) -> dict[str, Any]:
    assert row.figures is not None
    return dict(row.figures)


def hold_over(rollout: Rollout) -> None:
    """Move the step's start back by its hold time; usage came after the start."""
    began = timezone.now() - timedelta(seconds=rollout.hold_seconds)
    Rollout.objects.filter(pk=rollout.pk).update(step_started_at=began)
    rollout.refresh_from_db()


def split() -> tuple[tuple[int, int], ...] | None:
    return route().splits.get("prod")


def test_good_figures_lead_by_steps_to_promotion(adapter: Adapter) -> None:
    rollout = rollout_start(adapter=adapter, alias="prod", version=2, steps=[5, 25, 100])
    assert split() == ((1, 95), (2, 5))
    use(adapter, 1, 300, errors=3)
    use(adapter, 2, 99)
    hold_over(rollout)
    assert rollouts_decide() == 0
    rollout.refresh_from_db()
    assert "the canary has had 99 of 100 requests" in rollout.reason
    stable = figures(rollout)["stable"]
    assert (stable["version"], stable["requests"], stable["errors"]) == (1, 300, 3)
    use(adapter, 2, 101)
    assert rollouts_decide() == 1
    assert split() == ((1, 75), (2, 25))
    # Requests of the previous step no longer count.
    assert rollouts_decide() == 0
    use(adapter, 1, 300)
    use(adapter, 2, 300)
    assert rollouts_decide() == 0
    rollout.refresh_from_db()
    assert "this step holds" in rollout.reason
    hold_over(rollout)
    decide()
    rollout.refresh_from_db()
    assert (rollout.status, rollout.ended_at is not None) == ("promoted", True)
    assert (route().aliases, split()) == ({"prod": 2}, None)
    decisions = list(rollout.decisions.all())
    kinds = [(item.kind, item.percent) for item in decisions]
    assert kinds == [("start", 5), ("advance", 25), ("promote", 100)]
    assert figures(decisions[1])["canary"]["requests"] == 200
    assert figures(decisions[1])["error_increase"]["at_most"] < 0.02
    assert rollouts_decide() == 0
    reasons = list(AliasChange.objects.order_by("pk").values_list("reason", flat=True))
    assert reasons[1] == "canary of version 2"
    assert reasons[3].startswith("canary promoted: ")
    assert AuditRecord.objects.filter(action="rollout.promote").count() == 1


def test_clients_own_errors_do_not_lead_back(adapter: Adapter) -> None:
    rollout = rollout_start(adapter=adapter, alias="prod", version=2)
    use(adapter, 1, 300)
    use(adapter, 2, 300, errors=150, failed="client_error")
    rollouts_decide()
    rollout.refresh_from_db()
    assert rollout.status == "running"
    canary = figures(rollout)["canary"]
    assert (canary["requests"], canary["errors"]) == (150, 0)


@pytest.mark.parametrize(("errors", "ttft_ms", "said"), [(30, 100.0, "failed"), (0, 400.0, "took longer")])
def test_bad_figures_lead_back_at_once(adapter: Adapter, errors: int, ttft_ms: float, said: str) -> None:
    rollout = rollout_start(adapter=adapter, alias="prod", version=2)
    use(adapter, 1, 200)
    use(adapter, 2, 60, errors=errors, ttft_ms=ttft_ms)
    assert rollouts_decide() == 1
    rollout.refresh_from_db()
    assert (rollout.status, said in rollout.reason) == ("rolled_back", True)
    assert (route().aliases, split()) == ({"prod": 1}, None)
    last = rollout.decisions.last()
    assert last is not None
    assert (last.kind, last.percent) == ("roll_back", 0)
    assert figures(last)["canary"]["errors"] == errors


def test_answers_sent_as_a_whole_are_judged_by_their_duration(adapter: Adapter) -> None:
    slow = rollout_start(adapter=adapter, alias="prod", version=2)
    use(adapter, 1, 200, whole=True)
    use(adapter, 2, 60, ttft_ms=400.0, whole=True)
    assert rollouts_decide() == 1
    slow.refresh_from_db()
    assert (slow.status, "took longer" in slow.reason) == ("rolled_back", True)


def test_usage_of_other_aliases_versions_and_times_counts_nowhere(adapter: Adapter) -> None:
    use(adapter, 2, 50, errors=50)
    rollout = rollout_start(adapter=adapter, alias="prod", version=2)
    use(adapter, 3, 50, errors=50)
    use(adapter, 1, 200)
    alias_split(adapter=adapter, name="other", arms=[(1, 50), (2, 50)])
    assert rollouts_decide() == 0
    rollout.refresh_from_db()
    assert figures(rollout)["canary"]["requests"] == 0


def test_of_deciders_at_once_one_decides(adapter: Adapter) -> None:
    rollout = rollout_start(adapter=adapter, alias="prod", version=2, steps=[5, 25, 50])
    use(adapter, 1, 300)
    use(adapter, 2, 300)
    hold_over(rollout)
    results = at_once([partial(rollout_decide, rollout=rollout)] * 4)
    assert sorted(results, key=str) == [None, None, None, "advance"]
    rollout.refresh_from_db()
    assert (rollout.step, rollout.decisions.count()) == (1, 2)
    assert AliasChange.objects.count() == 3


def test_a_decision_meets_a_hand(adapter: Adapter) -> None:
    """Abort and promotion at once: only one happens, and the alias follows it."""
    rollout = rollout_start(adapter=adapter, alias="prod", version=2, steps=[5])
    use(adapter, 1, 300)
    use(adapter, 2, 300)
    hold_over(rollout)
    at_once([partial(rollout_decide, rollout=rollout), partial(rollout_abort, rollout=rollout)])
    rollout.refresh_from_db()
    expected = {"promoted": 2, "aborted": 1}[rollout.status]
    assert (route().aliases, split()) == ({"prod": expected}, None)
    assert rollout.decisions.count() == 2


def test_an_alias_moved_by_hand_ends_the_rollout_and_stays(adapter: Adapter) -> None:
    rollout = rollout_start(adapter=adapter, alias="prod", version=2)
    use(adapter, 1, 100)
    use(adapter, 2, 100, errors=100)
    alias_move(adapter=adapter, name="prod", number=3)
    assert rollouts_decide() == 1
    rollout.refresh_from_db()
    assert (rollout.status, route().aliases) == ("superseded", {"prod": 3})
    rollout = rollout_start(adapter=adapter, alias="prod", version=2)
    alias_remove(alias=alias_get(adapter=adapter, name="prod"))
    rollouts_decide()
    rollout.refresh_from_db()
    assert (rollout.status, route().aliases) == ("superseded", {})


def test_paused_it_decides_nothing_and_resumed_it_counts_anew(adapter: Adapter) -> None:
    rollout = rollout_start(adapter=adapter, alias="prod", version=2)
    rollout_pause(rollout=rollout)
    use(adapter, 1, 100)
    use(adapter, 2, 100, errors=100)
    assert rollouts_decide() == 0
    assert split() == ((1, 95), (2, 5))
    with pytest.raises(ConflictError, match="paused"):
        rollout_pause(rollout=rollout)
    rollout_resume(rollout=rollout)
    rollouts_decide()
    rollout.refresh_from_db()
    assert (rollout.status, figures(rollout)["canary"]["requests"]) == ("running", 0)
    rollout_promote(rollout=rollout)
    assert route().aliases == {"prod": 2}
    for change in (rollout_pause, rollout_resume, rollout_abort, rollout_promote):
        with pytest.raises(ConflictError, match="promoted"):
            change(rollout=rollout)


def test_a_deleted_adapters_rollout_waits_and_its_versions_stay(adapter: Adapter) -> None:
    rollout = rollout_start(adapter=adapter, alias="prod", version=2)
    for number in (1, 2):
        with pytest.raises(ConflictError, match="pirate@prod"):
            version_delete(version=version_get(adapter=adapter, number=number))
    use(adapter, 1, 100)
    use(adapter, 2, 100, errors=100)
    adapter_delete(adapter=adapter)
    assert rollouts_decide() == 0
    adapter_restore(adapter=adapter)
    assert rollouts_decide() == 1
    rollout.refresh_from_db()
    assert rollout.status == "rolled_back"


def test_a_rollout_that_cannot_be_is_refused(adapter: Adapter) -> None:
    start = partial(rollout_start, adapter=adapter, alias="prod")
    for steps in ([], [100], [0], [50, 25], [5, 5], [101], [*range(1, 22)]):
        with pytest.raises(InvalidInputError, match="steps"):
            start(version=2, steps=steps)
    for name, value in (
        ("hold_seconds", 1),
        ("min_requests", 1),
        ("max_error_increase", 0.9),
        ("max_latency_ratio", 1.0),
    ):
        with pytest.raises(InvalidInputError, match=name):
            start(version=2, **{name: value})  # type: ignore[arg-type]
    with pytest.raises(NotFoundError, match="no alias"):
        rollout_start(adapter=adapter, alias="staging", version=2)
    for version, error in ((1, ConflictError), (4, ConflictError), (9, NotFoundError)):
        with pytest.raises(error):
            start(version=version)
    start(version=2)
    with pytest.raises(ConflictError, match="split"):
        start(version=3)
    assert Rollout.objects.count() == 1


def test_rest(adapter: Adapter, tenant: Tenant) -> None:
    _, key = api_key_create(tenant=tenant, name="m", scopes=["manage"])
    client = Client(headers={"Authorization": f"Bearer {key}"})
    url = "/api/v1/adapters/pirate/aliases/prod/rollouts"
    answer = client.post(url, {"version": 2, "steps": [10, 50]}, content_type="application/json")
    assert answer.status_code == 201, answer.content
    assert (answer.json()["status"], answer.json()["percent"]) == ("running", 10)
    use(adapter, 1, 300)
    use(adapter, 2, 300)
    rollouts_decide()
    one = f"{url}/{answer.json()['id']}"
    found = client.get(one).json()
    assert found["figures"]["canary"]["requests"] == 300
    assert found["decisions"][0]["decision"] == "start"
    for action, status in (("pause", "paused"), ("resume", "running"), ("abort", "aborted")):
        answer = client.post(f"{one}/{action}")
        assert (answer.status_code, answer.json()["status"]) == (200, status)
    assert client.post(f"{one}/promote").status_code == 409
    assert [item["id"] for item in client.get(url).json()["results"]] == [found["id"]]
    assert client.get("/api/v1/adapters/pirate/aliases/other/rollouts").json()["results"] == []
