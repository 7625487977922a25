"""Updates that SageMaker takes back, and copies that it has not got."""

from __future__ import annotations

import pytest

from controlplane.catalog.models import BaseModel
from controlplane.deployments.desired import desired_of
from controlplane.deployments.journal import step_add
from controlplane.deployments.models import Deployment
from controlplane.deployments.provisioners.base import State
from controlplane.deployments.provisioners.sagemaker import SageMakerProvisioner, provisioner
from controlplane.deployments.provisioners.sagemaker.archives import Store
from controlplane.deployments.provisioners.sagemaker.resources import Component, ObservedResources
from controlplane.deployments.provisioners.sagemaker.services import ServicesAccount
from controlplane.deployments.provisioners.sagemaker.specs import Specs
from controlplane.deployments.reconciler import deployment_reconcile
from controlplane.deployments.services import deployment_remove, deployment_retry, deployment_update
from tests.controlplane.deployments.account import NOTHING, deploy, resources
from tests.controlplane.deployments.conftest import drive, removed, serving
from tests.controlplane.deployments.test_sagemaker import credentials, pause, stand  # noqa: F401
from tests.sagemaker_local.stand import Stand

pytestmark = pytest.mark.django_db


def in_service(stand: Stand) -> None:  # noqa: F811
    stand.client("sagemaker").get_waiter("endpoint_in_service").wait(
        EndpointName="gw-tiny", WaiterConfig={"Delay": 0.1, "MaxAttempts": 300}
    )


@pytest.mark.costly("real workers behind the local SageMaker")
def test_an_endpoint_whose_update_is_taken_back_is_updated_again_when_asked_for(
    stand: Stand,  # noqa: F811
    tiny: BaseModel,
) -> None:
    deployment = drive(deploy(stand, tiny, hosting="fused", min_copies=0), serving, pause=pause)
    (old,) = resources(stand)["configs"]
    updates = deployment.steps.filter(action="update_endpoint")
    deployment_update(deployment=deployment, max_instances=2)
    for count in (1, 2):
        drive(deployment, lambda row, count=count: updates.count() == count, pause=pause)  # type: ignore[misc]
        in_service(stand)
        # As SageMaker does when new instances do not come up.
        stand.client("sagemaker").update_endpoint(EndpointName="gw-tiny", EndpointConfigName=old)
        in_service(stand)
        for _ in range(3):
            deployment_reconcile(deployment_id=deployment.pk)
        deployment.refresh_from_db()
        assert updates.count() == count, "it is not repeated by itself"
        assert "took the update of gw-tiny back (its configuration is" in deployment.reason
        assert deployment.status == Deployment.Status.DEGRADED
        assert old in resources(stand)["configs"], "what is in force stays"
        deployment_retry(deployment=deployment)
    drive(deployment, serving, pause=pause)
    assert old not in resources(stand)["configs"]
    deployment_remove(deployment=deployment)
    drive(deployment, removed, pause=pause)
    assert resources(stand) == NOTHING


def test_an_update_that_went_through_and_back_may_be_made_again(stand: Stand, tiny: BaseModel) -> None:  # noqa: F811
    deployment = deploy(stand, tiny)
    for cause in ("its model is a", "its model is b"):
        step_add(deployment, "update_inference_component", "gw-tiny", cause)
    assert desired_of(deployment).tried == {"its model is b"}


@pytest.mark.parametrize("running", [1, 2])
def test_a_deployment_is_complete_with_the_copies_that_run(
    stand: Stand,  # noqa: F811
    tiny: BaseModel,
    monkeypatch: pytest.MonkeyPatch,
    running: int,
) -> None:
    """SageMaker may report a component in service with fewer copies than desired."""
    deployment = deploy(stand, tiny, hosting="fused", min_copies=2, max_copies=2)
    account, desired = ServicesAccount.from_target(deployment.target), desired_of(deployment)
    specs = Specs.from_target(
        deployment.target, desired, Store(account, deployment.target, heartbeat=lambda: None)
    )
    told = {**specs.base, "RuntimeConfig": {"DesiredCopyCount": 2, "CurrentCopyCount": running}}
    seen = ObservedResources(
        endpoint=Component("gw-tiny", State.READY, description={"EndpointConfigName": specs.config_name}),
        base=Component("gw-tiny", State.READY, description=told),
        configs=frozenset({specs.config_name}),
        models=frozenset({specs.model_name}),
    )
    monkeypatch.setattr(provisioner, "observe_resources", lambda *_, **__: seen)
    found = SageMakerProvisioner(deployment.target, desired, account, heartbeat=lambda: None).observe()
    assert found.complete is (running == 2)
    assert found.waiting == ("" if running == 2 else "1 of 2 copies run")
