"""Reads of scale-ups, and what they let expect."""

from __future__ import annotations

from dataclasses import replace

from django.db.models import QuerySet

from controlplane.deployments.containers.caching import image_is_cached
from controlplane.deployments.models import Deployment, Target
from controlplane.deployments.phases.models import ScaleUp
from controlplane.deployments.phases.prediction import (
    FEWEST,
    PUBLISHED,
    Prediction,
    Timings,
    predict,
    predict_growth,
)

_LEARNT_FROM = 20


def scale_up_list(*, deployment: Deployment) -> QuerySet[ScaleUp]:
    """Newest first."""
    return ScaleUp.objects.filter(deployment=deployment).order_by("-decided_at", "-pk")


def predictions_of(deployment: Deployment, *, copies: int) -> list[Prediction]:
    """With the image cached and without, on instances that run and on new ones; a host has but one case."""
    if deployment.target.kind == Target.Kind.SAGEMAKER:
        return [
            _at_sagemaker(deployment, copies=copies, cached=cached, room=room)
            for cached in (True, False)
            for room in (copies, 0)
        ]
    timings = _timings_of(deployment)
    if timings is None:
        return []
    # Its process takes the place of an instance, and no instance comes.
    return [replace(predict(timings, copies=copies, cached=True), new_instances=0)]


def _timings_of(deployment: Deployment) -> Timings | None:
    """What the next growth on a host is expected to take by phase; None while nothing is known of it."""
    rows = [phases for phases in _learnt_from(deployment) if "weights" in phases]
    if len(rows) >= FEWEST:
        return Timings.measured(rows, basis=f"the last {len(rows)} scale-ups of this deployment")
    return Timings.measured(rows, basis=f"{len(rows)} scale-ups of this deployment") if rows else None


def _at_sagemaker(deployment: Deployment, *, copies: int, cached: bool, room: int) -> Prediction:
    """By the deployment's own growths of that kind, if there were enough; else by AWS's published means.

    Its image is cached or is not, so of the other kind it has none. Growths of another image say nothing.
    """
    each = int(deployment.compute.get("copies_per_instance") or 1)
    told = predict(PUBLISHED, copies=copies, cached=cached, room=room, per_instance=each)
    own = [
        phases
        for phases in _learnt_from(deployment, image=deployment.image)
        if "provision" in phases and bool(phases["provision"]) == bool(told.new_instances)
    ]
    if len(own) < FEWEST or image_is_cached(deployment.image, family=deployment.image_family) != cached:
        return told
    where = "on new instances" if told.new_instances else "on running instances"
    basis = f"the last {len(own)} scale-ups of this deployment {where}"
    found = predict_growth(own, copies=copies, new_instances=told.new_instances, basis=basis)
    return replace(found, cached=cached)


def _learnt_from(deployment: Deployment, **values: str) -> list[dict[str, float]]:
    done = scale_up_list(deployment=deployment).filter(outcome=ScaleUp.Outcome.DONE, **values)
    return [row.phases for row in done[:_LEARNT_FROM]]


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
