"""Phases of scale-ups on SageMaker: on instances that start slowly, with real copies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from controlplane.catalog.models import BaseModel
from controlplane.deployments.models import Deployment
from controlplane.deployments.phases.forecast import forecast_of
from controlplane.deployments.services import deployment_remove, deployment_update
from tests.controlplane.deployments.account import NOTHING, deploy, resources
from tests.controlplane.deployments.conftest import drive, removed, serving
from tests.controlplane.deployments.test_sagemaker import credentials, pause
from tests.sagemaker_local.stand import BUCKET, REGION, Stand, run_stand

__all__ = ("credentials",)
pytestmark = pytest.mark.django_db
INSTANCE_SECONDS = 4


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    folder, durations = tmp_path_factory.mktemp("growths"), {"instance": INSTANCE_SECONDS}
    with run_stand(folder, durations=durations) as running:
        running.client("s3").create_bucket(
            Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION}
        )
        yield running


def whole(deployment: Deployment) -> bool:
    return serving(deployment) and deployment.observed_generation == deployment.generation


@pytest.mark.costly("real workers behind the local SageMaker")
def test_a_growth_tells_its_instance_from_its_copy(stand: Stand, tiny: BaseModel) -> None:
    """The second copy fits beside the first; the third has to wait for an instance."""
    half: dict[str, Any] = {"accelerators": 2, "cpus": 8, "memory_mb": 2048}
    deployment = deploy(stand, tiny, min_copies=1, max_copies=4, max_instances=2, compute=half)
    drive(deployment, whole, pause=pause)
    assert not deployment.scale_ups.exists(), "its first copies come with its endpoint"
    deployment_update(deployment=deployment, min_copies=2)
    drive(deployment, whole, pause=pause)
    beside = deployment.scale_ups.get()
    assert beside.outcome == "done"
    assert (beside.phases["detect"], beside.phases["provision"]) == (0.0, 0.0)
    assert beside.phases["copy"] > 0
    assert beside.cause.startswith("requested by")

    deployment_update(deployment=deployment, min_copies=3)
    assert (told := forecast_of(deployment)) is not None
    assert told.prediction.new_instances == 1
    drive(deployment, whole, pause=pause)
    beyond = deployment.scale_ups.exclude(pk=beside.pk).get()
    assert (beyond.copies_before, beyond.copies_after) == (2, 3)
    assert beyond.machines["most"] == 2
    assert beyond.phases["provision"] >= INSTANCE_SECONDS
    # One look may see the instance and its copy at once: then all of it was the instance's.
    assert beyond.ended_at is not None
    whole_time = (beyond.ended_at - beyond.decided_at).total_seconds()
    assert beyond.phases["provision"] + beyond.phases["copy"] == pytest.approx(whole_time, abs=0.01)
    assert forecast_of(deployment) is None
    deployment_remove(deployment=deployment)
    drive(deployment, removed, pause=pause)
    assert resources(stand) == NOTHING
