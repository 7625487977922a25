"""One minute's metrics of a SageMaker target, as CloudWatch's PutMetricData takes them.

Source: Amazon CloudWatch API Reference, MetricDatum and PutMetricData.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, Final

from django.db.models import Q

from contracts.adapters.reference import EngineName
from contracts.base_routes import adapter_component
from contracts.errors import ContractError
from controlplane.deployments.models import Copy, Deployment, RemovedCopy, Target
from controlplane.deployments.selectors import copies_and_removed
from controlplane.metering.adapter_metrics import LONGEST_REQUEST, LiveEvents, Metrics
from controlplane.metering.histogram import bucket_ms

MINUTE: Final = dt.timedelta(minutes=1)
_MOST_VALUES: Final = 150
"""Most different values of one MetricDatum."""
_BATCH: Final = 150
"""Metrics of one request: with 150 values each it is below the limit of 1 MB."""
Datum = dict[str, Any]


def metric_batches(*, target: Target, minute: dt.datetime) -> list[list[Datum]]:
    """Return the batches for the attempts that ended in the minute on the target's copies.

    They are JSON; `Timestamp` is in Unix seconds. Each batch fits one request.
    """
    copies = copies_and_removed(deployments=Deployment.objects.filter(target=target))
    if not copies:
        return []
    earliest = int((minute - LONGEST_REQUEST).timestamp() * 1000)
    where = Q(endpoint__in=list(copies), started_at__gte=earliest)
    events = LiveEvents(where, start=minute, end=minute + MINUTE, slot=MINUTE)
    found: dict[tuple[str, str], Metrics] = defaultdict(Metrics)
    for row in events.sums("endpoint", "adapter"):
        found[row["endpoint"], row["adapter"]].count(row)
    for row in events.times("endpoint", "adapter"):
        counts = getattr(found[row["endpoint"], row["adapter"]], row["metric"])
        counts[row["bucket"]] += row["total"]
    # Copies of one endpoint have equal dimensions: their metrics are added up.
    summed: dict[tuple[tuple[str, str], ...], Metrics] = defaultdict(Metrics)
    for (copy, adapter), metrics in found.items():
        summed[dimensions_of(copies[copy], adapter)].add(metrics)
    data = [
        {**datum, "Timestamp": int(minute.timestamp())}
        for dimensions, metrics in sorted(summed.items())
        for datum in _data(dimensions, metrics)
    ]
    return [data[at : at + _BATCH] for at in range(0, len(data), _BATCH)]


def dimensions_of(copy: Copy | RemovedCopy, engine_name: str) -> tuple[tuple[str, str], ...]:
    """Return the dimensions (name, value) of an adapter's metrics at a copy; "" is the base model."""
    found = [("EndpointName", copy.endpoint)]
    if engine_name and copy.adapter_naming == Copy.AdapterNaming.COMPONENTS and copy.component:
        found.append(("InferenceComponentName", adapter_component(copy.component, engine_name)))
    elif copy.component:
        found.append(("InferenceComponentName", copy.component))
    if engine_name:
        found.append(("Adapter", _adapter(engine_name)))
    return tuple(found)


def _adapter(engine_name: str) -> str:
    try:
        name = EngineName.parse(engine_name)
    except ContractError:
        return engine_name
    return f"{name.tenant}/{name.adapter}@v{name.version}"


def _data(dimensions: tuple[tuple[str, str], ...], metrics: Metrics) -> Iterator[Datum]:
    common = {"Dimensions": [{"Name": name, "Value": value} for name, value in dimensions]}
    for name, amount in (
        ("Requests", metrics.requests),
        ("Errors", metrics.failed),
        ("PromptTokens", metrics.prompt_tokens),
        ("CompletionTokens", metrics.completion_tokens),
    ):
        yield {**common, "MetricName": name, "Unit": "Count", "Value": float(amount)}
    for name, counts in (("TimeToFirstToken", metrics.ttft), ("InterTokenLatency", metrics.itl)):
        for part in _parts(counts):
            yield {
                **common,
                "MetricName": name,
                "Unit": "Milliseconds",
                "Values": [round(bucket_ms(bucket), 3) for bucket in part],
                "Counts": [float(counts[bucket]) for bucket in part],
            }


def _parts(counts: Mapping[int, int]) -> Iterator[list[int]]:
    buckets = sorted(counts)
    for at in range(0, len(buckets), _MOST_VALUES):
        yield buckets[at : at + _MOST_VALUES]
