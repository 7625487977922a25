"""Engines that run as processes of a host, by a deployment's `image_family`."""

from __future__ import annotations

from typing import Final

from controlplane.deployments.containers.images import Family
from controlplane.deployments.provisioners.local.engines.base import LocalEngine
from controlplane.deployments.provisioners.local.engines.vllm import VllmEngine
from controlplane.deployments.provisioners.local.engines.worker import WorkerEngine

WORKER: Final = WorkerEngine()
VLLM: Final = VllmEngine()
ENGINES: Final[tuple[LocalEngine, ...]] = (WORKER, VLLM)


def engine_of(image_family: str) -> LocalEngine:
    """Return the engine of a deployment's image family; the bundled worker for ""."""
    return VLLM if image_family == Family.VLLM else WORKER
