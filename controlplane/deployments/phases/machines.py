"""What splits a growth at SageMaker: how many machines there were, at which look there were more.

Nobody tells when a machine, an image or weights were there. But each look reads how many machines serve, so
the time of a growth parts where there first were more of them: a machine before, all of its copy after. AWS's
own published trials are split at the same place.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from controlplane.deployments.models import Deployment
from controlplane.deployments.phases.models import ScaleUp


def machines_first(deployment: Deployment, *, decided: datetime, instances: int | None) -> dict[str, Any]:
    """Of a growth that is written down now; nothing where the number before is not known.

    That is what the last look saw, if it was before the growth and this one sees no more of them: how long
    those were there already would be a guess. Deployments that share an endpoint share its machines.
    """
    before = machines_told(deployment)
    seen_at = deployment.observed_at
    if instances is None or before is None or deployment.endpoint or seen_at is None or seen_at > decided:
        return {}
    return {} if instances > before else {"before": before, "most": instances, "at": ""}


def machines_seen(row: ScaleUp, *, instances: int | None, at: datetime) -> None:
    """Keeps when there came to be the most of them."""
    if row.machines and instances is not None and instances > row.machines["most"]:
        row.machines = row.machines | {"most": instances, "at": at.isoformat()}
        row.save(update_fields=["machines"])


def growth_phases(row: ScaleUp, *, ended: datetime) -> dict[str, float]:
    """Seconds of the need, of machines where they can be told, and of all the rest under `copy`."""
    whole = _seconds(row.decided_at, ended)
    found = {"detect": _seconds(row.began_at, row.decided_at)}
    if not row.machines:
        return found | {"copy": whole}
    came = row.machines["at"]
    provision = min(whole, _seconds(row.decided_at, datetime.fromisoformat(came))) if came else 0.0
    return found | {"provision": provision, "copy": round(whole - provision, 3)}


def machines_told(deployment: Deployment) -> int | None:
    """How many the last look saw under its endpoint."""
    for item in deployment.resources:
        has: Mapping[str, str] = item.get("has", {})
        if "instances" in has:
            return int(has["instances"])
    return None


def _seconds(since: datetime, until: datetime) -> float:
    return round(max(0.0, (until - since).total_seconds()), 3)
