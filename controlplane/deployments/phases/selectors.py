"""Queries for scale-ups and their predictions."""

from __future__ import annotations

from dataclasses import replace

from django.db.models import QuerySet

from controlplane.deployments.containers.caching import image_is_cached
from controlplane.deployments.models import Deployment, ScaleUp, Target
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
    """Return a deployment's scale-ups, newest first."""
    return ScaleUp.objects.filter(deployment=deployment).order_by("-decided_at", "-pk")


def predictions_of(deployment: Deployment, *, copies: int) -> list[Prediction]:
    """Return one prediction per case: image cached or not, on running or on new instances.

    A host has a single case, and none before anything was measured.
    """
    if deployment.target.kind == Target.Kind.SAGEMAKER:
        return [
            _at_sagemaker(deployment, copies=copies, cached=cached, room=room)
            for cached in (True, False)
            for room in (copies, 0)
        ]
    timings = _timings_of(deployment)
    if timings is None:
        return []
    # On a host a process takes the place of an instance, so no instance is added.
    return [replace(predict(timings, copies=copies, cached=True), new_instances=0)]


def _timings_of(deployment: Deployment) -> Timings | None:
    """Return the expected timings of a host's next scale-up; None without measurements."""
    rows = [phases for phases in _learnt_from(deployment) if "weights" in phases]
    if len(rows) >= FEWEST:
        return Timings.measured(rows, basis=f"the last {len(rows)} scale-ups of this deployment")
    return Timings.measured(rows, basis=f"{len(rows)} scale-ups of this deployment") if rows else None


def _at_sagemaker(deployment: Deployment, *, copies: int, cached: bool, room: int) -> Prediction:
    """Predict from the deployment's own scale-ups of that kind, or from AWS's means if there are too few.

    An image is either cached or not, so only one kind has own scale-ups. Those of another image do not count.
    """
    each = int(deployment.compute.get("copies_per_instance") or 1)
    published = predict(PUBLISHED, copies=copies, cached=cached, room=room, per_instance=each)
    own = [
        phases
        for phases in _learnt_from(deployment, image=deployment.image)
        if "provision" in phases and bool(phases["provision"]) == bool(published.new_instances)
    ]
    if len(own) < FEWEST or image_is_cached(deployment.image, family=deployment.image_family) != cached:
        return published
    where = "on new instances" if published.new_instances else "on running instances"
    basis = f"the last {len(own)} scale-ups of this deployment {where}"
    found = predict_growth(own, copies=copies, new_instances=published.new_instances, basis=basis)
    return replace(found, cached=cached)


def _learnt_from(deployment: Deployment, **values: str) -> list[dict[str, float]]:
    done = scale_up_list(deployment=deployment).filter(outcome=ScaleUp.Outcome.DONE, **values)
    return [row.phases for row in done[:_LEARNT_FROM]]


def warnings_of(deployment: Deployment) -> list[str]:
    """Return warnings for operators about the deployment's start-up time."""
    if deployment.target.kind != Target.Kind.SAGEMAKER or not deployment.image:
        return []
    if image_is_cached(deployment.image, family=deployment.image_family):
        return []
    return [
        f"SageMaker does not keep {deployment.image} on its instances: each new instance downloads it first, "
        "minutes of every scale-up. Images from the cached table's versions on start sooner."
    ]
