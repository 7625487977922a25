"""Evaluates due alarms, and records and announces changes of state."""

from __future__ import annotations

import datetime as dt
import logging
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from celery.exceptions import SoftTimeLimitExceeded
from django.db import transaction
from django.utils import timezone

from controlplane.monitoring.alarm_states import next_state, reason_text
from controlplane.monitoring.alarm_values import Watched, alarm_values
from controlplane.monitoring.models import Alarm, AlarmChange
from controlplane.monitoring.notices import NOTIFY_TASK
from controlplane.monitoring.services import LAG
from controlplane.platform.queue import enqueue
from controlplane.webhooks.outbox import event_emit

logger = logging.getLogger(__name__)
EVENT: Final = "alarm.state_changed"
_AT_ONCE: Final = 1000
"""Most alarms of one run; the next run takes the others."""
RETRY: Final = dt.timedelta(minutes=3)
"""When an evaluation that did not end is tried again: after the task's time limit."""
KEEP_CHANGES: Final = dt.timedelta(days=90)


def alarms_evaluate(*, now: dt.datetime | None = None) -> int:
    """Evaluate the alarms that are due; return how many changed their state.

    Alarms that watch the same are evaluated together. A failure of one group does not stop the others. While
    a group is read, other runs leave it alone; one that failed is due again after RETRY.
    """
    moment = now or timezone.now()
    due = (
        Alarm.objects.filter(next_at__lte=moment, adapter__deleted_at=None)
        .select_related("adapter", "deployment")
        .order_by("next_at")[:_AT_ONCE]
    )
    groups: dict[Watched, list[Alarm]] = defaultdict(list)
    for alarm in due:
        groups[Watched.from_alarm(alarm)].append(alarm)
    changed = 0
    for watched, alarms in groups.items():
        try:
            changed += _evaluate(watched, alarms, moment)
        except SoftTimeLimitExceeded:
            raise
        except Exception:
            logger.exception("alarms of %s were not evaluated; the next run retries", watched)
    return changed


def _evaluate(watched: Watched, alarms: Sequence[Alarm], now: dt.datetime) -> int:
    claimed = [alarm for alarm in alarms if _claim(alarm, until=now + RETRY)]
    if not claimed:
        return 0
    end = last_end(now, watched.period)
    values = alarm_values(watched, claimed, end=end)
    return sum(_apply(alarm, values[alarm.pk], end) for alarm in claimed)


def _claim(alarm: Alarm, *, until: dt.datetime) -> bool:
    """Return True if this run evaluates the alarm, and no other does before `until`."""
    claimed = bool(Alarm.objects.filter(pk=alarm.pk, next_at=alarm.next_at).update(next_at=until))
    alarm.next_at = until
    return claimed


def last_end(now: dt.datetime, period_seconds: int) -> dt.datetime:
    """Return the end of the last period whose events have arrived; periods begin at multiples (UTC)."""
    seconds = int((now - LAG).timestamp()) // period_seconds * period_seconds
    return dt.datetime.fromtimestamp(seconds, dt.UTC)


@transaction.atomic
def _apply(alarm: Alarm, values: list[float | None], end: dt.datetime) -> bool:
    state = next_state(
        values,
        comparison=alarm.comparison,
        threshold=alarm.threshold,
        datapoints_to_alarm=alarm.datapoints_to_alarm,
        treat_missing_data=alarm.treat_missing_data,
        state=alarm.state,
    )
    reason = reason_text(values, metric=alarm.metric, comparison=alarm.comparison, threshold=alarm.threshold)
    next_at = end + dt.timedelta(seconds=alarm.period_seconds) + LAG
    # Only one of two concurrent runs finds this `next_at`, and none that began before a change of the rule.
    claimed = Alarm.objects.filter(pk=alarm.pk, next_at=alarm.next_at)
    if not claimed.update(next_at=next_at, evaluated_to=end, state_reason=reason):
        return False
    if state == alarm.state:
        return False
    now = timezone.now()
    Alarm.objects.filter(pk=alarm.pk).update(state=state, state_at=now)
    announced = state in alarm.notify_on
    change = AlarmChange.objects.create(
        alarm=alarm,
        before=alarm.state,
        after=state,
        reason=reason,
        values=values,
        at=now,
        notify_at=now if announced and alarm.email else None,
    )
    logger.info("alarm %s %s: %s to %s", alarm.pk, alarm.name, alarm.state, state)
    if announced:
        _announce(alarm, change)
    return True


def _announce(alarm: Alarm, change: AlarmChange) -> None:
    if tenant := alarm.tenant_id or alarm.webhook_tenant_id:
        data = {
            "alarm": alarm.pk,
            "name": alarm.name,
            "adapter": _adapter_name(alarm),
            "deployment": alarm.deployment.name if alarm.deployment else None,
            "metric": alarm.metric,
            "comparison": alarm.comparison,
            "threshold": alarm.threshold,
            "before": change.before,
            "state": change.after,
            "reason": change.reason,
            "at": change.at.isoformat(),
        }
        event_emit(tenant=tenant, type=EVENT, data=data)
    if change.notify_at is not None:
        enqueue(NOTIFY_TASK, change_id=change.pk)


def _adapter_name(alarm: Alarm) -> str | None:
    """Return the adapter's name; in the operator's alarms with its tenant."""
    if alarm.adapter is None:
        return None
    return alarm.adapter.name if alarm.tenant_id else str(alarm.adapter)


def changes_forget(*, now: dt.datetime | None = None) -> int:
    """Delete changes of state that are older than KEEP_CHANGES; return how many."""
    before = (now or timezone.now()) - KEEP_CHANGES
    return AlarmChange.objects.filter(at__lt=before).delete()[0]
