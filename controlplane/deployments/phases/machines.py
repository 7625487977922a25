"""Split a scale-up on SageMaker by the number of instances.

SageMaker does not report when an instance, an image or weights were ready. But every observation reads the
number of instances. The moment at which it first rises splits the scale-up: provisioning before, all of the
copy's start after. AWS's own published trials are split at the same point.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from controlplane.deployments.models import Deployment, ScaleUp


def machines_before(deployment: Deployment, *, decided: datetime, instances: int | None) -> dict[str, Any]:
    """Return the `machines` value of a new scale-up; {} if the number before it is unknown.

    The number comes from the last observation, if that precedes the scale-up and the count has not risen
    since:
    how long additional instances have existed would be a guess. Deployments on a shared endpoint share its
    instances, so the number is unknown for them.
    """
    before = machines_observed(deployment)
    seen_at = deployment.observed_at
    if instances is None or before is None or deployment.endpoint or seen_at is None or seen_at > decided:
        return {}
    return {} if instances > before else {"before": before, "most": instances, "at": ""}


def machines_record(row: ScaleUp, *, instances: int | None, at: datetime) -> None:
    """Record when the instance count reached a new maximum."""
    if row.machines and instances is not None and instances > row.machines["most"]:
        row.machines = row.machines | {"most": instances, "at": at.isoformat()}
        row.save(update_fields=["machines"])


def growth_phases(row: ScaleUp, *, ended: datetime) -> dict[str, float]:
    """Return seconds by phase: `detect`, `provision` if it is known, and the rest as `copy`."""
    whole = _seconds(row.decided_at, ended)
    found = {"detect": _seconds(row.began_at, row.decided_at)}
    if not row.machines:
        return found | {"copy": whole}
    came = row.machines["at"]
    provision = min(whole, _seconds(row.decided_at, datetime.fromisoformat(came))) if came else 0.0
    return found | {"provision": provision, "copy": round(whole - provision, 3)}


def machines_observed(deployment: Deployment) -> int | None:
    """Return the endpoint's number of instances at the last observation; None if unknown."""
    for item in deployment.resources:
        has: Mapping[str, str] = item.get("has", {})
        if "instances" in has:
            return int(has["instances"])
    return None


def _seconds(since: datetime, until: datetime) -> float:
    return round(max(0.0, (until - since).total_seconds()), 3)
