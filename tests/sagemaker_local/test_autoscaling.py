"""Application Auto Scaling by unmodified boto3, on a clock that the test moves, over real copies."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.sagemaker_local.stand import Stand, refused, run_stand
from tests.waiting import eventually

pytestmark = pytest.mark.costly("real workers behind the local SageMaker")

TARGET = {
    "ServiceNamespace": "sagemaker",
    "ResourceId": "inference-component/base",
    "ScalableDimension": "sagemaker:inference-component:DesiredCopyCount",
}


@pytest.fixture(scope="module")
def stand(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    """An endpoint `shared` with a base `base` of no copies, with a stopped clock."""
    with run_stand(tmp_path_factory.mktemp("stand"), clock_running=False) as running:
        running.model("tiny", OPTION_MODEL_ID=str(tiny_model))
        running.endpoint("shared")
        running.base("base", "shared", "tiny", copies=0)
        yield running


@pytest.fixture
def scaling(stand: Stand) -> Iterator[Any]:
    """A client, with the base as a scalable target of 0 to 3 copies."""
    client = stand.client("application-autoscaling")
    client.register_scalable_target(**TARGET, MinCapacity=0, MaxCapacity=3)
    yield client
    client.deregister_scalable_target(**TARGET)
    config = {"CopyCount": 0}
    stand.settled("base")
    stand.client("sagemaker").update_inference_component_runtime_config(
        InferenceComponentName="base", DesiredRuntimeConfig=config
    )
    stand.settled("base")


def copies(stand: Stand) -> int:
    return int(stand.settled("base")["RuntimeConfig"]["CurrentCopyCount"])


def test_a_step_policy_scales_from_zero(stand: Stand, scaling: Any) -> None:
    """SageMaker's way out of zero copies: an alarm on invocations that found no capacity."""
    arn = scaling.put_scaling_policy(
        **TARGET,
        PolicyName="from-zero",
        PolicyType="StepScaling",
        StepScalingPolicyConfiguration={
            "AdjustmentType": "ChangeInCapacity",
            "MetricAggregationType": "Maximum",
            "Cooldown": 60,
            "StepAdjustments": [{"MetricIntervalLowerBound": 0, "ScalingAdjustment": 1}],
        },
    )["PolicyARN"]
    cloudwatch = stand.client("cloudwatch")
    cloudwatch.put_metric_alarm(
        AlarmName="no-capacity",
        AlarmActions=[arn],
        MetricName="NoCapacityInvocationFailures",
        Namespace="AWS/SageMaker",
        Statistic="Maximum",
        Period=30,
        EvaluationPeriods=1,
        DatapointsToAlarm=1,
        Threshold=1,
        ComparisonOperator="GreaterThanOrEqualToThreshold",
        TreatMissingData="missing",
        Dimensions=[{"Name": "InferenceComponentName", "Value": "base"}],
    )
    stand.advance(60)
    assert copies(stand) == 0
    assert "no capacity" in refused(stand.ask, endpoint="shared", component="base")[1]
    stand.advance(10)
    assert copies(stand) == 1
    assert stand.ask("shared", "base")
    assert cloudwatch.describe_alarms(AlarmNames=["no-capacity"])["MetricAlarms"][0]["StateValue"] == "ALARM"
    policy = scaling.describe_scaling_policies(ServiceNamespace="sagemaker")["ScalingPolicies"][0]
    assert [alarm["AlarmName"] for alarm in policy["Alarms"]] == ["no-capacity"]
    activity = scaling.describe_scaling_activities(ServiceNamespace="sagemaker")["ScalingActivities"][0]
    assert (activity["StatusCode"], activity["Description"]) == (
        "Successful",
        "Setting desired copy count to 1.",
    )
    assert "alarm no-capacity" in activity["Cause"]
    cloudwatch.delete_alarms(AlarmNames=["no-capacity"])


class Busy:
    """Requests that last until `with` ends: streams of which only the beginning is read."""

    def __init__(self, stand: Stand, count: int) -> None:
        self._stand, self._count = stand, count
        self._done = threading.Event()
        self._threads = [threading.Thread(target=self._hold) for _ in range(count)]

    def __enter__(self) -> None:
        before = len(self._stand.get("invocations"))
        for thread in self._threads:
            thread.start()
        eventually(lambda: len(self._stand.get("invocations")) == before + self._count)

    def __exit__(self, *_: object) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join()

    def _hold(self) -> None:
        parameters = {"max_new_tokens": 400, "ignore_eos_token": True}
        body = json.dumps({"inputs": "hello", "parameters": parameters, "stream": True})
        answer = self._stand.client("sagemaker-runtime").invoke_endpoint_with_response_stream(
            EndpointName="shared", InferenceComponentName="base", Body=body, ContentType="application/json"
        )
        self._done.wait()
        answer["Body"].close()


def test_target_tracking_follows_concurrency_out_and_in(stand: Stand, scaling: Any) -> None:
    """Two requests a copy are wanted: six in one copy make three, none at all makes none for 15 minutes."""
    stand.client("sagemaker").update_inference_component_runtime_config(
        InferenceComponentName="base", DesiredRuntimeConfig={"CopyCount": 1}
    )
    assert copies(stand) == 1
    metric = "SageMakerInferenceComponentConcurrentRequestsPerCopyHighResolution"
    alarms = scaling.put_scaling_policy(
        **TARGET,
        PolicyName="track",
        PolicyType="TargetTrackingScaling",
        TargetTrackingScalingPolicyConfiguration={
            "TargetValue": 2.0,
            "ScaleInCooldown": 60,
            "ScaleOutCooldown": 60,
            "PredefinedMetricSpecification": {"PredefinedMetricType": metric},
        },
    )["Alarms"]
    assert {alarm["AlarmName"].split("-")[-6] for alarm in alarms} == {"AlarmHigh", "AlarmLow"}
    # A delay in the stream keeps the request in its copy, however fast the copy is.
    stand.put("faults", [{"kind": "delay", "after": 1, "seconds": 60, "count": 6}])
    with Busy(stand, 6):
        stand.advance(20)
        assert copies(stand) == 1, "two periods of ten seconds are not three"
        stand.advance(10)
        assert copies(stand) == 3
    stand.advance(890)
    assert copies(stand) == 3
    stand.advance(60)
    assert copies(stand) == 0, "the target's minimum"
    names = [alarm["AlarmName"] for alarm in alarms]
    cloudwatch = stand.client("cloudwatch")
    assert len(cloudwatch.describe_alarms(AlarmNames=names)["MetricAlarms"]) == 2
    scaling.delete_scaling_policy(**TARGET, PolicyName="track")
    assert cloudwatch.describe_alarms(AlarmNames=names)["MetricAlarms"] == []


def test_schedules_move_the_bounds(stand: Stand, scaling: Any) -> None:
    now = stand.get("clock")["now"]
    moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now + 120))
    for name, schedule, low, high in (("once", f"at({moment})", 2, 3), ("hourly", "rate(1 hour)", 0, 0)):
        scaling.put_scheduled_action(
            **TARGET,
            ScheduledActionName=name,
            Schedule=schedule,
            ScalableTargetAction={"MinCapacity": low, "MaxCapacity": high},
        )
    listed = scaling.describe_scheduled_actions(ServiceNamespace="sagemaker")["ScheduledActions"]
    assert [action["ScheduledActionName"] for action in listed] == ["once", "hourly"]
    stand.advance(110)
    assert copies(stand) == 0
    stand.advance(20)
    assert copies(stand) == 2
    target = scaling.describe_scalable_targets(ServiceNamespace="sagemaker")["ScalableTargets"][0]
    assert (target["MinCapacity"], target["MaxCapacity"]) == (2, 3)
    stand.advance(3600)
    assert copies(stand) == 0
    scaling.delete_scheduled_action(**TARGET, ScheduledActionName="once")
    listed = scaling.describe_scheduled_actions(ServiceNamespace="sagemaker")["ScheduledActions"]
    assert [action["ScheduledActionName"] for action in listed] == ["hourly"]


def test_what_cannot_be_scaled_is_refused(stand: Stand) -> None:
    scaling = stand.client("application-autoscaling")
    register, put = scaling.register_scalable_target, scaling.put_scaling_policy
    for call, arguments, code in (
        (register, {**TARGET, "MinCapacity": 2, "MaxCapacity": 1}, "ValidationException"),
        (register, {**TARGET, "MinCapacity": 1}, "ValidationException"),
        (
            register,
            {**TARGET, "ResourceId": "inference-component/no", "MinCapacity": 0, "MaxCapacity": 1},
            "ValidationException",
        ),
        (register, {**TARGET, "ServiceNamespace": "ecs", "MinCapacity": 0}, "ValidationException"),
        (put, {**TARGET, "PolicyName": "p", "PolicyType": "StepScaling"}, "ObjectNotFoundException"),
        (scaling.deregister_scalable_target, TARGET, "ObjectNotFoundException"),
    ):
        assert refused(call, **arguments)[0] == code
