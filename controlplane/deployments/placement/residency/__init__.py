"""Read and change the adapters in a copy's memory, by kind of copy."""

from __future__ import annotations

from controlplane.deployments.models import Copy
from controlplane.deployments.placement.residency.base import Residency
from controlplane.deployments.placement.residency.openai_http import OpenAIHttpResidency
from controlplane.deployments.placement.residency.worker import WorkerResidency
from controlplane.deployments.provisioners.base import ProvisioningError
from controlplane.errors import UnsealError


def residency_of(copy: Copy) -> Residency | None:
    """Return a client for the copy's memory; None for kinds without one, such as SageMaker.

    Raises:
        ProvisioningError: the copy's credentials cannot be opened.
    """
    try:
        return _client(copy)
    except UnsealError as error:
        raise ProvisioningError(str(error), code="sealed") from error


def _client(copy: Copy) -> Residency | None:
    match copy.kind:
        case Copy.Kind.WORKER:
            return WorkerResidency(copy.url, copy.request_headers)
        case Copy.Kind.OPENAI_HTTP:
            return OpenAIHttpResidency(copy.url, copy.request_headers)
    return None
