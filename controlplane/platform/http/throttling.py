"""Rate limits per caller: token buckets in Redis, shared by all web processes."""

from __future__ import annotations

import functools
import logging
from typing import Any, Final, cast

import redis
from django.conf import settings
from redis.backoff import NoBackoff
from redis.retry import Retry
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle

from controlplane.platform.http.addresses import request_client

logger = logging.getLogger(__name__)

_TAKE: Final = """
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local interval, span = tonumber(ARGV[1]), tonumber(ARGV[2])
local full = math.max(tonumber(redis.call('GET', KEYS[1]) or '0'), now) + interval
if full - now > span then return math.ceil(full - now - span) end
redis.call('SET', KEYS[1], string.format('%.0f', full), 'PX', math.ceil((full - now) / 1000))
return 0
"""
"""GCRA: one number per caller, the time at which its bucket is full again. Returns microseconds to wait."""
_MINUTE_US: Final = 60_000_000
_DAY_US: Final = 24 * 60 * _MINUTE_US


def take(scope: str, *, per_minute: int) -> float:
    """Take one call from the bucket of `scope`; return 0, or the seconds until a call is available.

    A minute's worth of calls may come at once. Without Redis all calls pass: this limit protects the control
    plane from a client's loop, not a billed resource.
    """
    return _take(scope, per_minute, _MINUTE_US)


def take_daily(scope: str, *, per_day: int) -> float:
    """Take one call from a daily bucket of `scope`, which is counted apart from the minute's; as `take`."""
    return _take(f"daily:{scope}", per_day, _DAY_US)


def _take(scope: str, count: int, span_us: int) -> float:
    try:
        arguments = [span_us / count, span_us]
        wait = _redis(settings.GRAFTWORK.redis_url).eval(_TAKE, 1, f"graftwork:api-rate:{scope}", *arguments)
        return cast(int, wait) / 1e6
    except redis.RedisError as error:
        logger.warning("calls are not rate-limited: %s", error)
        return 0.0


class CallerThrottle(BaseThrottle):
    """Allows GRAFTWORK_API_RATE calls a minute per API key, person, or otherwise per address or /64."""

    def __init__(self) -> None:
        self._wait = 0.0

    def allow_request(self, request: Request, view: Any) -> bool:
        self._wait = take(caller(request), per_minute=settings.GRAFTWORK.api_rate)
        return self._wait == 0

    def wait(self) -> float:
        return self._wait


def caller(request: Request) -> str:
    """Return a unique id of the caller: its API key, user or address."""
    if request.auth is not None:
        return f"key:{request.auth.pk}"
    if request.user.pk is not None:
        return f"user:{request.user.pk}"
    return f"address:{request_client(request)}"


@functools.lru_cache(maxsize=4)
def _redis(url: str) -> redis.Redis:
    return redis.Redis.from_url(
        url, socket_connect_timeout=0.25, socket_timeout=0.25, retry=Retry(NoBackoff(), 0)
    )
