"""Copies that keep versions resident on request; other versions are loaded when they are called."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from controlplane.adapters.models import Adapter
from controlplane.deployments.models import AdapterRule, Placement


def kept_on(adapters: Iterable[Adapter]) -> dict[str, int]:
    """Count by engine name the copies that keep a version in memory, or whose own deployment serves it.

    Two queries however many adapters there are; versions without such a copy are left out.
    """
    shown = list(adapters)
    names = [
        version.engine_name
        for adapter in shown
        for version in adapter.live_versions
        if version.is_callable and version.sha256
    ]
    where = {
        "engine_name__in": names,
        "deployment__base_model__in": {adapter.base_model_id for adapter in shown},
    }
    found: dict[str, int] = defaultdict(int)
    for name, ready in AdapterRule.objects.filter(**where).values_list("engine_name", "ready"):
        found[name] += len(ready)
    placed = Placement.objects.filter(**where, status=Placement.Status.READY)
    for name in placed.values_list("engine_name", flat=True):
        found[name] += 1
    return {name: copies for name, copies in found.items() if copies}
