"""Moves usage events from the Redis stream into the database, each counted once.

Entries are delivered, committed, and then acknowledged. After a crash in between they are delivered again,
and the unique constraint of `UsageEventRow` makes the second write change nothing.

While the database writes a batch, a thread reads and validates the next one.
"""

from __future__ import annotations

import datetime as dt
import logging
import os
import socket
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, cast

import redis
from redis.backoff import NoBackoff
from redis.exceptions import ResponseError
from redis.retry import Retry

from contracts.redis_names import USAGE_GROUP, USAGE_STREAM
from controlplane.metering.event_rows import StreamEntry
from controlplane.metering.services import CheckedEntries, entries_check, usage_write

logger = logging.getLogger(__name__)
_BATCH: Final = 10_000
_BLOCK_MS: Final = 200


@dataclass(frozen=True, slots=True)
class _Batch:
    """Entries that were taken from the stream together."""

    ids: list[bytes]
    checked: CheckedEntries


class UsageIngester:
    """One consumer of the usage stream.

    `claim_idle` is how long an entry may be pending with another consumer before that one counts as dead.
    """

    def __init__(
        self,
        redis_url: str,
        *,
        consumer: str | None = None,
        claim_idle: dt.timedelta = dt.timedelta(seconds=30),
    ) -> None:
        # The calling loop retries; the client's own retries would sleep for seconds and ignore SIGTERM.
        self._redis = redis.Redis.from_url(
            redis_url, socket_connect_timeout=1.0, socket_timeout=10.0, retry=Retry(NoBackoff(), 0)
        )
        self._consumer = consumer or f"{socket.gethostname()}-{os.getpid()}"
        self._claim_idle_ms = int(claim_idle.total_seconds() * 1000)
        self._taken: deque[_Batch] = deque()

    def run(self, stopped: Callable[[], bool]) -> None:
        """Ingest until `stopped()`.

        Batches that were read but not written are written first on the next call. No other consumer would get
        them before `claim_idle` is over.

        Raises RedisError or django.db.Error; call it again afterwards.
        """
        self._ingest_taken()
        with ThreadPoolExecutor(1, thread_name_prefix="read-ahead") as reader:
            ahead = reader.submit(self._take)
            while not stopped():
                ahead.result()
                batches = len(self._taken)
                ahead = reader.submit(self._take)
                self._ingest_taken(batches)
            ahead.result()
            self._ingest_taken()

    def ingest_new(self) -> int:
        """Ingest up to a batch of undelivered entries; returns how many came."""
        return self._ingest(self._read_new())

    def ingest_abandoned(self) -> int:
        """Ingest entries that a consumer, or this one, took and never acknowledged; returns how many came."""
        return self._ingest(self._read_abandoned())

    def close(self) -> None:
        """Closes the connection."""
        self._redis.close()

    def _take(self) -> None:
        """Read one batch; runs in the read-ahead thread."""
        self._taken.append(self._read())

    def _ingest_taken(self, batches: int | None = None) -> None:
        """Write the oldest `batches`, by default all; a failing one stays the first."""
        for _ in range(len(self._taken) if batches is None else batches):
            self._ingest(self._taken[0])
            self._taken.popleft()

    def _read(self) -> _Batch:
        abandoned = self._read_abandoned()
        return abandoned if abandoned.ids else self._read_new(block_ms=_BLOCK_MS)

    def _read_new(self, *, block_ms: int | None = None) -> _Batch:
        def read() -> Any:
            return self._redis.xreadgroup(
                USAGE_GROUP, self._consumer, {USAGE_STREAM: ">"}, count=_BATCH, block=block_ms
            )

        reply = self._with_group(read)
        streams = reply.items() if isinstance(reply, dict) else reply or ()
        return _batch([entry for _, found in streams for entry in _flat(found)])

    def _read_abandoned(self) -> _Batch:
        def claim() -> Any:
            return self._redis.xautoclaim(
                USAGE_STREAM, USAGE_GROUP, self._consumer, self._claim_idle_ms, count=_BATCH
            )

        return _batch(_flat(self._with_group(claim)[1]))

    def _ingest(self, batch: _Batch) -> int:
        if not batch.ids:
            return 0
        usage_write(checked=batch.checked)
        with self._redis.pipeline(transaction=True) as pipeline:
            pipeline.xack(USAGE_STREAM, USAGE_GROUP, *batch.ids)
            pipeline.xdel(USAGE_STREAM, *batch.ids)
            pipeline.execute()
        return len(batch.ids)

    def _with_group(self, call: Callable[[], Any]) -> Any:
        """Retry the call after recreating the consumer group, which is lost when Redis loses its data."""
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


def _batch(entries: list[tuple[bytes, dict[bytes, bytes] | None]]) -> _Batch:
    checked = entries_check(
        entries=[StreamEntry(name.decode(), (fields or {}).get(b"event", b"")) for name, fields in entries]
    )
    return _Batch([name for name, _ in entries], checked)


def _flat(entries: Any) -> list[tuple[bytes, dict[bytes, bytes] | None]]:
    """Flatten replies, whose entries are nested one level deeper under RESP3 than under RESP2."""
    if entries and isinstance(entries[0], list):
        entries = [entry for group in entries for entry in group]
    return cast(list[tuple[bytes, dict[bytes, bytes] | None]], entries)
