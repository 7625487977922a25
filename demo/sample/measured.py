"""A deployment on this host, scaled to zero, and an int8 checkpoint that is compared with the original."""

from __future__ import annotations

import logging
import time
from typing import Final

from contracts.recipes.recipe import Quantization, Recipe
from controlplane.catalog.models import BaseModel
from controlplane.deployments.models import Deployment, Target
from controlplane.deployments.services import deployment_create
from controlplane.deployments.targets.services import target_create
from controlplane.optimization.comparisons import comparison_create
from controlplane.optimization.models import ComparisonRun, OptimizationJob, Status, Work
from controlplane.optimization.services import job_create

logger = logging.getLogger(__name__)

TARGET: Final = "this-host-sample"
DEPLOYMENT: Final = "spare-capacity-sample"
VARIANT: Final = "int8-sample"
COMPARISON: Final = "int8 against the original (sample)"
_ENDED_BADLY: Final = (Status.FAILED, Status.CANCELLED)
_WORK_S: Final = 900.0


def deployment_add(*, base_model: BaseModel) -> None:
    """Add a deployment without copies, which costs nothing until it is scaled up."""
    if Deployment.objects.filter(name=DEPLOYMENT, removed_at=None).exists():
        return
    target = Target.objects.filter(name=TARGET).first() or target_create(name=TARGET, kind="local")
    deployment_create(name=DEPLOYMENT, target=target, base_model=base_model, min_copies=0, max_copies=1)


def optimization_add(*, base_model: BaseModel) -> None:
    """Quantize the base model to int8, and measure the result against the original, on this machine."""
    base_model = _digested(base_model)
    job = OptimizationJob.objects.filter(variant_name=VARIANT).exclude(status__in=_ENDED_BADLY).first()
    if job is None:
        job, _ = job_create(
            base_model=base_model, recipe=Recipe(quantization=Quantization.INT8), variant=VARIANT
        )
    _wait_ended(job)
    if ComparisonRun.objects.filter(name=COMPARISON).exclude(status__in=_ENDED_BADLY).exists():
        return
    comparison, _ = comparison_create(
        base_model=base_model,
        arms=[{"name": "original", "variant": ""}, {"name": "int8", "variant": VARIANT}],
        name=COMPARISON,
        settings={
            "load": {"concurrency": [4], "rounds": 10, "warm_up": 1, "requests": 4, "max_tokens": 24},
            "quality": {
                "most_texts": 12,
                "text_tokens": 256,
                "prompts": 4,
                "answer_tokens": 48,
                "samples": 4,
            },
        },
    )
    _wait_ended(comparison)


def _digested(base_model: BaseModel) -> BaseModel:
    deadline = time.monotonic() + _WORK_S
    while base_model.digest_status != BaseModel.Digest.DONE:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the digests of {base_model.name} are still {base_model.digest_status}")
        time.sleep(0.5)
        base_model.refresh_from_db()
    return base_model


def _wait_ended(work: Work) -> None:
    """Wait until Celery has run it. Raises RuntimeError if it did not succeed."""
    deadline = time.monotonic() + _WORK_S
    while work.is_open and time.monotonic() < deadline:
        time.sleep(0.5)
        work.refresh_from_db()
    if work.status != Status.DONE:
        raise RuntimeError(f"{work} is {work.status}: {work.reason}")
