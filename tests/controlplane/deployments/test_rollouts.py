"""Rollouts of worker processes of this host: steps, rollback, pause, abort; streams end first."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from controlplane.catalog.models import BaseModel
from controlplane.deployments.models import Deployment, DeploymentRollout
from controlplane.deployments.provisioners.local.processes import Process
from controlplane.deployments.reconciler import deployment_reconcile
from controlplane.deployments.rollouts.selectors import deployment_rollout_active
from controlplane.deployments.rollouts.services import (
    deployment_rollout_abort,
    deployment_rollout_judged,
    deployment_rollout_pause,
    deployment_rollout_resume,
    deployment_rollout_start,
)
from controlplane.deployments.services import deployment_remove, deployment_update
from controlplane.errors import ConflictError, InvalidInputError
from tests.controlplane.deployments.conftest import drive, orphan, removed, serving
from tests.controlplane.deployments.test_local import ENVIRONMENT, deploy, published, wait, workers

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("forked_workers")]
Status = DeploymentRollout.Status
NEW = {"options": {"max_rolling_batch_size": 8}}
BROKEN = {"environment": {**ENVIRONMENT, "GRAFTWORK_WORKER_FLAG_NO_SUCH": "1"}}
AT_ONCE: dict[str, Any] = {"wait_seconds": 0, "max_error_increase": None}


def start(deployment: Deployment, change: dict[str, Any] = NEW, **values: Any) -> DeploymentRollout:
    policy = AT_ONCE | values.pop("policy", {})
    return deployment_rollout_start(deployment=deployment, change=change, policy=policy, **values)


def ended(rollout: DeploymentRollout, status: str) -> Callable[[Deployment], bool]:
    def is_ended(row: Deployment) -> bool:
        rollout.refresh_from_db()
        return rollout.status == status and serving(row)

    return is_ended


def rollout_steps(deployment: Deployment) -> list[str]:
    """A rollout's steps, oldest first."""
    rows = deployment.steps.filter(action__startswith="rollout.").order_by("pk")
    return [row.action.removeprefix("rollout.") for row in rows]


def is_new(worker: Process) -> bool:
    return worker.option("--max-num-seqs") == "8"


def led(base: BaseModel, root: Path) -> list[bool]:
    """Return for each routed copy whether it is new, sorted."""
    urls = published(base)
    return sorted(is_new(item) for item in workers(root) if f":{item.option('--port')}" in " ".join(urls))


@pytest.mark.costly("starts several workers")
def test_two_copies_one_by_one_and_at_no_moment_fewer_than_two(tiny: BaseModel, local_root: Path) -> None:
    deployment = drive(deploy(tiny, min_copies=2), serving, pause=wait)
    rollout = start(deployment)
    # One look of the reconciler may find the first new copy ready already.
    seen = [led(tiny, local_root)]

    def meanwhile() -> None:
        if (now := led(tiny, local_root)) not in seen[-1:]:
            seen.append(now)
        wait()

    drive(deployment, ended(rollout, Status.COMPLETED), pause=meanwhile)
    meanwhile()
    assert seen == [[False, False], [False, True], [True, True]]
    assert [is_new(item) for item in workers(local_root)] == [True, True]
    assert rollout_steps(deployment) == ["start", "ready", "step", "ready", "completed"]
    first = deployment.steps.get(action="rollout.start")
    assert "options: {} -> {'max_rolling_batch_size': 8}" in first.cause
    assert all(step.actor and step.at for step in deployment.steps.all())
    assert deployment.options == NEW["options"]


@pytest.mark.costly("starts several workers")
def test_a_copy_that_cannot_start_takes_it_back_and_nothing_leaves_the_routes(
    tiny: BaseModel, local_root: Path
) -> None:
    deployment = drive(deploy(tiny), serving, pause=wait)
    before, (worker,) = published(tiny), workers(local_root)
    for _ in range(2):  # a second time too: what failed before is tried anew
        rollout = start(deployment, BROKEN)
        drive(deployment, ended(rollout, Status.ROLLED_BACK), pause=wait)
        assert "--no-such" in rollout.reason
        assert published(tiny) == before
        assert [item.pid for item in workers(local_root)] == [worker.pid], "the same process all the while"
        assert deployment.environment == ENVIRONMENT, "the state before is the wanted one again"
    assert deployment.steps.filter(action="start_worker").count() == 3
    assert rollout_steps(deployment) == ["start", "take_back", "rolled_back"] * 2


@pytest.mark.costly("starts several workers")
def test_a_new_copy_that_dies_while_it_serves_takes_it_back(tiny: BaseModel, local_root: Path) -> None:
    deployment = drive(deploy(tiny, min_copies=2), serving, pause=wait)
    rollout = start(deployment, policy={"wait_seconds": 600})
    drive(deployment, lambda _: led(tiny, local_root) == [False, True], pause=wait)
    deployment_reconcile(deployment_id=deployment.pk)
    (new,) = (item for item in workers(local_root) if is_new(item))
    os.kill(new.pid, signal.SIGKILL)
    drive(deployment, ended(rollout, Status.ROLLED_BACK), pause=wait)
    assert "ended while it served" in rollout.reason
    assert led(tiny, local_root) == [False, False]


@pytest.mark.costly("starts several workers")
def test_usage_that_is_worse_takes_it_back_and_the_new_copies_leave_the_routes_first(
    tiny: BaseModel, local_root: Path
) -> None:
    deployment = drive(deploy(tiny, min_copies=2), serving, pause=wait)
    rollout = start(deployment, policy={"wait_seconds": 600, "max_error_increase": 0.02})
    drive(deployment, lambda _: led(tiny, local_root) == [False, True], pause=wait)
    deployment_rollout_judged(rollout=rollout, verdict="worse", reason="9 of 10 failed", figures={"n": 1})
    deployment_reconcile(deployment_id=deployment.pk)
    assert True not in led(tiny, local_root), "before the second old copy is there again"
    drive(deployment, ended(rollout, Status.ROLLED_BACK), pause=wait)
    assert (rollout.reason, rollout.figures) == ("9 of 10 failed", {"n": 1})
    assert [is_new(item) for item in workers(local_root)] == [False, False]
    assert {"new", "old"} == set(rollout.copies)


def test_one_that_takes_too_long_is_taken_back(tiny: BaseModel, local_root: Path) -> None:
    deployment = drive(deploy(tiny), serving, pause=wait)
    rollout = start(deployment, policy={"wait_seconds": 3000})
    DeploymentRollout.objects.filter(pk=rollout.pk).update(turned_at=timezone.now() - timedelta(hours=2))
    drive(deployment, ended(rollout, Status.ROLLED_BACK), pause=wait)
    assert "within 3600 s" in rollout.reason


@pytest.mark.costly("starts several workers")
def test_paused_it_stays_resumed_it_goes_on_and_a_dead_reconciler_does_not_matter(
    tiny: BaseModel, local_root: Path
) -> None:
    deployment = drive(deploy(tiny, min_copies=2), serving, pause=wait)
    rollout = start(deployment, policy={"wait_seconds": 2})
    drive(deployment, lambda _: led(tiny, local_root) == [False, True], pause=wait)
    deployment_rollout_pause(rollout=rollout)
    with pytest.raises(ConflictError, match="is paused, not running"):
        deployment_rollout_pause(rollout=rollout)
    with pytest.raises(ConflictError, match="wait until it ends, or abort it"):
        deployment_update(deployment=deployment, options={"max_rolling_batch_size": 2})
    with pytest.raises(ConflictError, match="wait until it ends, or abort it"):
        start(deployment, {"options": {"max_rolling_batch_size": 2}})
    for _ in range(10):
        deployment_reconcile(deployment_id=deployment.pk)
        wait()
    assert led(tiny, local_root) == [False, True]
    orphan(deployment)
    deployment_rollout_resume(rollout=rollout)
    drive(deployment, ended(rollout, Status.COMPLETED), pause=wait)
    assert [is_new(item) for item in workers(local_root)] == [True, True]
    people = [verb for verb in rollout_steps(deployment) if verb in ("start", "pause", "resume")]
    assert people == ["start", "pause", "resume"]


@pytest.mark.costly("starts several workers")
def test_aborted_it_goes_back_and_ends_as_aborted(tiny: BaseModel, local_root: Path) -> None:
    deployment = drive(deploy(tiny, min_copies=2), serving, pause=wait)
    rollout = start(deployment, policy={"wait_seconds": 600})
    drive(deployment, lambda _: led(tiny, local_root) == [False, True], pause=wait)
    deployment_rollout_pause(rollout=rollout)
    deployment_rollout_abort(rollout=rollout)
    with pytest.raises(ConflictError, match="is rolling_back"):
        deployment_rollout_abort(rollout=rollout)
    drive(deployment, ended(rollout, Status.ABORTED), pause=wait)
    assert led(tiny, local_root) == [False, False]
    assert [is_new(item) for item in workers(local_root)] == [False, False]


@pytest.mark.costly("starts several workers")
def test_blue_green_switches_all_at_once_and_keeps_the_old_set_for_the_way_back(
    tiny: BaseModel, local_root: Path
) -> None:
    deployment = drive(deploy(tiny, min_copies=2), serving, pause=wait)
    old = {item.pid for item in workers(local_root)}
    seen: list[list[bool]] = []

    def meanwhile() -> None:
        if (now := led(tiny, local_root)) not in seen[-1:]:
            seen.append(now)
        wait()

    rollout = start(deployment, strategy="blue_green", policy={"wait_seconds": 600})
    drive(deployment, lambda _: led(tiny, local_root) == [True, True], pause=meanwhile)
    meanwhile()
    assert seen == [[False, False], [True, True]]
    assert old < {item.pid for item in workers(local_root)}, "the old ones stand by"
    deployment_rollout_abort(rollout=rollout)
    deployment_reconcile(deployment_id=deployment.pk)
    assert led(tiny, local_root) == [False, False], "at once"
    drive(deployment, ended(rollout, Status.ABORTED), pause=wait)
    assert {item.pid for item in workers(local_root)} == old

    rollout = start(deployment, strategy="blue_green")
    drive(deployment, ended(rollout, Status.COMPLETED), pause=wait)
    assert [is_new(item) for item in workers(local_root)] == [True, True]


@pytest.mark.costly("starts several workers")
def test_a_deployment_that_is_removed_takes_its_rollout_along(tiny: BaseModel, local_root: Path) -> None:
    deployment = drive(deploy(tiny), serving, pause=wait)
    rollout = start(deployment, policy={"wait_seconds": 600})
    drive(deployment, lambda _: len(workers(local_root)) == 2, pause=wait)
    deployment_remove(deployment=deployment)
    rollout.refresh_from_db()
    assert rollout.status == Status.ABORTED
    assert deployment_rollout_active(deployment=deployment) is None
    drive(deployment, removed, pause=wait)
    assert workers(local_root) == []


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"strategy": "yolo"}, "strategy"),
        ({"change": {"min_copies": 2}}, "change"),
        ({"change": {"options": {}}}, "change"),
        ({"change": {"variant": "none"}}, "variant"),
        ({"change": {"urls": ["http://x"]}}, "urls"),
        ({"policy": {"batch_copies": 0}}, "policy.batch_copies"),
        ({"policy": {"wait_seconds": "1"}}, "policy.wait_seconds"),
        ({"policy": {"max_seconds": 599}}, "policy.max_seconds"),
        ({"policy": {"nonsense": 1}}, "policy"),
        ({"policy": {"alarms": ["mine"]}}, "policy.alarms"),
        ({"policy": {"max_error_increase": 0.6}}, "policy.max_error_increase"),
    ],
)
def test_what_is_wrong_is_refused_by_its_field(tiny: BaseModel, values: dict[str, Any], field: str) -> None:
    deployment = deploy(tiny)
    Deployment.objects.filter(pk=deployment.pk).update(status="serving")
    with pytest.raises(InvalidInputError) as caught:
        deployment_rollout_start(deployment=deployment, **{"change": NEW} | values)
    assert caught.value.field == field
    assert deployment.rollouts.count() == 0


def test_what_does_not_serve_yet_is_changed_without_one(tiny: BaseModel) -> None:
    with pytest.raises(ConflictError, match="does not serve yet"):
        start(deploy(tiny))
