"""Read the load of a host's copies from the workers, and the requests held at gateways from Redis."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, cast

import httpx
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from contracts.demand import DEMAND_SECONDS, demand_key, read_demand
from controlplane.deployments.autoscaler.decision import GAP, Reading
from controlplane.deployments.scaling.policy import Metric
from controlplane.platform.http.tls import tls_context

_ANSWER_SECONDS: Final = 1.0
_AT_ONCE: Final = 8
_MINUTE: Final = 60.0
_SAMPLE: Final = re.compile(
    r"^graftwork_worker_(requests_running|requests_waiting|queue_seconds_count|request_seconds_total|uptime_seconds)"
    r"(?:\{[^\n]*\})? (\S+)$",
    re.M,
)


@dataclass(frozen=True, slots=True)
class CopyLoad:
    """A copy's request counters; None for values that workers of an earlier release do not report.

    Attributes:
        pending: requests now.
        begun: requests that entered its batch since its start.
        spent: total seconds that requests have spent there since its start.
        age: seconds since its start.
    """

    pending: int
    begun: int
    spent: float | None = None
    age: float | None = None


def copies_load(urls: Sequence[str], *, fleet_token: str) -> dict[str, CopyLoad]:
    """Return the load by URL, for each copy that answers within a second."""
    headers = {"authorization": f"Bearer {fleet_token}"}
    with (
        httpx.Client(
            timeout=_ANSWER_SECONDS, trust_env=False, headers=headers, verify=tls_context()
        ) as client,
        ThreadPoolExecutor(_AT_ONCE) as pool,
    ):
        found = pool.map(lambda url: _load(client, url), urls)
        return {url: load for url, load in zip(urls, found, strict=True) if load is not None}


@dataclass(frozen=True, slots=True)
class Demand:
    """`held`: requests that gateways hold now; `since`: Unix seconds of the oldest valid report."""

    held: int = 0
    since: float | None = None


def demand(redis_url: str, *, base_model: str) -> Demand:
    """Return the requests held for a base model; none while Redis is unavailable."""
    client = redis.Redis.from_url(
        redis_url, socket_timeout=1, socket_connect_timeout=1, retry=Retry(NoBackoff(), 0)
    )
    try:
        entries = cast(dict[bytes, bytes], client.hgetall(demand_key(base_model)))
        seconds, micros = client.time()
    except redis.RedisError:
        return Demand()
    finally:
        client.close()
    # Reports carry the time of Redis's clock, so their age is measured by it.
    now = seconds + micros / 1e6
    reports = [read_demand(value) for value in entries.values()]
    fresh = [(held, now - at) for held, at in reports if held and abs(now - at) < DEMAND_SECONDS]
    oldest = max((age for _, age in fresh), default=None)
    return Demand(sum(held for held, _ in fresh), None if oldest is None else time.time() - oldest)


def reading(
    metric: Metric,
    loads: Mapping[str, CopyLoad],
    held: int,
    *,
    asked: Sequence[str],
    window: dict[str, Any],
    at: float,
) -> Reading:
    """Return the load by `metric`.

    Args:
        asked: URLs of the copies that were queried.
        window: earlier readings; updated in place.
    """
    whole = len(loads) == len(asked)
    if metric is Metric.CONCURRENCY:
        return Reading(_concurrency(loads, window, at) + held, held, whole)
    before: dict[str, tuple[int, float]] = window.get("last", {})
    counts = [item for item in window.get("counts", []) if item[0] > at - _MINUTE]
    for url, load in loads.items():
        if url in before:
            counts += _spread(load.begun, *before[url], at=at)
        elif load.age is not None and load.age < _MINUTE:
            # All requests of so new a copy belong to this minute; those of an older copy cannot be dated.
            counts += _spread(load.begun, 0, at - load.age, at=at)
    window["counts"] = counts
    window["last"] = {url: before[url] for url in asked if url in before} | {
        url: (load.begun, at) for url, load in loads.items()
    }
    return Reading(float(sum(count for _, count in counts) + held), held, whole)


def _concurrency(loads: Mapping[str, CopyLoad], window: dict[str, Any], at: float) -> float:
    """Return the concurrent requests: the number now, or the mean since the last reading if that is higher.

    Requests that came and went between two readings thus count with their duration.
    """
    before: dict[str, tuple[float, float]] = window.get("spent", {})
    window["spent"] = {url: (load.spent, at) for url, load in loads.items() if load.spent is not None}
    return sum(max(load.pending, _mean(load.spent, before.get(url), at)) for url, load in loads.items())


def _mean(spent: float | None, before: Sequence[float] | None, at: float) -> float:
    """Return the mean concurrency since the last reading; 0 if that is unknown or too long ago."""
    if spent is None or before is None:
        return 0.0
    gap, more = at - before[1], spent - before[0]
    return more / gap if 0 < gap <= GAP and more > 0 else 0.0


def _spread(begun: int, before: int, since: float, *, at: float) -> list[tuple[float, float]]:
    """Return (time, count) of requests begun since the last reading, for its last minute.

    They are spread evenly, since after a pause they do not all belong to this second.
    """
    # A restarted worker counts from zero.
    fresh = begun - before if begun >= before else begun
    if not fresh:
        return []
    gap = max(at - since, 0.001)
    covered = min(gap, _MINUTE)
    parts = max(1, round(covered))
    each, width = fresh / gap * covered / parts, covered / parts
    return [(at - number * width, each) for number in range(parts)]


def _load(client: httpx.Client, url: str) -> CopyLoad | None:
    try:
        answer = client.get(f"{url}/metrics")
        answer.raise_for_status()
    except httpx.HTTPError:
        return None
    found = {name: float(value) for name, value in _SAMPLE.findall(answer.text)}
    if "requests_running" not in found:
        return None
    pending = found["requests_running"] + found.get("requests_waiting", 0.0)
    return CopyLoad(
        int(pending),
        int(found.get("queue_seconds_count", 0)),
        found.get("request_seconds_total"),
        found.get("uptime_seconds"),
    )
