"""Scaling policies at Application Auto Scaling, on a clock that the test moves, over real copies."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from controlplane.catalog.models import BaseModel
from controlplane.deployments.models import Deployment
from controlplane.deployments.provisioners.base import ProvisioningError
from controlplane.deployments.provisioners.sagemaker.autoscaling import Autoscaling, RegisteredScaling
from controlplane.deployments.provisioners.sagemaker.specs import metrics_config
from controlplane.deployments.reconciler import deployment_reconcile
from controlplane.deployments.scaling.policy import ScalingPolicy
from controlplane.deployments.services import deployment_remove, scaling_clear, scaling_set
from controlplane.tenants.models import Tenant
from controlplane.tenants.services import api_key_create
from tests.controlplane.deployments.account import NOTHING, deploy, resources
from tests.controlplane.deployments.conftest import drive, removed, serving
from tests.controlplane.deployments.test_sagemaker import credentials, gateway_of, pause, stand
from tests.sagemaker_local.stand import Stand

__all__ = ("credentials", "stand")
pytestmark = pytest.mark.django_db
NIGHT = {"name": "night", "at": "20:00", "days": ["mon", "fri"], "min_copies": 0, "max_copies": 1}


@pytest.fixture
def scaling(stand: Stand) -> Any:
    return stand.client("application-autoscaling")


def test_detailed_observability_is_on_with_an_interval_off_on_request_and_else_awss_default() -> None:
    basic = ScalingPolicy(1, 1, 4.0, basic_metrics=True)
    assert metrics_config(basic) == {"MetricsConfig": {"EnableDetailedObservability": False}}
    both = metrics_config(replace(basic, metrics_seconds=60))["MetricsConfig"]
    assert (both["EnableDetailedObservability"], both["MetricPublishFrequencyInSeconds"]) == (False, 60)
    assert metrics_config(ScalingPolicy(1, 1, 4.0)) == {}


def settled(deployment: Deployment) -> bool:
    return serving(deployment) and deployment.observed_generation == deployment.generation


def _refuse(_: Autoscaling) -> RegisteredScaling:
    raise ProvisioningError("describe_scalable_targets: refused")


def registered(client: Any) -> dict[str, Any]:
    one = {"ServiceNamespace": "sagemaker"}
    return {
        "targets": [
            (item["ResourceId"], item["MinCapacity"], item["MaxCapacity"])
            for item in client.describe_scalable_targets(**one)["ScalableTargets"]
        ],
        "policies": sorted(
            item["PolicyName"] for item in client.describe_scaling_policies(**one)["ScalingPolicies"]
        ),
        "scheduled": [
            (item["ScheduledActionName"], item["Schedule"], item["Timezone"])
            for item in client.describe_scheduled_actions(**one)["ScheduledActions"]
        ],
    }


@pytest.mark.costly("real workers behind the local SageMaker")
def test_a_policy_is_registered_once_kept_and_removed_with_the_deployment(
    stand: Stand, tiny: BaseModel, scaling: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment = drive(deploy(stand, tiny, min_copies=1, max_copies=3), settled, pause=pause)
    scaling_set(
        deployment=deployment,
        target=4,
        schedule=[NIGHT],
        timezone="Europe/Berlin",
        routing="RANDOM",
        release="CONSOLIDATION",
        metrics_seconds=30,
    )
    drive(deployment, settled, pause=pause)
    found = registered(scaling)
    assert [item[0] for item in found["targets"]] == ["inference-component/gw-tiny"]
    assert found["policies"] == ["graftwork-from-zero", "graftwork-track"]
    assert found["scheduled"] == [("graftwork-night", "cron(0 20 ? * MON,FRI *)", "Europe/Berlin")]
    cloudwatch = stand.client("cloudwatch")
    (alarm,) = cloudwatch.describe_alarms(AlarmNames=["gw-tiny-no-capacity"])["MetricAlarms"]
    assert alarm["MetricName"] == "NoCapacityInvocationFailures"
    client = stand.client("sagemaker")
    config = client.describe_endpoint(EndpointName="gw-tiny")["EndpointConfigName"]
    (variant,) = client.describe_endpoint_config(EndpointConfigName=config)["ProductionVariants"]
    assert variant["RoutingConfig"] == {"RoutingStrategy": "RANDOM"}
    assert client.describe_endpoint(EndpointName="gw-tiny")["MetricsConfig"] == {
        "EnableEnhancedMetrics": True,
        "EnableDetailedObservability": True,
        "MetricPublishFrequencyInSeconds": 30,
    }
    assert variant["ManagedInstanceScaling"]["ScaleInPolicy"]["Strategy"] == "CONSOLIDATION"

    one = {
        "ServiceNamespace": "sagemaker",
        "ResourceId": "inference-component/gw-tiny",
        "ScalableDimension": "sagemaker:inference-component:DesiredCopyCount",
    }
    bounds = {"MinCapacity": 0, "MaxCapacity": 1}
    theirs = {"ScheduledActionName": "theirs", "Schedule": "rate(1 day)", "Timezone": "UTC"}
    scaling.put_scheduled_action(**one, **theirs, ScalableTargetAction=bounds)
    steps = deployment.steps.count()
    deployment_reconcile(deployment_id=deployment.pk)
    assert deployment.steps.count() == steps, "nothing is registered twice"
    with monkeypatch.context() as refusing:
        refusing.setattr(Autoscaling, "_read_registered", _refuse)
        deployment_reconcile(deployment_id=deployment.pk)
        deployment.refresh_from_db()
        assert (deployment.status, deployment.reason) == ("degraded", "describe_scalable_targets: refused")
        assert deployment.copies.exists()
    deployment_reconcile(deployment_id=deployment.pk)
    deployment.refresh_from_db()
    assert serving(deployment)
    scaling.delete_scaling_policy(
        PolicyName="graftwork-track",
        ServiceNamespace="sagemaker",
        ResourceId="inference-component/gw-tiny",
        ScalableDimension="sagemaker:inference-component:DesiredCopyCount",
    )
    deployment_reconcile(deployment_id=deployment.pk)
    assert registered(scaling)["policies"] == ["graftwork-from-zero", "graftwork-track"], "mended"

    scaling_set(deployment=deployment, target=6)
    drive(deployment, settled, pause=pause)
    assert registered(scaling) == {
        "targets": [("inference-component/gw-tiny", 1, 3)],
        "policies": ["graftwork-track"],
        "scheduled": [("theirs", "rate(1 day)", "UTC")],
    }
    assert cloudwatch.describe_alarms(AlarmNames=["gw-tiny-no-capacity"])["MetricAlarms"] == []
    scaling_clear(deployment=deployment)
    drive(deployment, settled, pause=pause)
    found = registered(scaling)
    assert (found["policies"], len(found["targets"]), len(found["scheduled"])) == ([], 1, 1), "others' stay"
    scaling.delete_scheduled_action(**one, ScheduledActionName="theirs")
    deployment_reconcile(deployment_id=deployment.pk)
    assert registered(scaling) == {"targets": [], "policies": [], "scheduled": []}

    scaling_set(deployment=deployment, target=4, min_copies=0)
    drive(deployment, settled, pause=pause)
    deployment_remove(deployment=deployment)
    drive(deployment, removed, pause=pause)
    assert registered(scaling) == {"targets": [], "policies": [], "scheduled": []}
    assert cloudwatch.describe_alarms()["MetricAlarms"] == []
    assert resources(stand) == NOTHING


@pytest.mark.costly("real workers behind the local SageMaker")
def test_a_request_that_finds_no_copy_is_held_until_the_alarm_has_brought_one(
    stand: Stand, tiny: BaseModel, tenant: Tenant, scaling: Any, redis_url: str, tmp_path: Path
) -> None:
    deployment = deploy(stand, tiny, min_copies=0, max_copies=2)
    scaling_set(deployment=deployment, target=4, hold_seconds=90)
    drive(deployment, settled, pause=pause)
    assert stand.settled("gw-tiny")["RuntimeConfig"]["CurrentCopyCount"] == 0
    _, key = api_key_create(tenant=tenant, name="k", scopes=["inference"])
    answers: list[httpx.Response] = []
    with gateway_of(redis_url, tmp_path) as gateway:
        body = {"model": "tiny-base", "prompt": "hello", "max_tokens": 4, "temperature": 0}
        headers = {"authorization": f"Bearer {key}"}
        url = f"{gateway.url}/v1/completions"
        asked = threading.Thread(
            target=lambda: answers.append(httpx.post(url, json=body, headers=headers, timeout=120))
        )
        asked.start()
        time.sleep(1)  # Longer than a refusal takes.
        assert not answers, "held, not refused"

        def pass_time() -> None:
            stand.advance(10)
            time.sleep(0.5)  # A copy starts meanwhile: a round costs 0.1 CPU seconds.

        drive(deployment, lambda _: bool(answers), pause=pass_time)
        asked.join(10)
    assert answers[0].status_code == 200, answers[0].text
    activity = scaling.describe_scaling_activities(ServiceNamespace="sagemaker")["ScalingActivities"][-1]
    assert "gw-tiny-no-capacity" in activity["Cause"]
    drive(deployment, settled, pause=pause)
    # On a slow machine the test takes so long that the autoscaler adds a second copy.
    grown = deployment.scale_ups.earliest("decided_at")
    assert (grown.copies_before, grown.copies_after, grown.outcome) == (0, 1, "done")
    # Machines are told apart only if the last look was before the decision.
    assert grown.phases.get("provision", 0.0) == 0.0, "its instance was there"
    assert grown.phases["copy"] > 0
    assert not deployment.steps.filter(action="drift").exists(), "within its bounds the autoscaler decides"
    deployment_remove(deployment=deployment)
    drive(deployment, removed, pause=pause)
    assert resources(stand) == NOTHING
