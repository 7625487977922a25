"""An account on the local SageMaker: deployments in it, and the resources that it holds."""

from __future__ import annotations

from typing import Any

from controlplane.catalog.models import BaseModel
from controlplane.deployments.models import Deployment, Target
from controlplane.deployments.services import deployment_create
from controlplane.deployments.targets.services import target_create
from tests.sagemaker_local.stand import BUCKET, REGION, ROLE, SMALL, Stand

INSTANCE = "ml.g5.12xlarge"


def deploy(
    stand: Stand, base: BaseModel, name: str = "tiny", *, into: str = "local-sm", **values: Any
) -> Deployment:
    target = Target.objects.filter(name=into).first() or target_create(
        name=into,
        kind="sagemaker",
        region=REGION,
        endpoint_url=stand.url,
        role_arn=ROLE,
        store=f"s3://{BUCKET}/graft",
    )
    wanted: dict[str, Any] = {
        "instance_type": INSTANCE,
        "environment": SMALL,
        "options": {"max_rolling_batch_size": 4},
    } | values
    return deployment_create(name=name, target=target, base_model=base, **wanted)


def resources(stand: Stand) -> dict[str, list[str]]:
    """All that is in the account."""
    client = stand.client("sagemaker")
    listed = stand.client("s3").list_objects_v2(Bucket=BUCKET).get("Contents", ())
    components = client.get_paginator("list_inference_components").paginate()
    return {
        "models": sorted(item["ModelName"] for item in client.list_models()["Models"]),
        "configs": sorted(
            item["EndpointConfigName"] for item in client.list_endpoint_configs()["EndpointConfigs"]
        ),
        "endpoints": sorted(item["EndpointName"] for item in client.list_endpoints()["Endpoints"]),
        "components": sorted(
            item["InferenceComponentName"] for page in components for item in page["InferenceComponents"]
        ),
        "files": sorted(item["Key"] for item in listed),
    }


NOTHING: dict[str, list[str]] = {"models": [], "configs": [], "endpoints": [], "components": [], "files": []}
