"""A deployment's `compute`: stated by the operator, or computed from the checkpoint, with reasons."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from controlplane.deployments.models import Deployment
from controlplane.deployments.sizing.deployment import requirements_of
from controlplane.deployments.sizing.fallback_types import requirements_by_type
from controlplane.errors import InvalidInputError

_STATED: Final = ("accelerators", "cpus", "memory_mb", "max_memory_mb")
_CONCURRENCY: Final = "concurrency"


def compute_of(deployment: Deployment) -> dict[str, Any]:
    """Return the compute requirements of one copy.

    Operators state all of them, or only the concurrency by which the KV cache is sized.

    Raises:
        InvalidInputError: a value is unknown or out of bounds, or a copy does not fit on an instance.
    """
    given = deployment.compute
    if not deployment.has_computed_requirements:
        if unknown := sorted(set(given) - {*_STATED, _CONCURRENCY}):
            listed = ", ".join((*_STATED, _CONCURRENCY))
            text = f"compute.{unknown[0]} does not exist; existing fields: {listed}"
            raise InvalidInputError(text, field=f"compute.{unknown[0]}")
        if set(given) - {_CONCURRENCY}:
            return _manual_compute(given)
    found = requirements_of(deployment)
    concurrency = {_CONCURRENCY: int(given[_CONCURRENCY])} if given.get(_CONCURRENCY) else {}
    # An instance of an endpoint without components holds one copy, however small that is.
    whole = deployment.hosting == Deployment.Hosting.ENDPOINT
    by_type = requirements_by_type(deployment, found.accelerators)
    return (
        concurrency
        | ({"by_type": by_type} if by_type else {})
        | {
            "accelerators": found.accelerators,
            "cpus": found.cpus,
            "memory_mb": found.memory_mb,
            "copies_per_instance": 1 if whole else found.copies_per_instance,
            "reasons": list(found.reasons),
        }
    )


def _manual_compute(values: Mapping[str, Any]) -> dict[str, Any]:
    if _CONCURRENCY in values:
        text = "compute.concurrency has no effect on stated requirements: omit it, or omit the others"
        raise InvalidInputError(text, field="compute.concurrency")
    for key, value in values.items():
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1e9:
            raise InvalidInputError(f"compute.{key} must be a number of at least 0", field=f"compute.{key}")
    if values.get("memory_mb", 0) < 128:
        raise InvalidInputError("compute.memory_mb must be at least 128", field="compute.memory_mb")
    return dict(values)
