"""`manage.py publish_routes`: publishes route changes that failed to publish on commit."""

from __future__ import annotations

import logging
import signal
import threading
import time
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser
from django.db import Error as DatabaseError
from django.db import close_old_connections, connection
from redis.exceptions import RedisError

from controlplane.routes.publisher import RoutePublisher
from controlplane.routes.services import route_changes_prune, route_renumber

logger = logging.getLogger(__name__)
_PRUNE_EVERY_S = 3600.0


class Command(BaseCommand):
    """Runs until SIGTERM or SIGINT, and survives outages of the database and Redis."""

    help = "Publish route changes to Redis until stopped."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--interval", type=float, default=0.5, help="seconds between checks")

    def handle(self, *args: Any, **options: Any) -> None:
        stopped = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stopped.set())
        pruned = 0.0
        writing: threading.Thread | None = None
        with RoutePublisher(settings.GRAFTWORK.redis_url) as publisher:
            while not stopped.is_set():
                wait = options["interval"]
                try:
                    publisher.publish(renumber=route_renumber)
                    if not (writing and writing.is_alive()) and publisher.snapshot_is_stale():
                        writing = threading.Thread(target=_write_snapshot, daemon=True)
                        writing.start()
                    if time.monotonic() - pruned > _PRUNE_EVERY_S:
                        route_changes_prune()
                        pruned = time.monotonic()
                except (RedisError, DatabaseError) as error:
                    logger.warning("publishing is delayed: %s", error)
                    wait = max(wait, 1.0)
                close_old_connections()
                stopped.wait(wait)


def _write_snapshot() -> None:
    """Write the snapshot in a thread, since it takes seconds and changes must not wait."""
    try:
        with RoutePublisher(settings.GRAFTWORK.redis_url) as publisher:
            publisher.publish_snapshot(paced=True)
    except (RedisError, DatabaseError) as error:
        logger.warning("the snapshot of routes is delayed: %s", error)
    finally:
        connection.close()
