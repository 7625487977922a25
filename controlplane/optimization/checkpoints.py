"""Whether a job's base is still what it was asked of."""

from __future__ import annotations

from controlplane.errors import InvalidInputError
from controlplane.optimization.models import OptimizationJob


def checkpoint_check(job: OptimizationJob) -> None:
    """Raises InvalidInputError where the base's checkpoint is another since."""
    base = job.base_model
    if base.checkpoint_sha256 != job.checkpoint_sha256:
        raise InvalidInputError(
            f"{base.name}'s checkpoint was read anew since, and is another: ask for it again"
        )
