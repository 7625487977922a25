"""Images of every family as components of the local SageMaker, through the same path as LMI's."""

from __future__ import annotations

import pytest

from controlplane.catalog.models import BaseModel
from controlplane.deployments.services import deployment_remove
from tests.controlplane.deployments.account import NOTHING, deploy, resources
from tests.controlplane.deployments.conftest import drive, removed, serving
from tests.controlplane.deployments.test_sagemaker import credentials, pause, stand  # noqa: F401
from tests.sagemaker_local.stand import Stand

pytestmark = pytest.mark.django_db
OWN = "123456789012.dkr.ecr.eu-central-1.amazonaws.com/graftwork-worker:1"


@pytest.mark.costly("real workers behind the local SageMaker")
@pytest.mark.parametrize(
    ("image", "family", "hosting"),
    [
        ("tgi-3.3.6", "", "fused"),
        pytest.param("triton-26.05", "", "fused", marks=pytest.mark.slow),
        pytest.param("pytorch-2.6.0", "", "fused", marks=pytest.mark.slow),
        (OWN, "worker", "on_demand"),
    ],
)
def test_it_serves_as_a_component_and_goes(
    stand: Stand,  # noqa: F811
    tiny: BaseModel,
    image: str,
    family: str,
    hosting: str,
) -> None:
    deployment = deploy(stand, tiny, hosting=hosting, image=image, image_family=family, options={})
    drive(deployment, serving, pause=pause)
    client = stand.client("sagemaker")
    (name,) = resources(stand)["models"]
    container = client.describe_model(ModelName=name)["PrimaryContainer"]
    assert container["Image"] == OWN if family else image.partition("-")[0] in container["Image"]
    assert stand.ask("gw-tiny", "gw-tiny")
    assert deployment.copies.count() == 1
    deployment_remove(deployment=deployment)
    drive(deployment, removed, pause=pause)
    assert resources(stand) == NOTHING
