"""Rollouts that SageMaker carries out: batches, alarms, rollback; real workers serve."""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.catalog.models import BaseModel
from controlplane.deployments.models import Deployment, DeploymentRollout
from controlplane.deployments.reconciler import deployment_reconcile
from controlplane.deployments.rollouts.services import (
    deployment_rollout_abort,
    deployment_rollout_judged,
    deployment_rollout_pause,
    deployment_rollout_resume,
    deployment_rollout_start,
)
from controlplane.deployments.services import deployment_remove
from controlplane.errors import ConflictError, InvalidInputError
from tests.controlplane.deployments.account import NOTHING, deploy, resources
from tests.controlplane.deployments.conftest import drive, removed, serving
from tests.controlplane.deployments.test_rollouts import ended, rollout_steps
from tests.controlplane.deployments.test_sagemaker import credentials, pause, stand  # noqa: F401
from tests.sagemaker_local.stand import Stand

pytestmark = pytest.mark.django_db
Status = DeploymentRollout.Status
NEW = {"options": {"max_rolling_batch_size": 2}}
ALARM: dict[str, Any] = {
    "AlarmName": "mine",
    "MetricName": "Errors",
    "Namespace": "Mine",
    "Statistic": "Sum",
    "Period": 60,
    "Threshold": 1,
    "EvaluationPeriods": 1,
    "ComparisonOperator": "GreaterThanThreshold",
}


@pytest.fixture
def deployment(stand: Stand, tiny: BaseModel) -> Any:  # noqa: F811
    """Two copies that serve; gone without a trace afterwards."""
    found = drive(deploy(stand, tiny, hosting="fused", min_copies=2, max_copies=2), serving, pause=pause)
    cloudwatch = stand.client("cloudwatch")
    cloudwatch.put_metric_alarm(**ALARM)
    cloudwatch.set_alarm_state(AlarmName="mine", StateValue="OK", StateReason="by hand")
    yield found
    deployment_remove(deployment=found)
    drive(found, removed, pause=pause)
    assert resources(stand) == NOTHING
    assert [item["AlarmName"] for item in alarms(stand)] == ["mine"], "ours have gone, others' are left"


def alarms(stand: Stand) -> list[dict[str, Any]]:  # noqa: F811
    return list(stand.client("cloudwatch").describe_alarms()["MetricAlarms"])


def start(deployment: Deployment, change: dict[str, Any] = NEW, **policy: Any) -> DeploymentRollout:
    return deployment_rollout_start(
        deployment=deployment, change=change, policy={"wait_seconds": 0, **policy}
    )


def changing(stand: Stand) -> bool:  # noqa: F811
    component = stand.client("sagemaker").describe_inference_component(InferenceComponentName="gw-tiny")
    return bool(component["InferenceComponentStatus"] == "Updating")


def model_of(stand: Stand) -> str:  # noqa: F811
    return str(stand.settled("gw-tiny")["Specification"]["ModelName"])


@pytest.mark.costly("real workers behind the local SageMaker")
def test_a_rolling_update_with_alarms_as_the_policy_says(stand: Stand, deployment: Deployment) -> None:  # noqa: F811
    old = model_of(stand)
    rollout = start(
        deployment, alarms=["mine"], rollback_batch_copies=1, max_model_errors=10, max_model_latency_ms=9000
    )
    drive(deployment, lambda _: changing(stand), pause=pause)
    made = {item["AlarmName"].rpartition("-")[2]: item for item in alarms(stand)}
    assert made.keys() == {"mine", "verdict", "errors", "latency"}
    assert made["errors"]["MetricName"] == "InvocationModelErrors"
    assert (made["latency"]["MetricName"], made["latency"]["Threshold"]) == ("ModelLatency", 9_000_000)
    with pytest.raises(ConflictError, match="cannot pause"):
        deployment_rollout_pause(rollout=rollout)
    drive(deployment, ended(rollout, Status.COMPLETED), pause=pause)
    found = stand.settled("gw-tiny")
    assert found["Specification"]["ModelName"] != old
    rolling = found["LastDeploymentConfig"]["RollingUpdatePolicy"]
    one = {"Type": "COPY_COUNT", "Value": 1}
    assert rolling == {
        "MaximumBatchSize": one,
        "WaitIntervalInSeconds": 0,
        "MaximumExecutionTimeoutInSeconds": 3600,
        "RollbackMaximumBatchSize": one,
    }
    named = found["LastDeploymentConfig"]["AutoRollbackConfiguration"]["Alarms"]
    watched = [item["AlarmName"].rpartition("-")[2] for item in named]
    assert watched == ["mine", "verdict", "errors", "latency"]
    assert rollout_steps(deployment) == ["start", "completed"]
    assert deployment.steps.filter(action="put_metric_alarm").count() == 3
    assert [item["AlarmName"] for item in alarms(stand)] == ["mine"]


@pytest.mark.slow
def test_what_takes_an_update_back(stand: Stand, deployment: Deployment) -> None:  # noqa: F811
    """A copy that does not start, an alarm, usage that is worse, an abort: SageMaker goes back."""
    old, before = model_of(stand), dict(deployment.options)
    stand.put("faults", [{"kind": "start_failure", "component": "gw-tiny", "count": 1}])
    rollout = start(deployment)
    drive(deployment, ended(rollout, Status.ROLLED_BACK), pause=pause)
    assert "took the update of gw-tiny back" in rollout.reason
    assert "did not become healthy" in rollout.reason
    assert (model_of(stand), deployment.options) == (old, before)

    rollout = start(deployment, alarms=["mine"], wait_seconds=600)
    drive(deployment, lambda _: changing(stand), pause=pause)
    ring = {"AlarmName": "mine", "StateReason": "by hand"}
    stand.client("cloudwatch").set_alarm_state(**ring, StateValue="ALARM")
    drive(deployment, ended(rollout, Status.ROLLED_BACK), pause=pause)
    assert "Alarms went off during the deployment, which was rolled back: mine" in rollout.reason
    assert "check its metric in CloudWatch" in rollout.reason
    assert model_of(stand) == old

    # One that has gone off before is waited for: SageMaker would go back at once.
    rollout = start(deployment, alarms=["mine"], wait_seconds=600)
    deployment_reconcile(deployment_id=deployment.pk)
    deployment.refresh_from_db()
    assert "alarm mine has gone off already" in deployment.reason
    deployment_rollout_pause(rollout=rollout)
    stand.client("cloudwatch").set_alarm_state(**ring, StateValue="OK")
    for _ in range(3):
        deployment_reconcile(deployment_id=deployment.pk)
    assert not changing(stand), "it is paused"
    deployment_rollout_resume(rollout=rollout)
    drive(deployment, lambda _: changing(stand), pause=pause)
    deployment_rollout_judged(rollout=rollout, verdict="worse", reason="9 of 10 failed", figures={})
    drive(deployment, ended(rollout, Status.ROLLED_BACK), pause=pause)
    assert rollout.reason == "9 of 10 failed"
    assert model_of(stand) == old

    rollout = start(deployment, wait_seconds=600)
    drive(deployment, lambda _: changing(stand), pause=pause)
    deployment_rollout_abort(rollout=rollout)
    drive(deployment, ended(rollout, Status.ABORTED), pause=pause)
    assert (model_of(stand), deployment.options) == (old, before)
    assert deployment.steps.filter(action="set_alarm_state", cause__startswith="ALARM").count() == 2


@pytest.mark.costly("real workers behind the local SageMaker")
def test_what_cannot_be_is_refused_before_anything_is_done(stand: Stand, deployment: Deployment) -> None:  # noqa: F811
    with pytest.raises(InvalidInputError, match="at most half of the copies"):
        start(deployment, batch_copies=2)
    with pytest.raises(InvalidInputError, match="strategy rolling"):
        deployment_rollout_start(deployment=deployment, change=NEW, strategy="blue_green")
    before = dict(deployment.options)
    rollout = start(deployment, alarms=["nobodys"])
    drive(deployment, ended(rollout, Status.ROLLED_BACK), pause=pause)
    assert "alarm nobodys does not exist" in rollout.reason
    assert deployment.options == before
    assert not deployment.steps.filter(action="update_inference_component").exists()
