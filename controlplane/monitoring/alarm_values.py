"""The values of alarms' metrics over their last periods, from usage events."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from django.db.models import Q

from controlplane.deployments.models import Deployment
from controlplane.deployments.selectors import copies_and_removed
from controlplane.metering.adapter_hours import adapter_of
from controlplane.metering.adapter_metrics import LONGEST_REQUEST, LiveEvents, Metrics, events_of_tenant
from controlplane.monitoring.models import Alarm, Metric

_PERCENT: Final = 95


@dataclass(frozen=True, slots=True)
class Watched:
    """Events that an alarm watches: one statement reads them for all alarms with an equal value.

    Attributes:
        tenant: id of the tenant whose adapters are watched; "" for a deployment.
        deployment: key of the deployment; None for a tenant's adapters.
    """

    tenant: str
    deployment: int | None
    period: int

    @classmethod
    def from_alarm(cls, alarm: Alarm) -> Watched:
        """Return the events that an alarm watches."""
        if alarm.deployment_id is not None:
            return cls("", alarm.deployment_id, alarm.period_seconds)
        tenant = alarm.tenant_id or (alarm.adapter.tenant_id if alarm.adapter else "")
        return cls(tenant, None, alarm.period_seconds)


def alarm_values(
    watched: Watched, alarms: Sequence[Alarm], *, end: dt.datetime
) -> dict[int, list[float | None]]:
    """Return each alarm's values of its last periods up to `end`, oldest first, by the alarm's key.

    A request counts in the period in which it ended.
    """
    period = dt.timedelta(seconds=watched.period)
    count = max(alarm.evaluation_periods for alarm in alarms)
    start = end - period * count
    events = LiveEvents(_where(watched, start, end), start=start, end=end, slot=period)
    found: dict[str, dict[int, Metrics]] = defaultdict(lambda: defaultdict(Metrics))
    for row in events.sums("slot", "adapter"):
        for name in _names(row["adapter"]):
            found[name][row["slot"]].count(row)
    for row in events.times("slot", "adapter"):
        for name in _names(row["adapter"]):
            getattr(found[name][row["slot"]], row["metric"])[row["bucket"]] += row["total"]
    return {
        alarm.pk: [
            value_of(alarm.metric, found[_name(alarm)][slot], watched.period)
            for slot in range(count - alarm.evaluation_periods, count)
        ]
        for alarm in alarms
    }


def value_of(metric: str, metrics: Metrics, period_seconds: int) -> float | None:
    """Return a metric's value in one period; None if it has none."""
    match Metric(metric):
        case Metric.ERROR_RATE:
            return metrics.error_rate
        case Metric.TTFT_P95:
            return metrics.percentile_ms("ttft", _PERCENT)
        case Metric.ITL_P95:
            return metrics.percentile_ms("itl", _PERCENT)
        case Metric.REQUESTS_PER_MINUTE:
            return metrics.requests * 60 / period_seconds
        case Metric.NO_REQUESTS:
            return float(metrics.requests)


def _names(engine_name: str) -> Iterator[str]:
    """Yield the names under which an event counts: of all together, and its adapter's."""
    yield ""
    if engine_name:
        yield adapter_of(engine_name)


def _name(alarm: Alarm) -> str:
    return alarm.adapter.name if alarm.adapter else ""


def _where(watched: Watched, start: dt.datetime, end: dt.datetime) -> Q:
    if watched.deployment is None:
        return events_of_tenant(watched.tenant, start=start, end=end) & Q(adapter__gt="")
    copies = copies_and_removed(deployments=Deployment.objects.filter(pk=watched.deployment))
    earliest = int((start - LONGEST_REQUEST).timestamp() * 1000)
    return Q(endpoint__in=list(copies), started_at__gte=earliest)
