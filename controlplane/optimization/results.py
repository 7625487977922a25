"""A finished job as a variant of its base model: registered whole, in one transaction, or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.db import transaction

from controlplane.catalog.models import Variant
from controlplane.catalog.services import variant_create
from controlplane.errors import ConflictError
from controlplane.optimization.artifacts import artifact_keep, checkpoint_uri, lineage_of
from controlplane.optimization.claims import Claim
from controlplane.optimization.endings import work_end
from controlplane.optimization.merging import adapter_lineage
from controlplane.optimization.models import Artifact, OptimizationJob, Status
from controlplane.optimization.workspace import OUTPUT, log_tail

_KEPT = ("digest", "bytes", "serve", "reused")


def job_keep(claim: Claim, folder: Path, result: dict[str, Any], *, heartbeat: Any) -> None:
    """Stores a job's output, and makes it a variant.

    Raises:
        RefusedError: the output is damaged.
        UnavailableError: the store does not answer; the same call may succeed later.
        ClaimLostError: another process has taken over; nothing is registered.
    """
    output = folder / OUTPUT
    artifact = artifact_keep(claim, output, heartbeat=heartbeat)
    with transaction.atomic():
        job = OptimizationJob.objects.select_for_update(of=("self",)).get(pk=claim.pk)
        Artifact.objects.filter(pk=artifact.pk).update(state=Artifact.State.STORED)
        variant = variant_register(job, checkpoint_uri(artifact))
        work_end(
            claim,
            Status.DONE,
            f"variant {variant.name} of {job.base_model.name}",
            "",
            log=log_tail(folder),
            percent=100.0,
            variant_id=variant.pk,
            result={name: result[name] for name in _KEPT if name in result},
            lineage=lineage_base(job, variant) | {"output": lineage_of(output), "host": job.host},
        )


def variant_register(job: OptimizationJob, source: str) -> Variant:
    """The one of these files, or a new one; its name has the job's number where another took it meanwhile."""
    merged = job.adapter.get("name", "")
    taken = Variant.objects.filter(
        base_model_id=job.base_model_id, optimization=None, source=source, merged_adapter=merged
    ).first()
    if taken is not None:
        return taken
    values: dict[str, Any] = {
        "base_model": job.base_model,
        "dtype": job.base_model.dtype[:20],
        "source": source,
        "quantization": _quantization(job),
        "notes": f"by {job}",
        "merged_adapter": merged,
    }
    try:
        return variant_create(name=job.variant_name, **values)
    except ConflictError:
        ending = f"-{job.pk}"
        return variant_create(name=job.variant_name[: 63 - len(ending)].rstrip(".-") + ending, **values)


def _quantization(job: OptimizationJob) -> str:
    told = str(job.recipe["quantization"])
    return "" if told == "none" else told[:40]


def lineage_base(job: OptimizationJob, variant: Variant) -> dict[str, Any]:
    """From the base to the variant: which bytes, by which recipe, on what texts, and by whom."""
    return {
        "base_model": job.base_model.name,
        "checkpoint_sha256": job.checkpoint_sha256,
        "recipe_sha256": job.recipe_sha256,
        "prompts_sha256": job.prompts_id,
        "variant": variant.name,
        "created_by": job.created_by,
        "attempts": job.attempts,
        **adapter_lineage(job),
    }
