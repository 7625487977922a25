"""`manage.py ingest_usage`: moves usage events from Redis into the database until stopped."""

from __future__ import annotations

import datetime as dt
import logging
import signal
import threading
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser
from django.db import Error as DatabaseError
from django.db import connection
from redis.exceptions import RedisError

from controlplane.metering.ingest import UsageIngester

logger = logging.getLogger(__name__)


class Command(BaseCommand):
    """Stops at SIGTERM or SIGINT after the current batch; survives outages of Redis and the database."""

    help = "Ingest usage events until stopped."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--claim-idle",
            type=float,
            default=30.0,
            help="seconds after which unfinished entries of another ingester are claimed",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        stopped = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stopped.set())
        claim_idle = dt.timedelta(seconds=options["claim_idle"])
        ingester = UsageIngester(settings.GRAFTWORK.redis_url, claim_idle=claim_idle)
        while not stopped.is_set():
            try:
                ingester.run(stopped.is_set)
            except (RedisError, DatabaseError) as error:
                logger.warning("ingestion is waiting: %s", error)
                connection.close()
                stopped.wait(1.0)
        ingester.close()
