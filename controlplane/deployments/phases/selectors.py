"""Reads of scale-ups, and what they let expect."""

from __future__ import annotations

from django.db.models import QuerySet

from controlplane.deployments.containers.caching import image_is_cached
from controlplane.deployments.models import Deployment, Target
from controlplane.deployments.phases.models import ScaleUp
from controlplane.deployments.phases.prediction import FEWEST, PUBLISHED, Prediction, Timings, predict

_LEARNT_FROM = 20


def scale_up_list(*, deployment: Deployment) -> QuerySet[ScaleUp]:
    """Newest first."""
    return ScaleUp.objects.filter(deployment=deployment).order_by("-decided_at", "-pk")


def timings_of(deployment: Deployment) -> Timings | None:
    """What its next scale-up is expected to take by phase; None while nothing is known of it."""
    done = scale_up_list(deployment=deployment).filter(outcome=ScaleUp.Outcome.DONE)
    rows = [row.phases for row in done[:_LEARNT_FROM] if "weights" in row.phases]
    if len(rows) >= FEWEST:
        return Timings.measured(rows, basis=f"the last {len(rows)} scale-ups of this deployment")
    if deployment.target.kind == Target.Kind.SAGEMAKER:
        return PUBLISHED
    if rows:
        return Timings.measured(rows, basis=f"{len(rows)} scale-ups of this deployment")
    return None


def predictions_of(deployment: Deployment, *, copies: int) -> list[Prediction]:
    """With the image cached and without, on instances that run and on new ones; a host has but one case."""
    timings = timings_of(deployment)
    if timings is None:
        return []
    if deployment.target.kind != Target.Kind.SAGEMAKER:
        return [predict(timings, copies=copies, cached=True)]
    each = int(deployment.compute.get("copies_per_instance") or 1)
    return [
        predict(timings, copies=copies, cached=cached, room=room, per_instance=each)
        for cached in (True, False)
        for room in (copies, 0)
    ]


def warnings_of(deployment: Deployment) -> list[str]:
    """What an operator should know of how it starts; sentences."""
    if deployment.target.kind != Target.Kind.SAGEMAKER or not deployment.image:
        return []
    if image_is_cached(deployment.image, family=deployment.image_family):
        return []
    return [
        f"SageMaker does not keep {deployment.image} on its instances: each new instance downloads it first, "
        "minutes of every scale-up. Images from the cached table's versions on start sooner."
    ]
