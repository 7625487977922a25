"""Creates, cancels and removes optimization jobs."""

from __future__ import annotations

import re
from typing import Any, Final

from django.db import transaction
from django.utils import timezone

from contracts.adapters.reference import AdapterRef
from contracts.recipes.recipe import OWN_DRAFT, Drafting, Engine, Recipe, canonical_digest
from controlplane.catalog.models import BaseModel, Variant
from controlplane.catalog.services import variant_remove
from controlplane.deployments.journal import actor_name
from controlplane.deployments.models import Target
from controlplane.errors import ConflictError, InvalidInputError
from controlplane.optimization.endings import lost_close
from controlplane.optimization.events import event_add
from controlplane.optimization.models import (
    OPEN,
    Artifact,
    Assessment,
    ComparisonRun,
    Machine,
    OptimizationJob,
    PromptSet,
    Status,
    Work,
)
from controlplane.optimization.queueing import work_enqueue
from controlplane.optimization.recipes import machine_of, recipe_refusals, recipe_title
from controlplane.optimization.sagemaker.checks import remote_options_check
from controlplane.optimization.sagemaker.options import RemoteOptions, target_of
from controlplane.optimization.workspace import work_forget
from controlplane.platform.audit.services import audit_record
from controlplane.platform.audit.snapshot import snapshot

_ENDED_BADLY: Final = (Status.FAILED, Status.CANCELLED)
_VARIANT: Final = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,61}[a-z0-9])?")


@transaction.atomic
def job_create(
    *,
    base_model: BaseModel,
    recipe: Recipe,
    prompts: PromptSet | None = None,
    variant: str = "",
    sagemaker: RemoteOptions | None = None,
    adapter: AdapterRef | None = None,
) -> tuple[OptimizationJob, bool]:
    """Create a job and return (job, True), or (the existing job with equal input, False).

    After a failed or cancelled job a new one is created; it resumes after the finished steps.

    Args:
        variant: the result's name in the catalogue; empty derives it from the recipe.
        sagemaker: account and options, for recipes whose target's engine is sagemaker.
        adapter: an adapter version to merge into the weights; the result serves that adapter alone.

    Raises:
        InvalidInputError: the recipe does not fit the model (with all reasons), or the name is malformed.
        ConflictError: the checkpoint's digests are not computed yet, or the variant's name is taken.
    """
    if refusals := recipe_refusals(recipe, base_model, merges=adapter is not None):
        raise InvalidInputError("; ".join(reason.text for reason in refusals), field="recipe")
    target = _account(base_model, recipe, prompts, sagemaker)
    base_model = BaseModel.objects.select_for_update().get(pk=base_model.pk)
    if base_model.digest_status != BaseModel.Digest.DONE:
        raise ConflictError(
            f"the digests of {base_model.name}'s checkpoint are {base_model.digest_status}, and name the"
            " result: wait until they are done"
        )
    identity = _identity(base_model, recipe, prompts, sagemaker, adapter)
    existing = OptimizationJob.objects.filter(identity=identity).exclude(status__in=_ENDED_BADLY).first()
    if existing is not None:
        return existing, False
    name = variant or recipe_title(recipe, adapter)
    if _VARIANT.fullmatch(name) is None:
        raise InvalidInputError(
            "variant must be 1-63 lower-case letters, digits, inner hyphens and dots", field="variant"
        )
    if variant and Variant.objects.filter(base_model=base_model, name=name).exists():
        raise ConflictError(f"base model {base_model.name} already has a variant {name!r}")
    job = OptimizationJob.objects.create(
        base_model=base_model,
        prompts=prompts,
        machine=Machine.CPU if adapter else machine_of(recipe),
        identity=identity,
        checkpoint_sha256=base_model.checkpoint_sha256,
        recipe=recipe.to_dict(),
        recipe_sha256=recipe.digest,
        engine=recipe.target.engine.value,
        variant_name=name,
        created_by=actor_name(),
        target=target,
        remote={"options": sagemaker.to_dict()} if sagemaker else {},
        adapter=adapter.to_dict() if adapter else {},
    )
    event_add(job, "asked", name)
    work_enqueue(job)
    audit_record(tenant="", action="optimization.create", target=job, after=snapshot(job))
    return job, True


@transaction.atomic
def work_cancel(*, work: Work) -> Work:
    """Cancel a work: at once while it waits, else by its process, which checks for cancels.

    Raises:
        ConflictError: the work has ended.
    """
    row = type(work)._default_manager.select_for_update().get(pk=work.pk)
    if not row.is_open:
        raise ConflictError(f"{row} is {row.status} already")
    now = timezone.now()
    remote = _in_account(row)
    held = remote or (row.lease_until is not None and row.lease_until > now)
    if row.cancel_asked_at is not None and held:
        return row
    before = {"status": row.status}
    row.cancel_asked_at = now
    if held:
        row.status = Status.CANCELLING
        row.save(update_fields=["cancel_asked_at", "status"])
        if remote:
            work_enqueue(row)
    else:
        # No live lease: end the work here. A process that still runs learns that it lost the claim.
        row.status, row.ended_at, row.reason = Status.CANCELLED, now, "cancelled"
        row.lease_owner, row.lease_until = "", None
        row.save(
            update_fields=["cancel_asked_at", "status", "ended_at", "reason", "lease_owner", "lease_until"]
        )
        lost_close(row)
    event_add(row, "cancel", "asked for")
    audit_record(
        tenant="",
        action=f"{row._meta.model_name}.cancel",
        target=row,
        before=before,
        after={"status": row.status},
    )
    return row


def _in_account(row: Work) -> bool:
    """Return True if SageMaker may have the job or a copy of its input: a poll then has to end it."""
    if not isinstance(row, (OptimizationJob, Assessment)) or row.machine != Machine.SAGEMAKER:
        return False
    return row.started_at is not None or bool(row.remote.get("told"))


@transaction.atomic
def job_remove(*, job: OptimizationJob) -> None:
    """Remove a job that has ended, and its variant; its files are removed when nothing needs them.

    Raises:
        ConflictError: it has not ended, or a deployment or an open comparison uses its variant.
    """
    row = OptimizationJob.objects.select_for_update(of=("self",)).select_related("variant").get(pk=job.pk)
    if row.is_open:
        raise ConflictError(f"{row} is {row.status}: cancel it first")
    if row.variant is not None:
        if measuring := _measuring(row.variant):
            raise ConflictError(
                f"variant {row.variant.name} is being measured by {measuring[0]}: wait, or cancel it"
            )
        variant_remove(variant=row.variant)
    audit_record(tenant="", action="optimization.remove", target=row, before=snapshot(row))
    transaction.on_commit(lambda: work_forget(job))
    # Keep the files for another hour (UNNEEDED_AFTER), for readers that have just read the URI.
    Artifact.objects.filter(pk=row.artifact_id).update(needed_at=timezone.now())
    row.delete()


def _measuring(variant: Variant) -> list[ComparisonRun]:
    """List the open comparisons that measure the variant."""
    runs = ComparisonRun.objects.filter(base_model_id=variant.base_model_id, status__in=OPEN)
    return [run for run in runs if any(arm["variant"] == variant.name for arm in run.arms)]


def _account(
    base_model: BaseModel, recipe: Recipe, prompts: PromptSet | None, options: RemoteOptions | None
) -> Target | None:
    """Return the SageMaker target that runs the recipe, or None for a local recipe."""
    if recipe.target.engine is Engine.LOCAL:
        if options is not None:
            raise InvalidInputError(
                "sagemaker is valid only for recipes whose target.engine is sagemaker", field="sagemaker"
            )
        if prompts is not None and not recipe.calibrates:
            raise InvalidInputError(
                f"prompts calibrate AWQ, and quantization is {recipe.quantization}: omit prompts",
                field="prompts",
            )
        return None
    if options is None:
        raise InvalidInputError(
            "sagemaker.target is required: the name of a target of kind sagemaker", field="sagemaker"
        )
    if prompts is not None and recipe.speculation.method is not Drafting.EAGLE:
        raise InvalidInputError(
            "SageMaker calibrates with its own texts; prompts are used only to train EAGLE heads",
            field="prompts",
        )
    if recipe.speculation.draft_model == OWN_DRAFT and not options.model:
        raise InvalidInputError(
            "sagemaker.model is required for SageMaker's draft model: name the SageMaker model that JumpStart"
            " created, which includes it",
            field="sagemaker",
        )
    target = target_of(options)
    remote_options_check(recipe, options, region=target.region, max_model_len=base_model.max_model_len)
    return target


def _identity(
    base_model: BaseModel,
    recipe: Recipe,
    prompts: PromptSet | None,
    options: RemoteOptions | None,
    adapter: AdapterRef | None,
) -> str:
    """Return the digest of everything that determines the result."""
    return identity_of(
        checkpoint=base_model.checkpoint_sha256,
        base_model=base_model.pk,
        recipe=recipe.to_dict(),
        prompts=prompts.pk if prompts else "",
        **({"sagemaker": options.to_dict()} if options else {}),
        **({"adapter": adapter.name} if adapter else {}),
    )


def identity_of(**parts: Any) -> str:
    """Return the digest that identifies a work by `parts`."""
    return canonical_digest(parts)
