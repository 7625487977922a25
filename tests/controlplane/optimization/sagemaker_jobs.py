"""Jobs that are asked for in an account of the local SageMaker's, and looks at them."""

from __future__ import annotations

from typing import Any

from controlplane.catalog.models import BaseModel
from controlplane.optimization.models import OptimizationJob
from controlplane.optimization.recipes import recipe_read
from controlplane.optimization.sagemaker.options import RemoteOptions
from controlplane.optimization.sagemaker.turn import remote_turn
from controlplane.optimization.services import job_create
from tests.sagemaker_local.stand import BUCKET, Stand
from tests.waiting import eventually

AWQ: dict[str, Any] = {
    "quantization": "awq_int4_g128",
    "target": {"engine": "sagemaker", "hardware": "sm86", "instance_type": "ml.g5.12xlarge"},
}


def asked(base: BaseModel, recipe: dict[str, Any] = AWQ, **options: Any) -> OptimizationJob:
    job, _ = job_create(
        base_model=base,
        recipe=recipe_read(recipe),
        sagemaker=RemoteOptions.read({"target": "aws", **options}),
    )
    return job


def look(job: OptimizationJob) -> OptimizationJob:
    remote_turn(pk=job.pk)
    job.refresh_from_db()
    return job


def until(job: OptimizationJob, status: str) -> OptimizationJob:
    """Looks until it is so: the local SageMaker copies in a thread of its own."""
    eventually(lambda: look(job).status == status, message=lambda: (job.status, job.phase, job.reason))
    return job


def keys(stand: Stand) -> list[str]:
    listed = stand.client("s3").list_objects_v2(Bucket=BUCKET).get("Contents", ())
    return sorted(item["Key"] for item in listed)
