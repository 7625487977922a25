"""Records of a SageMaker job: its machine time, and its result as an artifact and a variant."""

from __future__ import annotations

from typing import Any, Final

from django.db import transaction
from django.utils import timezone

from contracts.recipes.recipe import Recipe
from controlplane.catalog.services import variant_create
from controlplane.errors import UnavailableError
from controlplane.optimization.artifacts import checkpoint_uri
from controlplane.optimization.claims import Claim
from controlplane.optimization.endings import work_end
from controlplane.optimization.models import Artifact, Attempt, OptimizationJob, Status
from controlplane.optimization.outputs import Output
from controlplane.optimization.results import lineage_base, variant_register

ENDED: Final = ("COMPLETED", "FAILED", "STOPPED")


def remote_attempt(job: OptimizationJob, seen: dict[str, Any]) -> None:
    """Metered time of SageMaker's machine, by SageMaker's clock."""
    started, ended = seen.get("OptimizationStartTime"), seen.get("OptimizationEndTime")
    if started is None:
        return
    if ended is None and seen["OptimizationJobStatus"] in ENDED:
        # SageMaker leaves the end out at times; nothing changes a job after it.
        ended = max(started, seen.get("LastModifiedTime") or timezone.now())
    row, _ = Attempt.objects.get_or_create(
        subject=f"{job.KIND}-{job.pk}.1",
        defaults={
            "base_model": job.base_model.name,
            "machine": job.machine,
            "host": seen["OptimizationJobName"],
            "instance_type": seen["DeploymentInstanceType"],
            "started_at": started,
            "seen_at": started,
        },
    )
    if row.ended_at is None:
        Attempt.objects.filter(pk=row.pk).update(seen_at=ended or timezone.now(), ended_at=ended)


def remote_keep(claim: Claim, output: Output, told: dict[str, Any]) -> bool:
    """Makes the output a variant; False where the same files were kept elsewhere before, and serve instead.

    Raises:
        UnavailableError: the same files are just being stored or removed.
        ClaimLostError: another process has taken over; nothing is registered.
    """
    with transaction.atomic():
        job = OptimizationJob.objects.select_for_update(of=("self",)).get(pk=claim.pk)
        artifact, made = Artifact.objects.select_for_update(of=("self",)).get_or_create(
            pk=output.digest,
            defaults={
                "uri": output.uri,
                "size": output.size,
                "files": output.files,
                "target": job.target,
                "state": Artifact.State.STORED,
            },
        )
        if artifact.state != Artifact.State.STORED:
            raise UnavailableError("the same files are being stored or removed")
        Artifact.objects.filter(pk=artifact.pk).update(needed_at=timezone.now())
        claim.write(artifact_id=artifact.pk)
        variant = variant_register(job, checkpoint_uri(artifact))
        work_end(
            claim,
            Status.DONE,
            f"variant {variant.name} of {job.base_model.name}",
            "",
            percent=100.0,
            variant_id=variant.pk,
            result={
                "digest": output.digest,
                "bytes": output.size,
                "serve": _serve(job),
                "image": told.get("image", ""),
                **_draft(told),
            },
            lineage=lineage_base(job, variant) | {"output": _lineage(output, told)},
        )
    return made or artifact.uri == output.uri


def remote_serve(claim: Claim, source: str, told: dict[str, Any]) -> None:
    """Make a variant of the input itself: the recipe only changes how it is served.

    Raises ClaimLostError: another process has taken over; nothing is registered.
    """
    with transaction.atomic():
        job = OptimizationJob.objects.select_for_update(of=("self",)).get(pk=claim.pk)
        variant = variant_create(
            base_model=job.base_model,
            name=job.variant_name,
            dtype=job.base_model.dtype[:20],
            source=source,
            notes=f"by {job}",
        )
        work_end(
            claim,
            Status.DONE,
            f"variant {variant.name} of {job.base_model.name}: no job was needed, since the recipe changes"
            " only how the model is served",
            "",
            percent=100.0,
            variant_id=variant.pk,
            result={"serve": _serve(job), **_draft(told)},
            lineage=lineage_base(job, variant) | {"output": {"engine": "sagemaker", "uri": source}},
        )


def _serve(job: OptimizationJob) -> dict[str, Any]:
    return {"flags": Recipe.from_dict(job.recipe).worker_flags(), "environment": {}}


def _draft(told: dict[str, Any]) -> dict[str, Any]:
    """Return the location of SageMaker's draft model, and that its license is accepted."""
    return {name: told[name] for name in ("draft_model", "accept_eula") if name in told}


def _lineage(output: Output, told: dict[str, Any]) -> dict[str, Any]:
    return {
        "engine": "sagemaker",
        "job": told.get("arn", told["name"]),
        "request": told["request"],
        "uri": output.uri,
        "digest": output.digest,
        "image": told.get("image", ""),
    }
