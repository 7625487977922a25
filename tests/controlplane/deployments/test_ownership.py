"""A deployment removes only its own resources on the local SageMaker."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from controlplane.catalog.models import BaseModel
from controlplane.deployments.desired import desired_of
from controlplane.deployments.models import Deployment, Target
from controlplane.deployments.placement.placements import placements_sync
from controlplane.deployments.provisioners import provisioner_of
from controlplane.deployments.provisioners.base import Desired, Provisioner
from controlplane.deployments.provisioners.sagemaker.account import Account
from controlplane.deployments.provisioners.sagemaker.adapters import Adapters
from controlplane.deployments.provisioners.sagemaker.archives import Store
from controlplane.deployments.provisioners.sagemaker.resources import ObservedResources
from controlplane.deployments.provisioners.sagemaker.specs import Specs
from controlplane.deployments.reconciler import deployment_reconcile
from controlplane.deployments.services import deployment_remove
from tests.controlplane.deployments.account import NOTHING, deploy, resources
from tests.controlplane.deployments.conftest import Register, drive, removed
from tests.controlplane.deployments.test_sagemaker import credentials, pause, stand  # noqa: F401
from tests.sagemaker_local.stand import ROLE, Stand

pytestmark = [pytest.mark.django_db, pytest.mark.costly("deploys at the local SageMaker")]


def provisioner(deployment: Deployment) -> Provisioner:
    return provisioner_of(deployment.target, desired_of(deployment), heartbeat=lambda: None)


def archive_put(deployment: Deployment) -> None:
    """Upload the first adapter's archive, as the step before the component's creation does."""
    placements_sync(deployment=deployment)
    account, desired = Account.from_target(deployment.target), desired_of(deployment)
    store = Store(account, deployment.target, heartbeat=lambda: None)
    names = Specs.from_target(deployment.target, desired, store).names
    step = next(Adapters(account, store, names, desired, heartbeat=lambda: None).apply(ObservedResources()))
    assert step.action == "put_archive"


def emptied(stand: Stand, deployment: Deployment) -> None:  # noqa: F811
    """Without waiting for more than its endpoint."""
    client, name = stand.client("sagemaker"), f"gw-{deployment.name}"
    client.get_waiter("endpoint_in_service").wait(
        EndpointName=name, WaiterConfig={"Delay": 0.1, "MaxAttempts": 300}
    )
    client.delete_endpoint(EndpointName=name)
    client.get_waiter("endpoint_deleted").wait(
        EndpointName=name, WaiterConfig={"Delay": 0.1, "MaxAttempts": 300}
    )
    for _ in provisioner(deployment).remove(provisioner(deployment).observe()):
        pass


@pytest.mark.parametrize("into", ["local-sm", "other-sm"])
def test_what_one_deployment_removes_no_other_one_loses(
    stand: Stand,  # noqa: F811
    tiny: BaseModel,
    register: Register,
    into: str,
) -> None:
    """Though it came after the run that removes had read its desired state, or is in another target."""
    register("plain")
    first = deploy(stand, tiny, "first")
    archive_put(first)
    removing = provisioner(first)
    second = deploy(stand, tiny, "second", into=into)
    assert deployment_reconcile(deployment_id=second.pk)
    archive_put(second)
    before = resources(stand)["files"]
    list(removing.remove(removing.observe()))
    after = resources(stand)["files"]
    assert [key for key in before if "/second/" in key] == after, "and only its own went"
    assert sum(key.endswith(".tar.gz") for key in after) == 1
    emptied(stand, second)
    assert resources(stand)["files"] == []


def test_a_shared_endpoint_goes_though_both_deployments_end_together(
    stand: Stand,  # noqa: F811
    tiny: BaseModel,
) -> None:
    """The first ends while the second's last run, which saw it there, is on its way."""
    first, second = (deploy(stand, tiny, name, hosting="fused", endpoint="both") for name in ("one", "two"))
    assert deployment_reconcile(deployment_id=first.pk)
    stand.client("sagemaker").get_waiter("endpoint_in_service").wait(
        EndpointName="both", WaiterConfig={"Delay": 0.1, "MaxAttempts": 300}
    )
    for deployment in (first, second):
        deployment_remove(deployment=deployment)

    def overlapping(target: Target, desired: Desired, *, heartbeat: Callable[[], None]) -> Provisioner:
        assert desired.endpoint_is_shared
        drive(first, removed)
        return provisioner_of(target, desired, heartbeat=heartbeat)

    deployment_reconcile(deployment_id=second.pk, make=overlapping)
    assert resources(stand)["endpoints"] == ["both"]
    drive(second, removed, pause=pause)
    assert resources(stand) == NOTHING


def test_what_is_only_named_like_ours_stays(stand: Stand, tiny: BaseModel) -> None:  # noqa: F811
    client = stand.client("sagemaker")
    stand.model("gw-one-20251101")
    client.create_endpoint_config(
        EndpointConfigName="chat-20251101",
        ExecutionRoleArn=ROLE,
        ProductionVariants=[
            {"VariantName": "main", "InstanceType": "ml.g5.12xlarge", "InitialInstanceCount": 1}
        ],
    )
    deployment = deploy(stand, tiny, "one", hosting="fused", endpoint="chat")
    assert deployment_reconcile(deployment_id=deployment.pk)
    assert len(resources(stand)["models"]) == len(resources(stand)["configs"]) == 2
    deployment_remove(deployment=deployment)
    drive(deployment, removed, pause=pause)
    assert resources(stand) == NOTHING | {"models": ["gw-one-20251101"], "configs": ["chat-20251101"]}
    client.delete_model(ModelName="gw-one-20251101")
    client.delete_endpoint_config(EndpointConfigName="chat-20251101")


def test_another_installation_neither_adopts_nor_removes(stand: Stand, tiny: BaseModel) -> None:  # noqa: F811
    """A second installation has a target of the same account and a deployment of the same name."""
    deployment = deploy(stand, tiny, "one", hosting="fused", endpoint="chat")
    assert deployment_reconcile(deployment_id=deployment.pk)
    found, owner = resources(stand), deployment.target.owner
    Target.objects.update(owner="another")
    deployment_reconcile(deployment_id=deployment.pk)
    deployment.refresh_from_db()
    assert deployment.status == Deployment.Status.FAILED
    assert "was not made by this installation" in deployment.reason
    assert resources(stand) == found
    Target.objects.update(owner=owner)
    deployment_remove(deployment=deployment)
    drive(deployment, removed, pause=pause)
    assert resources(stand) == NOTHING


def test_a_model_of_exactly_our_name_is_not_deployed(stand: Stand, tiny: BaseModel) -> None:  # noqa: F811
    deployment = deploy(stand, tiny, "one", hosting="fused")
    assert deployment_reconcile(deployment_id=deployment.pk)
    client, (name,) = stand.client("sagemaker"), resources(stand)["models"]
    client.delete_model(ModelName=name)
    stand.model(name)
    deployment_reconcile(deployment_id=deployment.pk)
    deployment.refresh_from_db()
    assert f"{name} exists in this account and was not made by this installation" in deployment.reason
    deployment_remove(deployment=deployment)
    drive(deployment, removed, pause=pause)
    assert resources(stand) == NOTHING | {"models": [name]}
    client.delete_model(ModelName=name)
