"""Uploads to the store that do not end well, and adapters that cannot be uploaded."""

from __future__ import annotations

import io
from typing import Any

import pytest

from controlplane.artifacts.store import artifact_store
from controlplane.catalog.models import BaseModel
from controlplane.deployments.desired import desired_of
from controlplane.deployments.leases import LeaseLostError
from controlplane.deployments.models import Target
from controlplane.deployments.placement.placements import placements_sync
from controlplane.deployments.provisioners.base import State
from controlplane.deployments.provisioners.sagemaker.account import Account
from controlplane.deployments.provisioners.sagemaker.adapters import Adapters
from controlplane.deployments.provisioners.sagemaker.archives import Store
from controlplane.deployments.provisioners.sagemaker.resources import ObservedResources
from controlplane.deployments.provisioners.sagemaker.specs import Specs
from controlplane.deployments.services import deployment_remove
from controlplane.deployments.targets.services import target_create
from tests.controlplane.deployments.account import NOTHING, deploy, resources
from tests.controlplane.deployments.conftest import Register, drive, removed, serving
from tests.controlplane.deployments.test_sagemaker import credentials, pause, stand  # noqa: F401
from tests.sagemaker_local.stand import BUCKET, REGION, ROLE, Stand

pytestmark = pytest.mark.django_db


def left_open(s3: Any, target: Target, key: str) -> None:
    """An upload as a killed process leaves it."""
    key = f"graft/{target.owner}/{key}"
    begun = s3.create_multipart_upload(Bucket=BUCKET, Key=key)
    s3.upload_part(Bucket=BUCKET, Key=key, UploadId=begun["UploadId"], PartNumber=1, Body=b"part")


def test_uploads_that_were_not_ended_are_given_up(stand: Stand, tiny: BaseModel) -> None:  # noqa: F811
    deployment = deploy(stand, tiny)
    s3, target = stand.client("s3"), deployment.target
    left_open(s3, target, "adapters/tiny/one.tar.gz")
    left_open(s3, target, "checkpoints/tiny/0123/model.safetensors")
    store = Store(Account.from_target(target), target, heartbeat=lambda: None)
    store.put("adapters/tiny/one.tar.gz", io.BytesIO(b"whole"))
    (other,) = s3.list_multipart_uploads(Bucket=BUCKET)["Uploads"]
    assert other["Key"].endswith("model.safetensors"), "that one may still be put"
    deployment_remove(deployment=deployment)
    drive(deployment, removed, pause=pause)
    assert "Uploads" not in s3.list_multipart_uploads(Bucket=BUCKET)
    assert resources(stand)["files"] == []


@pytest.mark.costly("real workers behind the local SageMaker")
def test_whose_bucket_is_gone_is_told_and_can_be_removed(
    stand: Stand,  # noqa: F811
    tiny: BaseModel,
    register: Register,
) -> None:
    register("plain")
    s3 = stand.client("s3")
    s3.create_bucket(Bucket="short-lived", CreateBucketConfiguration={"LocationConstraint": REGION})
    target_create(
        name="elsewhere",
        kind="sagemaker",
        region=REGION,
        endpoint_url=stand.url,
        role_arn=ROLE,
        store="s3://short-lived/graft",
    )
    deployment = drive(deploy(stand, tiny, into="elsewhere"), serving, pause=pause)
    kept = s3.list_objects_v2(Bucket="short-lived")["Contents"]
    s3.delete_objects(Bucket="short-lived", Delete={"Objects": [{"Key": item["Key"]} for item in kept]})
    s3.delete_bucket(Bucket="short-lived")
    drive(deployment, lambda row: not serving(row), pause=pause, rounds=5)
    assert "The bucket of the target's store does not exist: create" in deployment.reason
    deployment_remove(deployment=deployment)
    drive(deployment, removed, pause=pause)
    assert resources(stand) == NOTHING


def test_who_lost_the_lease_stops_in_the_middle_of_a_file(stand: Stand, tiny: BaseModel) -> None:  # noqa: F811
    target, heartbeats = deploy(stand, tiny).target, 0

    def lose_lease() -> None:
        nonlocal heartbeats
        heartbeats += 1
        raise LeaseLostError

    with pytest.raises(LeaseLostError):
        Store(Account.from_target(target), target, heartbeat=lose_lease).put(
            "adapters/tiny/x", io.BytesIO(b"x" * (1 << 20))
        )
    assert heartbeats > 0
    assert resources(stand)["files"] == []


def test_an_adapter_whose_files_are_gone_holds_up_no_other(
    stand: Stand,  # noqa: F811
    tiny: BaseModel,
    register: Register,
) -> None:
    lost, kept = register("plain", "a-lost"), register("all", "kept")
    artifact_store().remove(f"adapters/{lost.sha256}")
    deployment = deploy(stand, tiny)
    placements_sync(deployment=deployment)
    account, desired = Account.from_target(deployment.target), desired_of(deployment)
    store = Store(account, deployment.target, heartbeat=lambda: None)
    names = Specs.from_target(deployment.target, desired, store).names
    adapters = Adapters(account, store, names, desired, heartbeat=lambda: None)
    refused, *others = adapters.apply(ObservedResources())
    assert "no longer in the artifact store: register that version again" in refused.failed
    # Its component waits for the endpoint, which this account has not.
    assert [(step.action, step.failed) for step in others] == [("put_archive", "")]
    assert others[0].cause.startswith(kept.ref().name)
    assert adapters.placed(ObservedResources())[lost.engine_name].state is State.FAILED
    assert resources(stand)["files"] == [
        f"graft/{deployment.target.owner}/adapters/tiny/{kept.sha256}.tar.gz"
    ]
    store.remove(store.keys("adapters/tiny"))


@pytest.mark.parametrize("gated", [False, True])
def test_a_gated_checkpoint_is_copied_since_containers_get_no_token(
    stand: Stand,  # noqa: F811
    tiny: BaseModel,
    gated: bool,
) -> None:
    deployment = deploy(stand, tiny)
    tiny.source, tiny.checkpoint_sha256 = "hf://acme/tiny@" + "a" * 40, "b" * 64
    tiny.sealed_hub_token = "sealed" if gated else ""
    tiny.save()
    deployment.base_model.refresh_from_db()
    account, desired = Account.from_target(deployment.target), desired_of(deployment)
    specs = Specs.from_target(
        deployment.target, desired, Store(account, deployment.target, heartbeat=lambda: None)
    )
    told = specs.model["PrimaryContainer"]["Environment"]
    copy = f"s3://{BUCKET}/graft/{deployment.target.owner}/checkpoints/tiny/{'b' * 12}/"
    assert told["OPTION_MODEL_ID"] == (copy if gated else "acme/tiny")
    assert told.get("OPTION_REVISION", "") == ("" if gated else "a" * 40)
    assert "sealed" not in str(specs)
