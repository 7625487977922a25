"""Which adapters a copy has in memory, and how it is told to load or drop one: by kind of copy."""

from __future__ import annotations

from controlplane.deployments.models import Copy
from controlplane.deployments.placement.residency.base import Residency
from controlplane.deployments.placement.residency.openai_http import OpenAIHttpResidency
from controlplane.deployments.placement.residency.worker import WorkerResidency


def residency_of(copy: Copy) -> Residency | None:
    """Of one copy; None where it tells nothing, as SageMaker's do."""
    match copy.kind:
        case Copy.Kind.WORKER:
            return WorkerResidency(copy.url)
        case Copy.Kind.OPENAI_HTTP:
            return OpenAIHttpResidency(copy.url)
    return None
