"""Checks that a job's base model still has the checkpoint that the job was created for."""

from __future__ import annotations

from controlplane.errors import InvalidInputError
from controlplane.optimization.models import OptimizationJob


def checkpoint_check(job: OptimizationJob) -> None:
    """Raises InvalidInputError if the base's checkpoint has changed since the job was created."""
    base = job.base_model
    if base.checkpoint_sha256 != job.checkpoint_sha256:
        raise InvalidInputError(
            f"{base.name}'s checkpoint was read anew since, and is another: ask for it again"
        )
