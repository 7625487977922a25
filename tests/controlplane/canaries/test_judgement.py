"""Deployments' rollouts judged by usage rows: the new copies against the others."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
from django.utils import timezone

from contracts.usage_event import uuid7
from controlplane.canaries.judgement import deployment_rollouts_judge
from controlplane.catalog.models import BaseModel
from controlplane.catalog.services import base_model_register
from controlplane.deployments.models import DeploymentRollout
from controlplane.deployments.rollouts.states import state_values
from controlplane.deployments.services import deployment_create
from controlplane.deployments.targets.services import target_create
from controlplane.metering.models import UsageEventRow
from controlplane.metering.partitions import partitions_ensure
from tests.controlplane.conftest import write_checkpoint

pytestmark = pytest.mark.django_db
BEGAN = timezone.now() - dt.timedelta(minutes=5)


@pytest.fixture
def base(tmp_path: Path) -> BaseModel:
    write_checkpoint(tmp_path / "tiny")
    return base_model_register(name="tiny-base", source=tmp_path / "tiny", served_name="tiny")


def rollout(base: BaseModel, **values: object) -> DeploymentRollout:
    target = target_create(name="here", kind="local")
    deployment = deployment_create(name="tiny", target=target, base_model=base)
    state = state_values(deployment)
    kept = {
        "strategy": "rolling",
        "before": state,
        "after": state,
        "policy": {},
        "turned_at": BEGAN,
        "ready_at": BEGAN,
        "copies": {"new": ["copy-n"], "old": ["copy-o"]},
    } | values
    return DeploymentRollout.objects.create(deployment=deployment, **kept)


def events(copy: str, *, ok: int, error: int, after: dt.timedelta = dt.timedelta(seconds=1)) -> None:
    at = BEGAN + after
    partitions_ensure([at.astimezone(dt.UTC).date()])
    UsageEventRow.objects.bulk_create(
        UsageEventRow(
            event_id=uuid7(),
            day=at.astimezone(dt.UTC).date(),
            tenant="acme",
            project="",
            key_id="k",
            request_id=f"{copy}-{after}-{number}",
            attempt=1,
            requested_model="m",
            alias="",
            arm="",
            adapter="",
            base_model="tiny-base",
            backend="worker",
            endpoint=copy,
            status="ok" if number < ok else "error",
            error_code="",
            prompt_tokens=1,
            cached_tokens=0,
            completion_tokens=1,
            estimated=False,
            ttft_ms=10.0,
            itl_ms=3.0,
            duration_ms=20.0,
            started_at=int(at.timestamp() * 1000),
            gateway_id="g",
        )
        for number in range(ok + error)
    )


def test_new_copies_that_fail_more_are_worse(base: BaseModel) -> None:
    row = rollout(base)
    events("copy-o", ok=100, error=0)
    events("copy-n", ok=2, error=30)
    assert deployment_rollouts_judge() == 1
    row.refresh_from_db()
    assert row.verdict == "worse"
    assert "of the canary's requests failed" in row.reason
    assert row.figures is not None
    assert row.figures["canary"]["errors"] == 30


def test_what_came_before_the_step_or_from_others_does_not_count(base: BaseModel) -> None:
    row = rollout(base)
    events("copy-o", ok=100, error=0)
    events("copy-n", ok=0, error=30, after=dt.timedelta(seconds=-1))
    events("copy-n", ok=50, error=0)
    events("copy-x", ok=0, error=90)
    deployment_rollouts_judge()
    row.refresh_from_db()
    assert row.verdict in ("fine", "wait")
    assert row.judged_at is not None
    assert row.figures is not None
    assert row.figures["canary"]["errors"] == 0


@pytest.mark.parametrize(
    "values", [{"status": "paused"}, {"ready_at": None}, {"policy": {"max_error_increase": None}}]
)
def test_who_is_not_judged(base: BaseModel, values: dict[str, object]) -> None:
    row = rollout(base, **values)
    events("copy-n", ok=0, error=30)
    assert deployment_rollouts_judge() == 0
    row.refresh_from_db()
    assert row.verdict == ""
