"""Further instance types: checks by name, requirements and costs by type, and a copy on the second type."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controlplane.catalog.models import BaseModel
from controlplane.console.deployments.instance_costs import fallback_costs
from controlplane.deployments.comparison import observed_instances
from controlplane.deployments.services import deployment_remove, deployment_update, scaling_set
from controlplane.deployments.targets.services import target_create
from controlplane.errors import InvalidInputError
from controlplane.metering.hosting.present import hosted_now
from controlplane.metering.models import HostingKind
from tests.controlplane.deployments.account import NOTHING, deploy, resources
from tests.controlplane.deployments.conftest import drive, removed, serving
from tests.controlplane.deployments.test_autoscaling import registered
from tests.controlplane.deployments.test_endpoint_hosting import settled
from tests.controlplane.deployments.test_sagemaker import credentials, pause  # noqa: F401
from tests.sagemaker_local.stand import BUCKET, REGION, Stand, run_stand

pytestmark = pytest.mark.django_db
FIRST, SECOND = "ml.g5.12xlarge", "ml.g6.12xlarge"


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    with run_stand(tmp_path_factory.mktemp("stand"), capacity={FIRST: 0}) as running:
        bucket = {"LocationConstraint": REGION}
        running.client("s3").create_bucket(Bucket=BUCKET, CreateBucketConfiguration=bucket)
        yield running


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"fallback_instance_types": [FIRST]}, "repeats ml.g5.12xlarge"),
        ({"fallback_instance_types": [SECOND, SECOND]}, "repeats ml.g6.12xlarge"),
        ({"fallback_instance_types": ["g6"]}, "such as ml.g6.12xlarge, got 'g6'"),
        ({"fallback_instance_types": ["ml.unknown.large"]}, "ml.unknown.large: the size"),
        ({"fallback_instance_types": ["ml.m5.xlarge"]}, "0 accelerators there and 1 on ml.g5.12xlarge"),
    ],
)
def test_a_type_that_cannot_hold_is_refused_by_name(
    stand: Stand, tiny: BaseModel, values: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidInputError, match=says) as caught:
        deploy(stand, tiny, **values)
    assert caught.value.field == "fallback_instance_types"


def test_other_targets_refuse_it(tiny: BaseModel) -> None:
    target_create(name="here", kind="local")
    with pytest.raises(InvalidInputError, match="valid only for targets of kind sagemaker") as caught:
        deploy(Stand(0, None, Path()), tiny, into="here", instance_type="", fallback_instance_types=[SECOND])  # type: ignore[arg-type]
    assert caught.value.field in ("fallback_instance_types", "instance_type")


def test_each_type_has_its_requirements_and_its_price(stand: Stand, tiny: BaseModel) -> None:
    deployment = deploy(stand, tiny, fallback_instance_types=["ml.g6e.2xlarge", SECOND])
    by_type = deployment.compute["by_type"]
    assert set(by_type) == {"ml.g6e.2xlarge", SECOND}
    assert by_type["ml.g6e.2xlarge"]["copies_per_instance"] == 1
    assert by_type[SECOND]["copies_per_instance"] > 1
    costs = fallback_costs(deployment)
    assert [kind for kind, _ in costs] == ["ml.g6e.2xlarge", SECOND]
    deployment_update(deployment=deployment, fallback_instance_types=[])
    deployment.refresh_from_db()
    assert "by_type" not in deployment.compute
    assert fallback_costs(deployment) == []


@pytest.mark.costly("a real worker behind the local SageMaker")
def test_a_copy_runs_on_the_second_type_while_the_first_has_no_capacity(
    stand: Stand, tiny: BaseModel
) -> None:
    """Hours of machines are counted for the type that runs."""
    deployment = deploy(
        stand, tiny, hosting="fused", endpoint="pooled", fallback_instance_types=[SECOND], min_instances=1
    )
    drive(deployment, serving, pause=pause)
    deployment.refresh_from_db()
    client = stand.client("sagemaker")
    found = client.describe_inference_component(InferenceComponentName="gw-tiny")
    assert [item["InstanceType"] for item in found["Specifications"]] == [FIRST, SECOND]
    assert found["RuntimeConfig"]["PlacementStatus"][0]["InstanceType"] == SECOND
    assert observed_instances(deployment) == {FIRST: 0, SECOND: 1}
    machines = {
        item.instance_type: item.quantity for item in hosted_now() if item.kind == HostingKind.INSTANCE
    }
    assert machines == {SECOND: 1}
    steps = deployment.steps.count()
    drive(deployment, serving, pause=pause)
    assert deployment.steps.count() == steps, "nothing differs, so nothing is changed again"
    deployment_remove(deployment=deployment)
    drive(deployment, removed, pause=pause)
    assert resources(stand) == NOTHING


@pytest.mark.costly("real workers behind the local SageMaker")
def test_an_endpoint_without_components_changes_from_one_type_to_pools_while_it_is_scaled(
    stand: Stand, tiny: BaseModel
) -> None:
    deployment = deploy(stand, tiny, hosting="endpoint", instance_type=SECOND, max_copies=2)
    scaling_set(deployment=deployment, target=4.0)
    drive(deployment, serving, pause=pause)
    deployment.refresh_from_db()
    deployment_update(deployment=deployment, instance_type=FIRST, fallback_instance_types=[SECOND])
    deployment = drive(deployment, settled, pause=pause)
    client = stand.client("sagemaker")
    (found,) = client.describe_endpoint(EndpointName="gw-tiny")["ProductionVariants"]
    assert found["InstancePools"] == [
        {"InstanceType": FIRST, "CurrentInstanceCount": 0},
        {"InstanceType": SECOND, "CurrentInstanceCount": 1},
    ]
    assert observed_instances(deployment) == {FIRST: 0, SECOND: 1}
    actions = [step.action for step in deployment.steps.order_by("pk")]
    assert "deregister_scalable_target" in actions[: actions.index("update_endpoint")]
    scaled = registered(stand.client("application-autoscaling"))
    assert scaled["targets"] == [("endpoint/gw-tiny/variant/main", 1, 2)]
    deployment_remove(deployment=deployment)
    drive(deployment, removed, pause=pause)
    assert resources(stand) == NOTHING
