"""Rules of deployments on a host: processes of the bundled worker or, with image family `vllm`, of vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from controlplane.deployments.containers.images import BUNDLED_WORKER, VLLM_SERVER, Family
from controlplane.deployments.containers.options import (
    VLLM_FLAG,
    VLLM_VARIABLES,
    WORKER_VARIABLES,
    LmiOptions,
)
from controlplane.deployments.containers.vllm_flags import operators_flag_check
from controlplane.deployments.models import Deployment
from controlplane.errors import InvalidInputError

_VLLM_OWN_VARIABLES: Final = frozenset({"VLLM_API_KEY", "VLLM_ALLOW_RUNTIME_LORA_UPDATING"})


def local_hosting_check(deployment: Deployment) -> None:
    """Check a deployment of processes of a host. Raises InvalidInputError."""
    family = deployment.image_family or Family.WORKER
    if family not in (Family.WORKER, Family.VLLM):
        text = "image_family on a host must be worker or vllm, the engine that runs there"
        raise InvalidInputError(text, field="image_family")
    if family == Family.VLLM:
        _check_vllm_environment(deployment.environment)
        options = LmiOptions.from_values(deployment.options, VLLM_SERVER, hosting=deployment.hosting)
        if deployment.hosting == Deployment.Hosting.ON_DEMAND and not options.enable_lora:
            text = "options.enable_lora must be true in hosting on_demand: omit it"
            raise InvalidInputError(text, field="options.enable_lora")
    else:
        _check_worker_environment(deployment.environment)
        options = LmiOptions.from_values(deployment.options, BUNDLED_WORKER)
    if options.draft_model and not options.draft_model.startswith("/"):
        text = "options.draft_model must be a folder of the host, such as /models/draft"
        raise InvalidInputError(text, field="options.draft_model")
    if deployment.min_copies > 16:
        raise InvalidInputError("a host runs at most 16 copies", field="min_copies")


def _check_worker_environment(environment: Mapping[str, str]) -> None:
    """Raise InvalidInputError for a variable that a worker on a host does not read."""
    for name in environment:
        if not name.startswith(WORKER_VARIABLES):
            text = (
                f"environment {name} has no effect on workers on a host: their variables start with"
                f" {', '.join(WORKER_VARIABLES)}"
            )
            raise InvalidInputError(text, field="environment")


def _check_vllm_environment(environment: Mapping[str, str]) -> None:
    """Raise InvalidInputError for a variable that vLLM does not read, or that is no operator's flag."""
    for name, value in environment.items():
        if name.startswith(VLLM_FLAG):
            operators_flag_check(name, name.removeprefix(VLLM_FLAG), value)
        elif not name.startswith(VLLM_VARIABLES) or name in _VLLM_OWN_VARIABLES:
            text = (
                f"environment {name} has no effect on vLLM on a host: its variables start with"
                f" {', '.join(VLLM_VARIABLES)}, and its flags are {VLLM_FLAG}<NAME>"
            )
            raise InvalidInputError(text, field="environment")
