"""Jobs in an account of the local SageMaker, and polls of their state."""

from __future__ import annotations

from typing import Any

from controlplane.catalog.models import BaseModel
from controlplane.optimization.models import OptimizationJob
from controlplane.optimization.recipes import recipe_read
from controlplane.optimization.sagemaker.optimization_poll import optimization_poll
from controlplane.optimization.sagemaker.options import RemoteOptions
from controlplane.optimization.services import job_create
from tests.sagemaker_local.stand import BUCKET, Stand
from tests.waiting import eventually

AWQ: dict[str, Any] = {
    "quantization": "awq_int4_g128",
    "target": {"engine": "sagemaker", "hardware": "sm86", "instance_type": "ml.g5.12xlarge"},
}


def create_job(base: BaseModel, recipe: dict[str, Any] = AWQ, **options: Any) -> OptimizationJob:
    job, _ = job_create(
        base_model=base,
        recipe=recipe_read(recipe),
        sagemaker=RemoteOptions.read({"target": "aws", **options}),
    )
    return job


def advance(job: OptimizationJob) -> OptimizationJob:
    optimization_poll(pk=job.pk)
    job.refresh_from_db()
    return job


def until(job: OptimizationJob, status: str) -> OptimizationJob:
    """Poll until the job has the status: the local SageMaker copies in a background thread."""
    eventually(
        lambda: advance(job).status == status, message=lambda: f"{job.status} {job.phase} {job.reason}"
    )
    return job


def keys(stand: Stand) -> list[str]:
    listed = stand.client("s3").list_objects_v2(Bucket=BUCKET).get("Contents", ())
    return sorted(item["Key"] for item in listed)
