"""AI benchmark and recommendation jobs that people ask SageMaker for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from django.db import transaction

from contracts.adapters.reference import AdapterRef, EngineName
from controlplane.catalog.models import BaseModel
from controlplane.deployments.journal import actor_name
from controlplane.deployments.models import Deployment, Target
from controlplane.errors import ConflictError, InvalidInputError
from controlplane.optimization.adapter_versions import adapter_version
from controlplane.optimization.events import event_add
from controlplane.optimization.models import Assessment, Machine, PromptSet
from controlplane.optimization.queueing import work_enqueue
from controlplane.optimization.sagemaker.options import RemoteOptions, target_of
from controlplane.platform.audit.services import audit_record
from controlplane.platform.audit.snapshot import snapshot

METRICS: Final = tuple(Assessment.Metric.values)
FRAMEWORKS: Final = ("LMI", "VLLM")
MOST_ADAPTERS: Final = 10
MOST_TYPES: Final = 3
Subject = Assessment.Subject


@transaction.atomic
def benchmark_create(
    *, deployment: Deployment, workload: str, prompts: PromptSet | None = None, name: str = ""
) -> Assessment:
    """A benchmark of a deployment's endpoint on SageMaker.

    Args:
        workload: SageMaker's own description of the load, as its AI workload configurations have it.
        prompts: what is asked; put into the target's store as the data of the workload.

    Raises:
        InvalidInputError: the deployment is elsewhere, or there is no workload.
    """
    if deployment.target.kind != Target.Kind.SAGEMAKER:
        raise _wrong(f"{deployment.name} is not on SageMaker: compare its variants instead", "deployment")
    endpoint = deployment.endpoint or f"gw-{deployment.name}"
    options = {
        "workload": _workload(workload),
        "endpoint": endpoint,
        "component": "" if deployment.hosting == Deployment.Hosting.ENDPOINT else f"gw-{deployment.name}",
        "deployment": deployment.name,
    }
    return _create(Subject.BENCHMARK, deployment.base_model, deployment.target, options, prompts, name)


@transaction.atomic
def recommendation_create(
    *,
    base_model: BaseModel,
    workload: str,
    values: Mapping[str, Any],
    prompts: PromptSet | None = None,
    name: str = "",
) -> Assessment:
    """SageMaker's advice on instance types and settings for a base.

    Args:
        values: `target`; `metric`; `weights`, an s3:// prefix, where the base's source is none;
            `instance_types`, `framework`, `optimize` and `adapters`, names of ready versions
            (`tenant/adapter@v3` or engine names), whose files are copied into the target's store.

    Raises:
        InvalidInputError: naming what is malformed.
        NotFoundError: the base model has no such adapter version.
    """
    target = target_of(RemoteOptions.read({"target": values["target"], "weights": values.get("weights", "")}))
    weights = values.get("weights") or base_model.source
    if not weights.startswith("s3://"):
        raise _wrong(f"{base_model.name} lies in {weights}: SageMaker reads s3://, give weights", "weights")
    metric, framework = values["metric"], values.get("framework", "")
    if metric not in METRICS or framework not in ("", *FRAMEWORKS):
        raise _wrong(
            f"metric must be one of {', '.join(METRICS)}, framework one of {', '.join(FRAMEWORKS)}", "metric"
        )
    types = list(values.get("instance_types", ()))
    if len(types) > MOST_TYPES:
        raise _wrong(f"a job takes at most {MOST_TYPES} instance types", "instance_types")
    options = {
        "workload": _workload(workload),
        "weights": weights,
        "metric": metric,
        "framework": framework,
        "instance_types": types,
        "optimize": bool(values.get("optimize")),
        "adapters": _adapters(base_model, list(values.get("adapters", ()))),
    }
    return _create(Subject.RECOMMENDATION, base_model, target, options, prompts, name)


@transaction.atomic
def assessment_remove(*, assessment: Assessment) -> None:
    """Forgets one that has ended; what SageMaker wrote stays in the target's store.

    Raises:
        ConflictError: it has not.
    """
    row = Assessment.objects.select_for_update().get(pk=assessment.pk)
    if row.is_open:
        raise ConflictError(f"{row} is {row.status}: cancel it first")
    audit_record(tenant="", action="assessment.remove", target=row, before=snapshot(row))
    row.delete()


def _create(
    subject: Assessment.Subject,
    base_model: BaseModel,
    target: Target,
    options: Mapping[str, Any],
    prompts: PromptSet | None,
    name: str,
) -> Assessment:
    made = Assessment.objects.create(
        subject=subject,
        base_model=base_model,
        target=target,
        prompts=prompts,
        name=name[:100],
        machine=Machine.SAGEMAKER,
        remote={"options": options},
        created_by=actor_name(),
    )
    event_add(made, "asked", name)
    work_enqueue(made)
    audit_record(tenant="", action="assessment.create", target=made, after=snapshot(made))
    return made


def _adapters(base_model: BaseModel, names: list[str]) -> list[dict[str, str]]:
    """Return the adapters of a request; SageMaker calls a deployed one's component by `id`."""
    if len(names) > MOST_ADAPTERS:
        raise _wrong(f"a job takes at most {MOST_ADAPTERS} adapters", "adapters")
    found: list[dict[str, str]] = []
    for name in names:
        ref = adapter_version(base_model=base_model, name=name, field="adapters")
        if ref.name in {item["engine_name"] for item in found}:
            raise _wrong(f"{name} is listed twice", "adapters")
        taken = {item["id"] for item in found}
        found.append({"id": _adapter_id(ref, taken), "engine_name": ref.name, "sha256": ref.sha256})
    return found


def _adapter_id(ref: AdapterRef, taken: set[str]) -> str:
    """Return a name such as `support-v3`, or with a number if adapters of several tenants have it."""
    parts = EngineName.parse(ref.name)
    name = f"{parts.adapter[:40].rstrip('-')}-v{parts.version}"
    numbered = (f"{name}-{number}" for number in range(2, MOST_ADAPTERS + 1))
    return next(item for item in (name, *numbered) if item not in taken)


def _workload(text: str) -> str:
    if not text.strip() or "\0" in text:
        raise _wrong("describe the load as SageMaker's AI workload configurations have it", "workload")
    return text


def _wrong(message: str, field: str) -> InvalidInputError:
    return InvalidInputError(message, field=field)
