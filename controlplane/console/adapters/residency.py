"""Copies that keep versions resident on request; other versions are loaded when they are called."""

from __future__ import annotations

from collections.abc import Sequence

from controlplane.adapters.models import Adapter
from controlplane.deployments.placement.selectors import pinned_copies


def kept_on(adapters: Sequence[Adapter]) -> dict[str, int]:
    """Count by engine name the copies that keep a version in memory, or whose own deployment serves it."""
    names = [
        version.engine_name
        for adapter in adapters
        for version in adapter.live_versions
        if version.is_callable and version.sha256
    ]
    return pinned_copies(engine_names=names, base_models={adapter.base_model_id for adapter in adapters})
