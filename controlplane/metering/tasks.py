"""Celery tasks of metering."""

from __future__ import annotations

import datetime as dt
import time

from celery import shared_task

from controlplane.metering.adapter_hours import (
    adapter_hours_drop_old,
    latency_hours_add_pending,
    latency_hours_compact,
)
from controlplane.metering.hosting.hours import spans_drop_old
from controlplane.metering.hosting.observation import hosting_observe
from controlplane.metering.reconcile import days_checked, sums_check
from controlplane.metering.replay import dead_usage_replay, dead_usage_replay_waiting
from controlplane.metering.services import keep_from, usage_drop_old, usage_partitions_prepare
from controlplane.platform.queue import enqueue


@shared_task(name="metering.nightly", acks_late=True)
def nightly() -> int:
    """Creates the coming days' partitions, drops old events and checks the last days' sums.

    Returns how many totals differ from their events.
    """
    usage_partitions_prepare()
    usage_drop_old()
    adapter_hours_drop_old(today=dt.datetime.now(dt.UTC).date())
    latency_hours_compact(today=dt.datetime.now(dt.UTC).date())
    spans_drop_old(before=int(dt.datetime.combine(keep_from(), dt.time(), dt.UTC).timestamp()))
    start, end = days_checked(dt.datetime.now(dt.UTC).date())
    return len(sums_check(start=start, end=end))


@shared_task(name="metering.add_latencies", acks_late=True)
def add_latencies() -> int:
    """Adds the latencies that ingestion left to the hourly histograms; returns how many rows it took."""
    return latency_hours_add_pending()


@shared_task(name="metering.replay_waiting", acks_late=True)
def replay_waiting(after: int = 0) -> int:
    """Ingests events from outside that came for a day without a partition; returns how many were new.

    It runs in pages, so that other tasks in the queue run in between.
    """
    counted, more = dead_usage_replay_waiting(after=after)
    if more is not None:
        enqueue("metering.replay_waiting", after=more)
    return counted


@shared_task(name="metering.replay_dead", acks_late=True)
def replay_dead() -> int:
    """Replays all dead letters on request; returns how many events were new."""
    counted, _left = dead_usage_replay()
    return counted


@shared_task(name="metering.look_at_hosting", acks_late=True)
def look_at_hosting() -> int:
    """Observes hosted resources and counts completed hours; returns how many spans changed."""
    return hosting_observe(now=int(time.time()))
