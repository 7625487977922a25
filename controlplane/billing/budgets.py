"""Budget baselines from the database, to which gateways add their own counts.

The database lags behind the gateways. Each baseline therefore carries a cut: the time up to which it
includes everything that gateways reported. Redis keeps the reports since the cut and drops earlier ones.
A Redis that lost its data gets its baselines back within one round, and grants nothing until then.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, cast

import redis
from django.db import transaction
from redis.backoff import NoBackoff
from redis.retry import Retry

from contracts.limits import MAX_AMOUNT, PREPAID, BudgetPeriod, budget_key, budget_period
from contracts.redis_names import USAGE_STREAM
from controlplane.billing.budget_notices import thresholds_tell
from controlplane.billing.prepaid_notices import prepaid_forget, prepaid_lifted, prepaid_seen, prepaid_tell
from controlplane.billing.price_list import PriceList
from controlplane.billing.selectors import prepaid_left_nano, spent_nano
from controlplane.tenants.limits.models import ScopeLimits
from controlplane.tenants.limits.selectors import prepaid_stop_held
from controlplane.webhooks.outbox import event_emit

logger = logging.getLogger(__name__)

LAG_MS: Final = 30_000
"""A usage event may reach the stream this much later than the gateway's report of its cost."""

_WRITE: Final = """
if tonumber(redis.call('HGET', KEYS[1], 'cut') or '-1') > tonumber(ARGV[2]) then return 0 end
redis.call('HSET', KEYS[1], 'base', ARGV[1], 'cut', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
"""
_KEEP_MS: Final = 65 * 86_400_000


def budgets_publish(*, redis_url: str, now: dt.datetime | None = None, tenant: str = "") -> int:
    """Writes the baselines of all budgets and prepaid balances to Redis; returns how many.

    A budget gets one for this period and one for the next. A failing scope does not stop the others.

    Args:
        tenant: publishes this tenant's baselines only; "" for all tenants.

    Raises:
        redis.RedisError: Redis is unavailable; call again.
    """
    limits = ScopeLimits.objects.order_by("pk")
    limits = limits.filter(tenant=tenant) if tenant else limits
    of_tenants = limits.filter(api_key=None)
    rows, prepaid = list(limits.exclude(budget_nano=None)), list(of_tenants.filter(prepaid_stop=True))
    # Lifting a prepaid limit publishes that tenant at once; a full round finds missed ones by their marks.
    unstopped = of_tenants.filter(prepaid_stop=False).values_list("tenant_id", flat=True)
    lifted = list(unstopped) if tenant else prepaid_lifted()
    if not rows and not prepaid and not lifted:
        return 0
    client = redis.Redis.from_url(
        redis_url, socket_connect_timeout=1.0, socket_timeout=5.0, retry=Retry(NoBackoff(), 0)
    )
    with client:
        # Read the cut first: events ingested after it count twice for a while, which is safe.
        cut = _cut(client)
        prices, written, moment = PriceList.load(), 0, now or dt.datetime.now(dt.UTC)
        jobs: list[tuple[str, Callable[[], int]]] = [
            *((f"tenant:{slug}", partial(_forget, client, slug)) for slug in lifted),
            *((row.scope, partial(_publish, client, row, cut, moment, prices)) for row in rows),
            *((row.scope, partial(_publish_prepaid, client, row, cut, moment, prices)) for row in prepaid),
        ]
        for scope, job in jobs:
            try:
                written += job()
            except redis.RedisError:
                raise
            except Exception:
                logger.exception("%s: baseline not written; the next round retries", scope)
        return written


def _publish(client: redis.Redis, row: ScopeLimits, cut: int, now: dt.datetime, prices: PriceList) -> int:
    period = cast(BudgetPeriod, row.budget_period)
    name, end = budget_period(period, now)
    next_name, _ = budget_period(period, end)
    start = now.astimezone(dt.UTC).date()
    start = start.replace(day=1) if period == "month" else start
    scope: dict[str, Any] = {"tenant": row.tenant_id, "key_id": row.api_key_id, "prices": prices}
    spent = spent_nano(**scope, start=start, end=end.date() - dt.timedelta(days=1))
    # Write the next period's baseline ahead, so that its first request finds one.
    next_spent = spent_nano(**scope, start=end.date(), end=end.date())
    for key, amount in ((budget_key(row.scope, name), spent), (budget_key(row.scope, next_name), next_spent)):
        client.eval(_WRITE, 1, key, amount, cut, _KEEP_MS)
    _alert(row, name, spent)
    thresholds_tell(limits=row, period=name, spent_nano=spent)
    return 2


def _publish_prepaid(
    client: redis.Redis, row: ScopeLimits, cut: int, now: dt.datetime, prices: PriceList
) -> int:
    today = now.astimezone(dt.UTC).date()
    seen = prepaid_seen(tenant=row.tenant_id, today=today)
    left = prepaid_left_nano(tenant=row.tenant_id, today=today, prices=prices)
    used = min(MAX_AMOUNT, max(0, MAX_AMOUNT - left))
    with transaction.atomic():
        # Lifting the limit waits for this row lock, and then deletes the baseline that is written here.
        if not prepaid_stop_held(tenant=row.tenant_id):
            return 0
        client.eval(_WRITE, 1, budget_key(row.scope, PREPAID), used, cut, _KEEP_MS)
        prepaid_tell(seen=seen, left_nano=left)
    return 1


@transaction.atomic
def _forget(client: redis.Redis, tenant: str) -> int:
    """Deletes the baseline and the mark of a lifted limit, so that a later limit starts afresh."""
    # Re-read under a row lock: the limit may have been set again and published meanwhile.
    if not prepaid_stop_held(tenant=tenant):
        client.unlink(budget_key(f"tenant:{tenant}", PREPAID))
        prepaid_forget(tenant=tenant)
    return 0


@transaction.atomic
def _alert(row: ScopeLimits, period: str, spent: int) -> None:
    level = row.budget_alert_nano
    if level is None or spent < level or row.budget_alerted == period:
        return
    # The conditional update lets only one of two concurrent tasks warn.
    if ScopeLimits.objects.filter(pk=row.pk).exclude(budget_alerted=period).update(budget_alerted=period):
        logger.warning(
            "%s has spent %d of its budget of %d nano-units in %s", row.scope, spent, row.budget_nano, period
        )
        data = {"scope": row.scope, "period": period, "spent_nano": spent, "budget_nano": row.budget_nano}
        event_emit(tenant=row.tenant_id, type="budget.alert", data=data)


def _cut(client: redis.Redis) -> int:
    """Unix ms by the clock of Redis up to which all reports are in the database."""
    seconds, micros = client.time()
    newest = seconds * 1000 + micros // 1000
    # Ingested entries are deleted from the stream, so the oldest remaining one bounds the cut.
    waiting = cast(Iterable[Any], client.xrange(USAGE_STREAM, count=1))
    for stream_id, _ in waiting:
        newest = min(newest, int(stream_id.partition(b"-")[0]))
    return newest - LAG_MS
