"""Deploys a job's variant by a rollout, and reverts it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from django.db import transaction

from contracts.recipes.compatibility import Stack, reasons
from contracts.recipes.model_facts import Situation
from contracts.recipes.recipe import Recipe
from controlplane.catalog.models import Variant
from controlplane.deployments.containers.images import DEFAULT_IMAGE, IMAGES
from controlplane.deployments.models import Deployment, DeploymentRollout, Target
from controlplane.deployments.rollouts.selectors import deployment_rollout_active, deployment_rollout_list
from controlplane.deployments.rollouts.services import deployment_rollout_abort, deployment_rollout_start
from controlplane.errors import ConflictError, InvalidInputError
from controlplane.optimization.events import event_add
from controlplane.optimization.models import OptimizationJob
from controlplane.optimization.serving import Served, served_how


@transaction.atomic
def job_deploy(
    *,
    job: OptimizationJob,
    deployment: Deployment,
    strategy: str = "",
    policy: Mapping[str, Any] | None = None,
) -> DeploymentRollout:
    """Start a rollout of the job's variant to a deployment. Names, adapters and aliases stay the same.

    Args:
        strategy: rollout strategy; empty for canary, or for rolling on SageMaker.

    Raises:
        InvalidInputError: the deployment has another base model, or cannot serve the variant.
        ConflictError: the job has no variant, or the deployment serves nothing or has an active rollout.
    """
    variant, deployment = _variant_of(job), _locked(deployment)
    if deployment.base_model_id != job.base_model_id:
        raise InvalidInputError(
            f"{deployment.name} serves {deployment.base_model.name}; the variant is of {job.base_model.name}",
            field="deployment",
        )
    change = {"variant": variant.name} | _served_by(deployment, variant)
    rollout = deployment_rollout_start(
        deployment=deployment, change=change, strategy=strategy or _strategy(deployment), policy=policy
    )
    event_add(job, "deploy", f"rollout {rollout.pk} of {deployment.name}")
    return rollout


@transaction.atomic
def job_take_back(*, job: OptimizationJob, deployment: Deployment) -> DeploymentRollout:
    """Revert a deployment to what it served before the job's variant.

    An active rollout is aborted; a complete one is followed by a rollout back.

    Raises:
        ConflictError: the deployment does not serve the variant, has another active rollout, or the earlier
            variant was removed.
    """
    variant, deployment = _variant_of(job), _locked(deployment)
    if deployment.base_model_id != job.base_model_id or deployment.variant != variant.name:
        raise ConflictError(f"{deployment.name} does not serve {variant.name}: there is nothing to revert")
    active = deployment_rollout_active(deployment=deployment)
    if active is not None and active.before["variant"] != variant.name:
        rollout = deployment_rollout_abort(rollout=active)
    else:
        change = _state_before(deployment, variant)
        rollout = deployment_rollout_start(
            deployment=deployment, change=change, strategy=_strategy(deployment)
        )
    event_add(job, "take_back", f"rollout {rollout.pk} of {deployment.name}")
    return rollout


def _state_before(deployment: Deployment, variant: Variant) -> dict[str, Any]:
    """Return the earlier variant and how it is served; the base itself if no rollout names one."""
    done = deployment_rollout_list(deployment=deployment).filter(
        status=DeploymentRollout.Status.COMPLETED, after__variant=variant.name
    )
    last = done.exclude(before__variant=variant.name).first()
    name = last.before["variant"] if last is not None else ""
    earlier = Variant.objects.filter(base_model_id=deployment.base_model_id, name=name).first()
    if name and earlier is None:
        raise ConflictError(
            f"variant {name}, which {deployment.name} served before, is no more: roll out another one"
        )
    return {"variant": name} | _served_by(deployment, earlier)


def _variant_of(job: OptimizationJob) -> Variant:
    if job.variant is None:
        raise ConflictError(
            f"{job} is {job.status} and has no variant in the catalogue: there is nothing to deploy"
        )
    return job.variant


def _locked(deployment: Deployment) -> Deployment:
    """Return the locked row: the environment is merged from its current value."""
    rows = Deployment.objects.select_for_update(of=("self",)).select_related("target", "base_model")
    return rows.get(pk=deployment.pk)


def _strategy(deployment: Deployment) -> DeploymentRollout.Strategy:
    on_sagemaker = deployment.target.kind == Target.Kind.SAGEMAKER
    return DeploymentRollout.Strategy.ROLLING if on_sagemaker else DeploymentRollout.Strategy.CANARY


def _served_by(deployment: Deployment, variant: Variant | None) -> dict[str, Any]:
    """Return the copies' fields with what the current variant needs replaced by the needs of `variant`.

    These are options and environment, and the image where a variant is compiled for one engine. `variant`
    None is the base itself. Values that people have set stay.
    """
    kind = deployment.target.kind
    if kind == Target.Kind.OPENAI_HTTP:
        raise InvalidInputError(
            f"the servers of {deployment.name} are not managed here: start servers with the variant, and roll"
            " out their URLs",
            field="deployment",
        )
    _check_draft_model(deployment, variant)
    _check_instances(deployment, variant)
    before = Variant.objects.filter(base_model_id=deployment.base_model_id, name=deployment.variant).first()
    old, new = _served(before, kind), _served(variant, kind)
    return {
        "options": _replaced(deployment.options, old.options, new.options),
        "environment": _replaced(deployment.environment, old.environment, new.environment),
        **_image(deployment, old.image, new.image),
    }


def _image(deployment: Deployment, old: str, new: str) -> dict[str, str]:
    """Return the change of image; empty if the deployment's own image serves the new variant."""
    if old == new or deployment.target.kind != Target.Kind.SAGEMAKER:
        return {}
    if new:
        return {"image": new, "image_family": IMAGES[new].family.value if new in IMAGES else "lmi"}
    rollouts = deployment_rollout_list(deployment=deployment).filter(after__variant=deployment.variant)
    before = rollouts.exclude(before__variant=deployment.variant).values_list("before", flat=True).first()
    fields = before or {"image": DEFAULT_IMAGE, "image_family": ""}
    return {name: fields[name] for name in ("image", "image_family")}


def _check_instances(deployment: Deployment, variant: Variant | None) -> None:
    """Raise InvalidInputError if the variant is compiled for other instances than the deployment's."""
    job: OptimizationJob | None = getattr(variant, "optimization", None)
    if job is None or deployment.target.kind != Target.Kind.SAGEMAKER:
        return
    recipe = Recipe.from_dict(job.recipe)
    built_for, has = (
        name.split(".")[1:2] for name in (recipe.target.instance_type, deployment.instance_type)
    )
    if recipe.compilation.ahead_of_time and built_for != has:
        raise InvalidInputError(
            f"the variant is compiled for {recipe.target.instance_type}, and {deployment.name} runs on"
            f" {deployment.instance_type}: compile for that type, or deploy to one of the same family",
            field="deployment",
        )


def _check_draft_model(deployment: Deployment, variant: Variant | None) -> None:
    """Raise InvalidInputError for SageMaker's own draft model where components would have to serve it."""
    job = getattr(variant, "optimization", None)
    if job is None or deployment.hosting == Deployment.Hosting.ENDPOINT:
        return
    stack = Stack(Recipe.from_dict(job.recipe), situation=Situation(inference_components=True))
    for reason in reasons(stack):
        if reason.code == "sagemaker_draft_component":
            raise InvalidInputError(reason.text, field="deployment")


def _replaced(current: Mapping[str, Any], old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in current.items() if old.get(name) != value} | dict(new)


def _served(variant: Variant | None, kind: str) -> Served:
    if variant is None:
        return Served()
    folder = Path(variant.source) if kind == Target.Kind.LOCAL and variant.source.startswith("/") else None
    return served_how(variant, folder)
