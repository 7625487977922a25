"""What copies on a host have to do, asked of the workers themselves, and who waits at the gateways."""

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
from controlplane.deployments.scaling.decision import GAP, Reading
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
    """What a copy tells of its requests; None what one of a release before does not.

    Attributes:
        pending: there now.
        begun: those that have come into its batch since its start.
        spent: seconds that requests have been there since its start, summed up.
        age: seconds since its start.
    """

    pending: int
    begun: int
    spent: float | None = None
    age: float | None = None


def copies_load(urls: Sequence[str], *, fleet_token: str) -> dict[str, CopyLoad]:
    """By URL, of those that answer within a second."""
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
    """`held`: requests that gateways hold now; `since`: Unix seconds of the oldest word of it that counts."""

    held: int = 0
    since: float | None = None


def demand(redis_url: str, *, base_model: str) -> Demand:
    """What waits for a base model; nothing while Redis is away."""
    client = redis.Redis.from_url(
        redis_url, socket_timeout=1, socket_connect_timeout=1, retry=Retry(NoBackoff(), 0)
    )
    try:
        told = cast(dict[bytes, bytes], client.hgetall(demand_key(base_model)))
        seconds, micros = client.time()
    except redis.RedisError:
        return Demand()
    finally:
        client.close()
    # Words are dated by Redis's clock, which is what their age is told by.
    now = seconds + micros / 1e6
    words = [read_demand(value) for value in told.values()]
    fresh = [(held, now - at) for held, at in words if held and abs(now - at) < DEMAND_SECONDS]
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
    """The load by `metric`.

    Args:
        asked: URLs of the copies that were asked.
        window: what was read before; it is brought up to date.
    """
    whole = len(loads) == len(asked)
    if metric is Metric.CONCURRENCY:
        return Reading(_at_a_time(loads, window, at) + held, held, whole)
    before: dict[str, tuple[int, float]] = window.get("last", {})
    counts = [item for item in window.get("counts", []) if item[0] > at - _MINUTE]
    for url, load in loads.items():
        if url in before:
            counts += _spread(load.begun, *before[url], at=at)
        elif load.age is not None and load.age < _MINUTE:
            # All that one so new has had is of this minute; of an older one nobody knows when it came.
            counts += _spread(load.begun, 0, at - load.age, at=at)
    window["counts"] = counts
    window["last"] = {url: before[url] for url in asked if url in before} | {
        url: (load.begun, at) for url, load in loads.items()
    }
    return Reading(float(sum(count for _, count in counts) + held), held, whole)


def _at_a_time(loads: Mapping[str, CopyLoad], window: dict[str, Any], at: float) -> float:
    """Requests now, or on the mean since the last reading where that is more: what has come and gone between
    two readings counts with the time that it took."""
    before: dict[str, tuple[float, float]] = window.get("spent", {})
    window["spent"] = {url: (load.spent, at) for url, load in loads.items() if load.spent is not None}
    return sum(max(load.pending, _mean(load.spent, before.get(url), at)) for url, load in loads.items())


def _mean(spent: float | None, before: Sequence[float] | None, at: float) -> float:
    """0 where it is not known: after a pause it would be of a time that counts no more."""
    if spent is None or before is None:
        return 0.0
    gap, more = at - before[1], spent - before[0]
    return more / gap if 0 < gap <= GAP and more > 0 else 0.0


def _spread(begun: int, before: int, since: float, *, at: float) -> list[tuple[float, float]]:
    """(when, how many) began since the last reading, of its last minute: as if they had come evenly, since
    after a pause all of them are not this second's."""
    # A worker that was started anew counts from nothing.
    fresh = begun - before if begun >= before else begun
    if not fresh:
        return []
    gap = max(at - since, 0.001)
    kept = min(gap, _MINUTE)
    parts = max(1, round(kept))
    each, width = fresh / gap * kept / parts, kept / parts
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
        int(pending), int(found.get("queue_seconds_count", 0)), found.get("request_seconds_total"),
        found.get("uptime_seconds"),
    )  # fmt: skip
