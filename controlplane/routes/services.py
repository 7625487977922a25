"""Changes of the route table: written with the change that causes them, published on commit.

Versions are consecutive and start at the Unix time in milliseconds of the database's first change, so a
new or restored database's versions lie above those that gateways already hold: no reader goes back.
"""

from __future__ import annotations

import logging
import time
from datetime import timedelta

from django.conf import settings
from django.db import transaction
from django.utils import timezone
from redis.exceptions import RedisError

from contracts.route_table import RouteEntry, entry_to_dict
from controlplane.routes.models import RouteCounter, RouteDelta, RouteEntryRow
from controlplane.routes.publisher import RoutePublisher

logger = logging.getLogger(__name__)


@transaction.atomic
def route_set(*, path: str, entry: RouteEntry) -> None:
    """Put `entry` under `path`, published after commit."""
    value = entry_to_dict(entry)
    version = _next_version()
    RouteEntryRow.objects.update_or_create(path=path, defaults={"entry": value})
    RouteDelta.objects.create(version=version, path=path, entry=value)
    transaction.on_commit(route_publish_now)


@transaction.atomic
def route_remove(*, path: str) -> None:
    """Remove the entry under `path`, if any, published after commit."""
    version = _next_version()
    RouteEntryRow.objects.filter(path=path).delete()
    RouteDelta.objects.create(version=version, path=path, entry=None)
    transaction.on_commit(route_publish_now)


def route_publish_now() -> None:
    """Publish committed changes. If Redis is down, `publish_routes` publishes them later."""
    try:
        with RoutePublisher(settings.GRAFTWORK.redis_url) as publisher:
            publisher.publish(renumber=route_renumber)
    except RedisError as error:
        logger.warning("route changes are left to publish_routes: %s", error)


@transaction.atomic
def route_renumber(*, above: int) -> None:
    """Raise the version above `above` and above every version that a lost Redis may have held.

    Recorded as a removal of a path that never exists, two above the version in force at least: every
    reader sees the gap and fetches the snapshot.
    """
    counter = _locked_counter()
    counter.version = max(counter.version, above, _now_ms()) + 2
    counter.save()
    RouteDelta.objects.create(version=counter.version, path="keys/", entry=None)


def route_lock() -> None:
    """Block all other changes of the route table until this transaction ends.

    What is read after it, and leads to a change, is not altered by another change in between.
    """
    _locked_counter()


def route_changes_prune(*, older_than: timedelta = timedelta(days=1)) -> int:
    """Delete old changes; a publisher that still needs one writes a snapshot."""
    deleted, _ = RouteDelta.objects.filter(created_at__lt=timezone.now() - older_than).delete()
    return deleted


def _next_version() -> int:
    counter = _locked_counter()
    counter.version += 1
    counter.save()
    return counter.version


def _locked_counter() -> RouteCounter:
    """Return the counter, locked until commit, so that concurrent changes commit in order."""
    RouteCounter.objects.get_or_create(pk=1, defaults={"version": _now_ms()})
    return RouteCounter.objects.select_for_update().get(pk=1)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
