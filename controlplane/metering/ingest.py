"""Moves usage events from the Redis stream into the database, each counted once.

Delivered, then committed, then acknowledged: whatever dies in between, the entries come again, and the
unique constraint of `UsageEventRow` makes the second time change nothing.
"""

from __future__ import annotations

import datetime as dt
import logging
import os
import socket
from collections.abc import Callable
from typing import Any, Final, cast

import redis
from redis.backoff import NoBackoff
from redis.exceptions import ResponseError
from redis.retry import Retry

from controlplane.metering.services import StreamEntry, usage_ingest
from gateway.wire import USAGE_GROUP, USAGE_STREAM

logger = logging.getLogger(__name__)
_BATCH: Final = 1000
_BLOCK_MS: Final = 200


class UsageIngester:
    """One consumer of the usage stream.

    `claim_idle` is how long an entry may lie with another consumer before that one counts as dead.
    """

    def __init__(
        self,
        redis_url: str,
        *,
        consumer: str | None = None,
        claim_idle: dt.timedelta = dt.timedelta(seconds=30),
    ) -> None:
        # The loop around this tries again; the client's own retries sleep for seconds, deaf to SIGTERM.
        self._redis = redis.Redis.from_url(
            redis_url, socket_connect_timeout=1.0, socket_timeout=10.0, retry=Retry(NoBackoff(), 0)
        )
        self._consumer = consumer or f"{socket.gethostname()}-{os.getpid()}"
        self._claim_idle_ms = int(claim_idle.total_seconds() * 1000)

    def run(self, stopped: Callable[[], bool]) -> None:
        """Ingests until `stopped()`; raises RedisError or django.db.Error, after which call it again."""
        while not stopped():
            if not self.ingest_abandoned():
                self.ingest_new(block_ms=_BLOCK_MS)

    def ingest_new(self, *, block_ms: int | None = None) -> int:
        """Ingests up to a batch of entries that nobody has seen; returns how many came."""

        def read() -> Any:
            return self._redis.xreadgroup(
                USAGE_GROUP, self._consumer, {USAGE_STREAM: ">"}, count=_BATCH, block=block_ms
            )

        reply = self._with_group(read)
        streams = reply.items() if isinstance(reply, dict) else reply or ()
        entries = [entry for _, found in streams for entry in _flat(found)]
        return self._ingest(entries)

    def ingest_abandoned(self) -> int:
        """Ingests entries that a consumer took and never acknowledged, this one's own included."""

        def claim() -> Any:
            return self._redis.xautoclaim(
                USAGE_STREAM, USAGE_GROUP, self._consumer, self._claim_idle_ms, count=_BATCH
            )

        return self._ingest(_flat(self._with_group(claim)[1]))

    def close(self) -> None:
        """Closes the connection."""
        self._redis.close()

    def _ingest(self, entries: list[tuple[bytes, dict[bytes, bytes] | None]]) -> int:
        if not entries:
            return 0
        usage_ingest(
            entries=[
                StreamEntry(stream_id.decode(), (fields or {}).get(b"event", b""))
                for stream_id, fields in entries
            ]
        )
        ids = [stream_id for stream_id, _ in entries]
        with self._redis.pipeline(transaction=True) as pipeline:
            pipeline.xack(USAGE_STREAM, USAGE_GROUP, *ids)
            pipeline.xdel(USAGE_STREAM, *ids)
            pipeline.execute()
        return len(entries)

    def _with_group(self, call: Callable[[], Any]) -> Any:
        """The group goes with the stream when Redis loses its data: then it is made anew."""
        try:
            return call()
        except ResponseError as error:
            if not str(error).startswith("NOGROUP"):
                raise
        try:
            self._redis.xgroup_create(USAGE_STREAM, USAGE_GROUP, id="0", mkstream=True)
        except ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise
        return call()


def _flat(entries: Any) -> list[tuple[bytes, dict[bytes, bytes] | None]]:
    """Replies nest their entries one level more under RESP3 than under RESP2."""
    if entries and isinstance(entries[0], list):
        entries = [entry for group in entries for entry in group]
    return cast(list[tuple[bytes, dict[bytes, bytes] | None]], entries)
