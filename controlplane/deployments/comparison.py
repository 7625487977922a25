"""Compare a deployment's desired state with its last observed state."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from django.utils import timezone

from controlplane.deployments.containers.images import DEFAULT_IMAGE
from controlplane.deployments.models import Deployment, Placement, Target
from controlplane.deployments.provisioners.base import State
from controlplane.deployments.rollouts.states import copies_state, state_values
from controlplane.deployments.scaling.selectors import copies_in_force, scaling_of

_COPY_KINDS: Final = ("worker", "server")


class Verdict(StrEnum):
    """How the observed value compares with the desired value."""

    SAME = "same"
    DIFFERS = "differs"
    UNKNOWN = "unknown"
    """Not observed yet, or the target does not report it."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One compared property of a deployment.

    Attributes:
        what: copies, base, image, instance_type, adapters or generation.
        seen: the observed value; "" if none was observed.
    """

    what: str
    wanted: str
    seen: str
    verdict: Verdict


def compare(deployment: Deployment) -> list[Comparison]:
    """Return the comparison of each property.

    A deployment that is being removed is compared by its remaining copies and adapters only.
    """
    placed = [_adapters(deployment)] if deployment.hosting in Deployment.PLACING else []
    if not deployment.is_wanted:
        return [_copies(deployment), *placed]
    rows = [_copies(deployment), _reported(deployment, "base", _base(deployment))]
    if deployment.target.kind == Target.Kind.SAGEMAKER:
        rows.append(_reported(deployment, "image", deployment.image or DEFAULT_IMAGE))
        rows.append(_reported(deployment, "instance_type", deployment.instance_type))
    return [*rows, *placed, _generation(deployment)]


def _copies(deployment: Deployment) -> Comparison:
    least, most = _bounds(deployment)
    wanted = str(least) if least == most else f"{least} to {most}"
    if deployment.observed_at is None:
        return Comparison("copies", wanted, "", Verdict.UNKNOWN)
    count, stale = _running(deployment.resources)
    seen = f"{count}, {stale} of them outdated" if stale else str(count)
    same = least <= count <= most and not stale
    return Comparison("copies", wanted, seen, Verdict.SAME if same else Verdict.DIFFERS)


def observed_copies(deployment: Deployment) -> int:
    """Return the number of serving copies at the last observation.

    The count comes from the observed resources, since on SageMaker one `Copy` row stands for all copies.
    """
    return _running(deployment.resources)[0]


def observed_instances(deployment: Deployment) -> dict[str, int]:
    """Return the running instances by type at the last observation; empty without further types."""
    found: dict[str, int] = {}
    for item in deployment.resources if deployment.fallback_instance_types else ():
        for entry in item.get("has", {}).get("instances_by_type", "").split():
            kind, _, count = entry.partition("=")
            found[kind] = int(count)
    return found


def _bounds(deployment: Deployment) -> tuple[int, int]:
    """Return the (minimum, maximum) number of copies wanted now."""
    if not deployment.is_wanted:
        return 0, 0
    if deployment.target.kind == Target.Kind.OPENAI_HTTP:
        servers = len(deployment.urls or deployment.target.urls)
        return servers, servers
    least, most = copies_in_force(deployment, scaling_of(deployment), timezone.now())
    # A host runs exactly the minimum; SageMaker's autoscaler chooses a number within the bounds.
    return (least, least) if deployment.target.kind == Target.Kind.LOCAL else (least, most)


def _running(resources: list[dict[str, Any]]) -> tuple[int, int]:
    """Return (serving copies, copies among them that differ from the desired state)."""
    count = stale = 0
    for item in resources:
        copies = int(item.get("has", {}).get("copies", 0))
        if item["kind"] in _COPY_KINDS:
            copies = int(item["state"] == State.READY)
        count += copies
        stale += copies if item.get("stale") else 0
    return count, stale


def _base(deployment: Deployment) -> str:
    """Return the desired `base` value: the served model name, or the checkpoint's location."""
    if deployment.target.kind == Target.Kind.OPENAI_HTTP:
        return deployment.base_model.served_name
    state = copies_state(deployment, state_values(deployment), strict=False)
    return str(state["checkpoint"])


def _reported(deployment: Deployment, what: str, wanted: str) -> Comparison:
    """Compare `wanted` with the values of `what` that the observed resources report."""
    found = (item.get("has", {}).get(what, "") for item in deployment.resources)
    seen = list(dict.fromkeys(value for value in found if value))
    verdict = Verdict.UNKNOWN if not seen else Verdict.SAME if seen == [wanted] else Verdict.DIFFERS
    return Comparison(what, wanted, ", ".join(seen), verdict)


def _adapters(deployment: Deployment) -> Comparison:
    rows = Placement.objects.filter(deployment=deployment)
    coming = Counter(rows.filter(leaves_at=None).values_list("status", flat=True))
    leaving = rows.exclude(leaves_at=None).count()
    wanted, ready = coming.total() if deployment.is_wanted else 0, coming[Placement.Status.READY]
    failed = coming[Placement.Status.FAILED]
    parts = [
        str(ready),
        *([f"{failed} failed"] if failed else []),
        *([f"{leaving} leaving"] if leaving else []),
    ]
    if deployment.observed_at is None:
        return Comparison("adapters", str(wanted), "", Verdict.UNKNOWN)
    same = ready == wanted and not leaving
    return Comparison("adapters", str(wanted), ", ".join(parts), Verdict.SAME if same else Verdict.DIFFERS)


def _generation(deployment: Deployment) -> Comparison:
    """Compare the newest generation of the desired state with the one fully in force."""
    wanted, seen = deployment.generation, deployment.observed_generation
    verdict = Verdict.SAME if wanted == seen else Verdict.DIFFERS if seen else Verdict.UNKNOWN
    return Comparison("generation", str(wanted), str(seen) if seen else "", verdict)
