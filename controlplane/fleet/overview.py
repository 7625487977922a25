"""Overview of the fleet: every base model with its deployments and copies, their state, load and traffic."""

from __future__ import annotations

import datetime as dt
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from django.utils import timezone
from django.utils.translation import gettext as _

from controlplane.catalog.models import BaseModel
from controlplane.deployments.models import Copy, Deployment, Scaling
from controlplane.deployments.scaling.selectors import copies_in_force
from controlplane.fleet.polls import PolledCopy, copies_poll
from controlplane.fleet.traffic import Traffic, traffic_by_copy

MINUTES: Final = 5
"""Minutes of traffic in the overview."""


class CopyState(StrEnum):
    """State of a copy, as it reports itself."""

    SERVING = "serving"
    REFUSING = "refusing"
    SILENT = "silent"
    STARTING = "starting"
    LEAVING = "leaving"
    FAILED = "failed"
    UNTOLD = "untold"
    """A SageMaker copy; only its traffic is known."""


@dataclass(frozen=True, slots=True)
class SeenCopy:
    """One copy in the overview; `copy` is None if the copy is not in the route table.

    Attributes:
        since: when the copy entered its state, if known.
        reason: explanation of the state, or recommended action.
    """

    name: str
    place: str
    kind: str
    state: CopyState
    copy: Copy | None = None
    deployment: str = ""
    polled: PolledCopy = field(default_factory=PolledCopy)
    traffic: Traffic = field(default_factory=Traffic)
    since: dt.datetime | None = None
    reason: str = ""

    @property
    def answered_at(self) -> dt.datetime | None:
        """Time of the metrics."""
        return moment(self.polled.answered_at)


@dataclass(frozen=True, slots=True)
class SeenDeployment:
    """A deployment in the overview; `wanted` is the least and the most desired copies."""

    row: Deployment
    wanted: tuple[int, int]
    routed: int

    @property
    def least(self) -> int:
        return self.wanted[0]

    @property
    def most(self) -> int:
        return self.wanted[1]


@dataclass(frozen=True, slots=True)
class SeenBase:
    """A base model in the overview; without copies it is scaled to zero or not deployed."""

    name: str
    deployments: tuple[SeenDeployment, ...]
    copies: tuple[SeenCopy, ...]

    @property
    def serving(self) -> int:
        return sum(item.state is CopyState.SERVING for item in self.copies)


@dataclass(frozen=True, slots=True)
class Overview:
    """The whole fleet at the time `at`; each copy's figures have their own time."""

    at: dt.datetime
    bases: tuple[SeenBase, ...]
    traffic: Traffic = field(default_factory=Traffic)
    minutes: int = MINUTES
    copies: tuple[SeenCopy, ...] = ()

    def total(self, name: str) -> int:
        """Return the sum of a figure over the copies that answer."""
        reported = (item.polled.figures for item in self.copies if item.polled.answers)
        return sum(getattr(figures, name) or 0 for figures in reported if figures is not None)

    def count(self, *states: CopyState) -> int:
        return sum(item.state in states for item in self.copies)

    @property
    def used_share(self) -> float | None:
        """Used share of all reported KV pages."""
        pages = self.total("kv_total")
        return (self.total("kv_used") + self.total("adapter_pages")) / pages if pages else None


def fleet_overview(*, minutes: int = MINUTES) -> Overview:
    """Return the whole fleet by seven queries, and one poll of each copy (`copies_poll`)."""
    now = timezone.now()
    copies = list(Copy.objects.select_related("deployment").order_by("created_at", "id"))
    deployments = list(
        Deployment.objects.filter(removed_at=None).select_related("target", "base_model").order_by("name")
    )
    scaling = {row.deployment_id: row for row in Scaling.objects.filter(deployment__in=deployments)}
    looks = copies_poll(copies)
    traffic, whole = traffic_by_copy(minutes=minutes, now=now)
    by_base: dict[int, list[SeenCopy]] = defaultdict(list)
    routed = Counter(copy.deployment_id for copy in copies)
    for copy in copies:
        by_base[copy.base_model_id].append(
            _routed_copy(copy, looks[copy.pk], traffic.get(copy.pk, Traffic()))
        )
    placed: dict[int, list[SeenDeployment]] = defaultdict(list)
    for row in deployments:
        by_base[row.base_model_id] += _unrouted(row)
        wanted = copies_in_force(row, scaling.get(row.pk, _NO_POLICY), now)
        placed[row.base_model_id].append(SeenDeployment(row, wanted, routed[row.pk]))
    bases = tuple(
        SeenBase(base.name, tuple(placed[base.pk]), tuple(by_base[base.pk]))
        for base in BaseModel.objects.order_by("name")
    )
    return Overview(now, bases, whole, minutes, tuple(copy for base in bases for copy in base.copies))


def copy_overview(copy: Copy, *, minutes: int = MINUTES) -> tuple[dt.datetime, SeenCopy, int]:
    """Return (now, the copy, minutes of traffic)."""
    now = timezone.now()
    traffic, _whole = traffic_by_copy(minutes=minutes, now=now, copy=copy.pk)
    seen = _routed_copy(copy, copies_poll([copy])[copy.pk], traffic.get(copy.pk, Traffic()))
    return now, seen, minutes


_NO_POLICY: Final = Scaling(policy=None)
"""Stands for the missing row of a deployment without a policy, and saves a query for it."""


def _routed_copy(copy: Copy, polled: PolledCopy, traffic: Traffic) -> SeenCopy:
    place = copy.url or "/".join(part for part in (copy.region, copy.endpoint, copy.component) if part)
    state, since, reason = _state(copy, polled)
    name = "" if copy.deployment is None else copy.deployment.name
    return SeenCopy(copy.pk, place, copy.kind, state, copy, name, polled, traffic, since, reason)


def _state(copy: Copy, polled: PolledCopy) -> tuple[CopyState, dt.datetime | None, str]:
    if copy.kind == Copy.Kind.SAGEMAKER:
        return (CopyState.UNTOLD, None, _("SageMaker does not report metrics of a copy."))
    if polled.error:
        # The deployment's reconciler may have noticed the silence earlier.
        known = [at for at in (moment(polled.silent_since), copy.silent_since) if at is not None]
        return CopyState.SILENT, min(known, default=None), polled.error
    if polled.figures is not None and not polled.figures.takes_requests:
        return (
            CopyState.REFUSING,
            None,
            _("The copy responds but accepts no requests: it is starting, draining or broken."),
        )
    return CopyState.SERVING, None, ""


_RESOURCES: Final = {"ready": None, "failed": CopyState.FAILED, "leaving": CopyState.LEAVING}


def _unrouted(row: Deployment) -> list[SeenCopy]:
    """List a deployment's workers without a route: starting, failed and leaving workers."""
    found: list[SeenCopy] = []
    for item in row.resources:
        state = _RESOURCES.get(str(item.get("state")), CopyState.STARTING)
        if item.get("kind") == "worker" and state is not None:
            name, reason = str(item.get("name")), str(item.get("reason") or "")
            found.append(SeenCopy(name, "", "worker", state, None, row.name, reason=reason))
    return found


def moment(seconds: float | None) -> dt.datetime | None:
    """Convert Unix seconds to a time; None stays None."""
    return None if seconds is None else dt.datetime.fromtimestamp(seconds, dt.UTC)
