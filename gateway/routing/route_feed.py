"""Keeps the route table fresh: one snapshot, then deltas, applied without holding up the event loop.

Versions never go back, so that a Redis server restored from an old backup cannot revive a revoked key. A
lower version is always refused, and the current table ages meanwhile. The publisher learns the gateways'
version and numbers a restored database above it (see docs/adr/0011).
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import logging
import time
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import RedisError

from contracts.errors import ContractError
from contracts.redis_names import ROUTES_DELTAS, ROUTES_SEEN, ROUTES_SNAPSHOT, ROUTES_VERSION
from contracts.route_table import (
    RouteChange,
    RouteDraft,
    RouteEntry,
    RouteTable,
    entry_from_json,
    snapshot_version,
)
from gateway.errors import RoutesUnavailable

logger = logging.getLogger(__name__)

STALE_SECONDS: Final = 300.0
_BLOCK_MS: Final = 1000
_RETRY_SECONDS: Final = 0.25
_SEEN_SECONDS: Final = 60
_DELTAS: Final = 32
"""Deltas read at a time: the client parses them in one go, 50 µs each."""
_BATCH_SECONDS: Final = 0.2
"""How long consecutive changes may wait to be applied together."""
_PIECE_BYTES: Final = 256 << 10
"""Bytes of a snapshot read at a time: a whole one of 35 MB would be copied in one go."""
_LINES: Final = 1 << 20
_SLICE_SECONDS: Final = 0.0005
_PAUSE_SECONDS: Final = 0.002


class RouteFeed:
    """Follows the newest route table. `run` it as a task."""

    def __init__(self, redis: Redis, *, stale_seconds: float = STALE_SECONDS) -> None:
        self._redis = redis
        self._stale_seconds = stale_seconds
        self._table: RouteTable | None = None
        self._contact = time.monotonic()
        self._last_id = "0-0"
        self._said = ""
        self._heard = asyncio.Event()
        self._slice_ends = 0.0
        self._lines: dict[bytes, tuple[str, RouteEntry | None]] = {}
        """Parsed lines of snapshots, by digest: nearly all lines of the next snapshot are the same."""

    @property
    def version(self) -> int:
        """Version of the newest table, 0 before the first."""
        return 0 if self._table is None else self._table.version

    @property
    def age(self) -> float:
        """Seconds since Redis last confirmed that the table is the newest, or since the start."""
        return time.monotonic() - self._contact

    def current(self) -> RouteTable:
        """Return the table. Raises RoutesUnavailable before the first one, or if it is too old to trust."""
        if self._table is None:
            raise RoutesUnavailable(f"No route table yet: {self._said or 'waiting for Redis'}. Retry soon.")
        if time.monotonic() - self._contact > self._stale_seconds:
            raise RoutesUnavailable(
                f"The route table is older than {self._stale_seconds:.0f} s: {self._said}. Retry later."
            )
        return self._table

    async def first(self, seconds: float) -> None:
        """Wait for a table, for the reason why there is none, or for `seconds`."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._heard.wait(), seconds)

    async def run(self) -> None:
        """Follow the control plane until cancelled; outages are logged once and waited out."""
        while True:
            try:
                if self._table is None or not await self._follow(self._table):
                    await self._load(self._table)
            except (RedisError, OSError) as error:
                self._say(f"Redis is away ({error})")
                await asyncio.sleep(_RETRY_SECONDS)

    async def _follow(self, table: RouteTable) -> bool:
        """Wait for deltas and apply them; False when a snapshot is needed."""
        entries = await self._deltas(_BLOCK_MS)
        if not entries:
            offered = await self._redis.get(ROUTES_VERSION)
            if offered is None:
                self._say("Redis holds no routes; the control plane's publish_routes writes them")
                return True
            if int(offered) < table.version:
                await self._refuse(int(offered), table.version)
                return True
            if int(offered) == table.version:
                self._up_to_date()
                return True
            # A publish between the two reads is in the stream by now, unless the stream was trimmed.
            entries = await self._deltas(None)
            if not entries:
                return False
        try:
            fresh = await self._applied(table, entries)
        except (ContractError, KeyError) as error:
            logger.warning("routes: %s; reading the snapshot", error)
            return False
        # An old backup's deltas are ignored: they do not prove that the server is up to date.
        if fresh.version > table.version:
            self._table = fresh
            self._up_to_date()
        return True

    async def _deltas(self, block: int | None) -> list[Any]:
        """Return (id, fields) of the entries after `_last_id`; waits `block` milliseconds for some."""
        answer: Any = await self._redis.xread({ROUTES_DELTAS: self._last_id}, _DELTAS, block)
        return answer[0][1] if answer else []

    async def _applied(self, table: RouteTable, entries: list[Any]) -> RouteTable:
        """Return `table` with `entries` and any that follow at once, so a burst copies a large map few times.

        Raises:
            ContractError, KeyError: an entry is not a change, or leaves a gap in the versions.
        """
        draft, until = RouteDraft(table), time.monotonic() + _BATCH_SECONDS
        while entries:
            for _, fields in entries:
                draft.apply(RouteChange.from_json(fields[b"change"]))
                await self._breathe()
            self._last_id = entries[-1][0].decode()
            more = len(entries) == _DELTAS and time.monotonic() < until
            entries = await self._deltas(None) if more else []
        return draft.table()

    async def _load(self, held: RouteTable | None) -> None:
        # The collector would scan all new entries repeatedly, for 100 ms at a time.
        gc.disable()
        try:
            table = await self._read_snapshot(held)
        except ContractError as error:
            self._say(f"the snapshot cannot be read ({error})")
            table = None
        finally:
            gc.enable()
        self._last_id = "0-0"
        if table is None or (held is not None and table.version < held.version):
            await asyncio.sleep(_RETRY_SECONDS)
            return
        gc.freeze()
        logger.info("routes: snapshot of version %d", table.version)
        self._table = table
        self._up_to_date()

    async def _read_snapshot(self, held: RouteTable | None) -> RouteTable | None:
        """Read a snapshot; None if there is none. Raises ContractError if it is malformed or incomplete."""
        draft: RouteDraft | None = None
        offset, rest, head = 0, b"", b""
        if len(self._lines) > _LINES:
            self._lines.clear()
        while piece := await self._piece(offset):
            offset += len(piece)
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                if draft is None:
                    head, draft = line, RouteDraft(RouteTable(version=snapshot_version(line)))
                elif line == head:
                    return draft.table()
                else:
                    draft.set(*self._entry(line, held))
                await self._breathe()
        if draft is not None:
            raise ContractError("it is torn: replaced while it was read, or cut off")
        self._say("Redis holds no routes; the control plane's publish_routes writes them")
        return None

    def _entry(self, line: bytes, held: RouteTable | None) -> tuple[str, RouteEntry | None]:
        digest = hashlib.blake2b(line, digest_size=16).digest()
        found = self._lines.get(digest)
        if found is None:
            path, entry = entry_from_json(line)
            # Unchanged entries stay the same objects: to free a whole table would take 100 ms.
            known = held.entry(path) if held is not None else None
            found = self._lines[digest] = (path, known if known == entry else entry)
        return found

    async def _piece(self, offset: int) -> bytes:
        piece: Any = await self._redis.getrange(ROUTES_SNAPSHOT, offset, offset + _PIECE_BYTES - 1)
        return bytes(piece)

    async def _breathe(self) -> None:
        """Yield to requests after each half millisecond of work; before the first table there are none."""
        now = time.perf_counter()
        if now > self._slice_ends:
            await asyncio.sleep(_PAUSE_SECONDS if self._table is not None else 0)
            self._slice_ends = time.perf_counter() + _SLICE_SECONDS

    async def _refuse(self, offered: int, held: int) -> None:
        """Report this gateway's version to the publisher."""
        self._say(f"Redis offers the older version {offered}; keeping version {held}")
        await self._redis.zadd(ROUTES_SEEN, {"version": held}, gt=True)
        await self._redis.expire(ROUTES_SEEN, _SEEN_SECONDS)

    def _up_to_date(self) -> None:
        self._contact, self._said = time.monotonic(), ""
        self._heard.set()

    def _say(self, text: str) -> None:
        if text != self._said:
            logger.warning("routes: %s", text)
            self._said = text
            self._heard.set()
